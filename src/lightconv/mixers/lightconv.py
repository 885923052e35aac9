"""Lightweight convolution (section 3 of the paper): one normalised kernel per head."""

import math

import torch
from torch import Tensor, nn

from lightconv.mixers.projected import NORMALIZATIONS, Projected
from lightconv.ops import lightconv, lightconv_step


class LightConv(Projected):
    """[B, T, D] -> [B, T, D] with the same kernels at every position.

    weight [H, K], normalised over K. heads=dim and normalize="none" is the paper's depthwise CNN.
    """

    def make_kernel(self) -> None:
        # Xavier-uniform as for a convolution weight [H, 1, K]: K numbers in, H * K out.
        bound = math.sqrt(6.0 / (self.kernel + self.heads * self.kernel))
        self.weight = nn.Parameter(torch.empty(self.heads, self.kernel))
        nn.init.uniform_(self.weight, -bound, bound)

    def convolve(self, x: Tensor, cu_seqlens: Tensor | None, dropconnect: float) -> Tensor:
        weight = NORMALIZATIONS[self.normalize](self.weight)
        return lightconv(x, weight, self.left, cu_seqlens=cu_seqlens, dropconnect=dropconnect)

    def convolve_step(self, x: Tensor, window: Tensor, position: int) -> tuple[Tensor, Tensor]:
        weight = NORMALIZATIONS[self.normalize](self.weight)
        return lightconv_step(x, window, position, weight)
