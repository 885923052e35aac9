"""Averaged attention (Zhang et al., 2018): every position sees the mean of its past."""

import torch
from torch import Tensor

from lightconv import ops
from lightconv.mixers.base import Device, Dtype, Mixer, Past, linear
from lightconv.ops.check import accumulate_dtype


class Average(Mixer):
    """[B, T, D] -> [B, T, D]: mean, feed-forward, and a gate between its result and the input.

        g = W2 relu(W1 mean(x[0..t]));    i, f = sigmoid(W3 [x; g]);    out = i * x + f * g

    dim, ffn_dim  D and the inner width of the feed-forward network
    causal        the mean of the inputs so far, which can be streamed; otherwise of all positions
    dropout       of the inner activations, in training
    bias, device, dtype  of the projections, as of torch.nn.Linear

    >>> y = Average(512, 2048, causal=True)(torch.randn(2, 100, 512))    # [2, 100, 512]
    """

    def __init__(
        self,
        dim: int,
        ffn_dim: int,
        *,
        causal: bool = False,
        dropout: float = 0.0,
        bias: bool = True,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(dim, causal)
        self.check_counts(ffn_dim=ffn_dim)
        self.check_probability("dropout", dropout)
        self.ffn_dim = ffn_dim
        self.dropout = dropout
        self.bias = bias
        self.hidden = linear(dim, ffn_dim, bias=bias, device=device, dtype=dtype)
        self.output = linear(ffn_dim, dim, bias=bias, device=device, dtype=dtype)
        self.gate = linear(2 * dim, 2 * dim, bias=bias, device=device, dtype=dtype)

    def mix(self, x: Tensor, padding: Tensor | None) -> Tensor:
        wide = accumulate_dtype(x.dtype)
        if padding is None:
            real = x.new_ones(1, x.shape[1], 1, dtype=wide)
        else:
            x = x.masked_fill(padding.unsqueeze(-1), 0.0)
            real = (~padding).unsqueeze(-1).to(wide)
        if self.causal:
            total, count = x.to(wide).cumsum(1), real.cumsum(1)
        else:
            total, count = x.to(wide).sum(1, keepdim=True), real.sum(1, keepdim=True)
        mean = (total / count.clamp(min=1.0)).to(x.dtype)
        return self._gate(x, mean, self.dropout if self.training else 0.0)

    def allocate(self, batch: int, max_len: int, like: Tensor) -> Past:
        """The sum of all inputs so far: [B, D], in float32 or wider."""
        return (like.new_zeros(batch, self.dim, dtype=accumulate_dtype(like.dtype)),)

    def advance(self, x: Tensor, tensors: Past, position: int) -> tuple[Tensor, Past]:
        (total,) = tensors
        totals = x.to(total.dtype).cumsum(1) + total.unsqueeze(1)
        count = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=total.dtype) + position
        mean = (totals / count.unsqueeze(-1)).to(x.dtype)
        return self._gate(x, mean, 0.0), (total + x.to(total.dtype).sum(1),)

    def _gate(self, x: Tensor, mean: Tensor, dropout: float) -> Tensor:
        """x [B, T, D], mean [B, T, D], or [B, 1, D] if all positions share it -> [B, T, D]."""
        g: Tensor = self.output(ops.dropout(self.hidden(mean).relu(), dropout))
        gates: Tensor = self.gate(torch.cat([x, g.expand_as(x)], dim=-1))
        i, f = gates.sigmoid().chunk(2, dim=-1)
        return i * x + f * g
