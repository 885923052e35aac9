"""The plain convolution of the paper's ablation ("CNN"): every channel reads every channel."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightconv.mixers.base import Device, Dtype, Mixer, Past
from lightconv.ops.check import accumulate_dtype


class Conv(Mixer):
    """out[t] = sum_j weight[j] @ x[t + j - left]: [B, T, D] -> [B, T, D], no bias, no projections.

    dim, kernel  D and K; weight [K, D, D], tap by tap so that each is one matrix product
    causal       left = K - 1, which can be streamed; otherwise left = K // 2
    device, dtype  of the weight

    >>> y = Conv(512, 3, causal=True)(torch.randn(2, 100, 512))    # [2, 100, 512]
    """

    def __init__(
        self,
        dim: int,
        kernel: int,
        *,
        causal: bool = False,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(dim, causal)
        self.check_counts(kernel=kernel)
        self.kernel = kernel
        self.left = kernel - 1 if causal else kernel // 2
        self.weight = nn.Parameter(torch.empty(kernel, dim, dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # Xavier-uniform: each output reads, and each input feeds, K * D numbers.
        bound = math.sqrt(6.0 / (2 * self.kernel * self.dim))
        nn.init.uniform_(self.weight, -bound, bound)

    def mix(self, x: Tensor, padding: Tensor | None) -> Tensor:
        if padding is not None:
            x = x.masked_fill(padding.unsqueeze(-1), 0.0)
        return self._sum_taps(F.pad(x, (0, 0, self.left, self.kernel - 1 - self.left)))

    def allocate(self, batch: int, max_len: int, like: Tensor) -> Past:
        """The last K - 1 inputs, oldest first: [B, K-1, D]."""
        return (like.new_zeros(batch, self.kernel - 1, self.dim),)

    def advance(self, x: Tensor, tensors: Past, position: int) -> tuple[Tensor, Past]:
        (window,) = tensors
        recent = torch.cat([window, x.to(window.dtype)], dim=1)
        # A copy: a view would keep the whole chunk in memory.
        return self._sum_taps(recent), (recent[:, x.shape[1] :].clone(),)

    def _sum_taps(self, x: Tensor) -> Tensor:
        """x [B, T+K-1, D] -> [B, T, D]."""
        T = x.shape[1] - (self.kernel - 1)
        out = F.linear(x[:, :T], self.weight[0])
        dtype = out.dtype
        out = out.to(accumulate_dtype(dtype))
        for j in range(1, self.kernel):
            out = out + F.linear(x[:, j : j + T], self.weight[j])
        return out.to(dtype)
