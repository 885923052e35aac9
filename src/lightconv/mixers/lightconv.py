"""Lightweight convolution (section 3 of the paper): one normalised kernel per head."""

import math

import torch
from torch import Tensor, nn

from lightconv.mixers.base import Device, Dtype, Made
from lightconv.mixers.projected import NORMALIZATIONS, Projected
from lightconv.ops import lightconv, lightconv_step
from lightconv.ops.check import Maybe


class LightConv(Projected):
    """[B, T, D] -> [B, T, D] with the same kernels at every position: weight [H, K].

    Arguments as of `DynamicConv`. heads=dim and normalize="none" is the paper's depthwise CNN.

    >>> y = LightConv(512, 31, 8, causal=True)(torch.randn(2, 100, 512))    # [2, 100, 512]
    """

    def __init__(
        self,
        dim: int,
        kernel: int,
        heads: int,
        *,
        causal: bool = False,
        glu: bool = False,
        normalize: str = "softmax",
        dropconnect: float = 0.0,
        dilation: int = 1,
        bias: bool = True,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(dim, causal)
        made: Made = {"device": device, "dtype": dtype}
        self.build(kernel, heads, glu, normalize, dropconnect, dilation, bias, made)
        self.weight = nn.Parameter(torch.empty(heads, kernel, **made))
        self.reset_kernel()

    def reset_kernel(self) -> None:
        # Xavier-uniform as for a convolution weight [H, 1, K]: K numbers in, H * K out.
        bound = math.sqrt(6.0 / (self.kernel + self.heads * self.kernel))
        nn.init.uniform_(self.weight, -bound, bound)

    def convolve(self, x: Tensor, context: Maybe, options: Made) -> Tensor:
        return lightconv(x, self._kernels(context), self.left, **options)

    def convolve_step(
        self, x: Tensor, window: Tensor, position: int, context: Maybe, options: Made
    ) -> tuple[Tensor, Tensor]:
        return lightconv_step(x, window, position, self._kernels(context), **options)

    def _kernels(self, context: Tensor | None) -> Tensor:
        if context is not None:
            self.refuse("its kernels are parameters; DynamicConv predicts them from a context")
        return NORMALIZATIONS[self.normalize](self.weight)
