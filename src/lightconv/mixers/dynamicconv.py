"""Dynamic convolution (section 4 of the paper): every position predicts its own kernels."""

import math

from torch import Tensor, nn

from lightconv.mixers.projected import NORMALIZATIONS, Projected
from lightconv.ops import dynamicconv, dynamicconv_softmax, dynamicconv_step


class DynamicConv(Projected):
    """[B, T, D] -> [B, T, D] with kernels [H, K] predicted from the convolution's input at t."""

    def make_kernel(self) -> None:
        self.kernel_proj = nn.Linear(self.dim, self.heads * self.kernel, bias=False)
        bound = 1.0 / math.sqrt(self.dim)
        nn.init.uniform_(self.kernel_proj.weight, -bound, bound)

    def convolve(self, x: Tensor, cu_seqlens: Tensor | None, dropconnect: float) -> Tensor:
        logits = self._predict(x)
        if self.normalize == "softmax":
            return dynamicconv_softmax(
                x, logits, self.left, cu_seqlens=cu_seqlens, dropconnect=dropconnect
            )
        weight = NORMALIZATIONS[self.normalize](logits)
        return dynamicconv(x, weight, self.left, cu_seqlens=cu_seqlens, dropconnect=dropconnect)

    def convolve_step(self, x: Tensor, window: Tensor, position: int) -> tuple[Tensor, Tensor]:
        logits = self._predict(x).to(x.dtype)
        if self.normalize == "softmax":
            return dynamicconv_step(x, window, position, logits, softmax=True)
        return dynamicconv_step(x, window, position, NORMALIZATIONS[self.normalize](logits))

    def _predict(self, x: Tensor) -> Tensor:
        """x [B, T, D] -> [B, T, H, K]."""
        logits: Tensor = self.kernel_proj(x)
        return logits.view(*x.shape[:2], self.heads, self.kernel)
