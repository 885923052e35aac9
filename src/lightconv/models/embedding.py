"""Tokens to vectors: a scaled embedding plus sinusoidal positions, and the way back to scores."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightconv import ops
from lightconv.models.config import ModelConfig
from lightconv.ops.check import accumulate_dtype
from lightconv.ops.vocabulary import linear_cross_entropy


class Words(nn.Module):
    """One matrix [V, D], N(0, 1/D); the row of `pad`, if it has one, is zero."""

    def __init__(self, vocab: int, dim: int, pad: int | None) -> None:
        super().__init__()
        self.pad = pad
        self.weight = nn.Parameter(torch.empty(vocab, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)
        if self.pad is not None:
            with torch.no_grad():
                self.weight[self.pad] = 0.0

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [...] int64 -> their rows [..., D]."""
        # Reading padding teaches nothing: padding_idx leaves its row out of the gradient.
        return F.embedding(tokens, self.weight, padding_idx=self.pad)


class TokenEmbedding(Words):
    """One matrix [V, D], read as an embedding or as an output.

    A model whose output is tied holds it in both places.
    """

    def output(self, *, tied: bool) -> "TokenEmbedding":
        """The output beside this embedding: itself, or a matrix of its own."""
        vocab, dim = self.weight.shape
        return self if tied else TokenEmbedding(vocab, dim, self.pad)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [B, T] int64 -> [B, T, D], scaled by sqrt(D)."""
        return super().forward(tokens) * math.sqrt(self.weight.shape[1])

    def scores(self, x: Tensor) -> Tensor:
        """x [..., D] -> the logits of all words [..., V]."""
        return F.linear(x, self.weight)

    def nll(self, x: Tensor, target: Tensor) -> Tensor:
        """x [n, D], target [n] int64 -> -log p(target) [n], in float32 or wider."""
        return token_nll(self.scores(x), target)

    def loss(self, x: Tensor, target: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """x [n, D], target [n] int64 -> the smoothed loss and the plain one, summed: [] and [].

        Logits exist for a few positions at a time.
        """
        return linear_cross_entropy(x, self.weight, target, smoothing=smoothing)


def token_nll(logits: Tensor, target: Tensor) -> Tensor:
    """-log softmax(logits)[target]: logits [n, V], target [n] int64 -> [n], float32 or wider."""
    wide = logits.to(accumulate_dtype(logits.dtype))
    return F.cross_entropy(wide, target, reduction="none")


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


def embed(embedding: nn.Module, tokens: Tensor, config: ModelConfig, position: int = 0) -> Tensor:
    """What the first layer reads: words plus positions, then dropout.

    tokens   [B, T] int64
    position how many tokens of the sentence came before
    returns  [B, T, D]
    """
    x = add_positions(embedding(tokens), tokens == config.pad, config.pad, position)
    return ops.dropout(x, config.dropout) if embedding.training else x
