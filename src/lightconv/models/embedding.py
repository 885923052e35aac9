"""Tokens to vectors: a scaled embedding plus sinusoidal positions, and the way back to logits."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightconv.ops.check import accumulate_dtype


class TokenEmbedding(nn.Module):
    """One matrix [V, D], N(0, 1/D) with a zero pad row, read as an embedding or as an output."""

    def __init__(self, vocab: int, dim: int, pad: int) -> None:
        super().__init__()
        self.pad = pad
        self.weight = nn.Parameter(torch.empty(vocab, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)
        with torch.no_grad():
            self.weight[self.pad] = 0.0

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [B, T] int64 -> [B, T, D], scaled by sqrt(D)."""
        # Reading padding teaches nothing: padding_idx leaves its row out of the gradient.
        x = F.embedding(tokens, self.weight, padding_idx=self.pad)
        return x * math.sqrt(self.weight.shape[1])

    def logits(self, x: Tensor) -> Tensor:
        """x [B, T, D] -> [B, T, V]."""
        return F.linear(x, self.weight)


def sinusoids(positions: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Sines, then cosines, of wavelengths from 2 pi to 20000 pi; an odd dim ends with a zero.

    positions [...] int64 -> [..., dim] in `dtype`
    """
    half = dim // 2
    exact = accumulate_dtype(dtype)
    slope = math.log(10000.0) / max(half - 1, 1)
    rate = torch.exp(torch.arange(half, device=positions.device, dtype=exact) * -slope)
    angle = positions[..., None].to(exact) * rate
    return F.pad(torch.cat([angle.sin(), angle.cos()], dim=-1), (0, dim % 2)).to(dtype)


def add_positions(x: Tensor, padding: Tensor, pad: int, position: int = 0) -> Tensor:
    """x [B, T, D] plus the sinusoid of each token's place in its sentence.

    padding  [B, T] bool, on either side: only real tokens are counted, the first has pad + 1
    position how many tokens of the sentence came before x
    """
    T, D = x.shape[1:]
    first = position + pad + 1
    table = sinusoids(torch.arange(first, first + T, device=x.device), D, x.dtype)
    place = ((~padding).cumsum(1) - 1).clamp(min=0)
    return x + table[place].masked_fill(padding[..., None], 0.0)
