"""Gated convolutions: y = C * conv(B * x), with B, C and x projected from the input.

Short ones (LFM2) have a kernel per channel; grouped ones (Hyena, Evo 2) long kernels per group of
channels, behind a short convolution of B, C and x.
"""

import math

import torch
from torch import Tensor, nn

from lightconv.mixers.base import Device, Dtype, Made, Past
from lightconv.mixers.lightconv import LightConv
from lightconv.ops import lightconv, lightconv_step
from lightconv.ops.check import Maybe


class ShortConv(LightConv):
    """Gated short convolution: [B, T, D] -> [B, T, D], one kernel [K] for every channel.

    dim, kernel  D and K
    Other arguments as of `DynamicConv`.

    >>> y = ShortConv(512, 3, causal=True)(torch.randn(2, 100, 512))    # [2, 100, 512]
    """

    parts = 3

    def __init__(
        self,
        dim: int,
        kernel: int = 3,
        *,
        causal: bool = False,
        dropconnect: float = 0.0,
        dilation: int = 1,
        bias: bool = False,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        options: Made = {"dropconnect": dropconnect, "dilation": dilation, "bias": bias}
        made: Made = {"device": device, "dtype": dtype}
        super().__init__(dim, kernel, dim, causal=causal, normalize="none", **options, **made)

    def split(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        gate_in, gate_out, x = x.chunk(3, dim=-1)
        return gate_in * x, {"gate_out": gate_out}


class Hyena(ShortConv):
    """Gated long convolution, one kernel [K] per group of channels: [B, T, D] -> [B, T, D].

    dim, kernel, heads  D, K and the number of groups, which divides D
    short               width of the convolution, one per channel, before the gates
    Other arguments as of `DynamicConv`.

    >>> y = Hyena(512, 128, 32, causal=True)(torch.randn(2, 1000, 512))    # [2, 1000, 512]
    """

    def __init__(
        self,
        dim: int,
        kernel: int = 128,
        heads: int = 1,
        *,
        short: int = 3,
        causal: bool = False,
        dropconnect: float = 0.0,
        bias: bool = False,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        options: Made = {"dropconnect": dropconnect, "normalize": "none", "bias": bias}
        made: Made = {"device": device, "dtype": dtype}
        super(ShortConv, self).__init__(dim, kernel, heads, causal=causal, **options, **made)
        self.check_counts(short=short)
        self.short = short
        self.short_left = short - 1 if causal else short // 2
        self.short_weight = nn.Parameter(torch.empty(3 * dim, short, **made))
        self._reset_short()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self._reset_short()

    def _reset_short(self) -> None:
        bound = 1.0 / math.sqrt(self.short)
        nn.init.uniform_(self.short_weight, -bound, bound)

    def mix_projected(self, x: Tensor, padding: Maybe, cu_seqlens: Maybe, context: Maybe) -> Tensor:
        if padding is not None:
            x = x.masked_fill(padding.unsqueeze(-1), 0.0)
        x = lightconv(x, self.short_weight, self.short_left, cu_seqlens=cu_seqlens)
        return super().mix_projected(x, padding, cu_seqlens, context)

    def allocate(self, batch: int, max_len: int, like: Tensor) -> Past:
        """Rings of the last inputs of both convolutions: [B, K-1, D], [B, short-1, 3D]."""
        before = like.new_zeros(batch, self.short - 1, 3 * self.dim)
        return (*super().allocate(batch, max_len, like), before)

    def advance_projected(
        self, x: Tensor, tensors: Past, position: int, context: Maybe
    ) -> tuple[Tensor, Past]:
        """x [B, n, 3D] -> [B, n, D] and the new rings."""
        window, before = tensors
        x, before = lightconv_step(x.to(before.dtype), before, position, self.short_weight)
        out, (window,) = super().advance_projected(x, (window,), position, context)
        return out, (window, before)
