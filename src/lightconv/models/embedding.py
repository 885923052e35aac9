"""Embeddings and outputs: one matrix, or bands of falling width for a large vocabulary.

Band i of an adaptive vocabulary, whose words are numbered by falling frequency, holds V_i words as
a matrix [V_i, d_i] with d_i = D // factor ** i. After Grave et al. (2017) for the softmax, Baevski
and Auli (2019) for the input.
"""

import math
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightconv import ops
from lightconv.mixers.base import linear
from lightconv.models.config import AdaptiveConfig, ModelConfig
from lightconv.ops.check import accumulate_dtype, autocast_dtype
from lightconv.ops.vocabulary import linear_cross_entropy


class Words(nn.Module):
    """One matrix [V, D], N(0, 1/D); the row of `pad`, if any, is zero."""

    def __init__(self, vocab: int, dim: int, pad: int | None) -> None:
        super().__init__()
        self.pad = pad
        self.weight = nn.Parameter(torch.empty(vocab, dim))
        nn.init.normal_(self.weight, std=dim**-0.5)
        if pad is not None:
            with torch.no_grad():
                self.weight[pad] = 0.0

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [...] int64 -> their rows [..., D]."""
        # padding_idx keeps the row of padding out of the gradient.
        return F.embedding(tokens, self.weight, padding_idx=self.pad)


class TokenEmbedding(Words):
    """One matrix [V, D] as an embedding and as an output; a tied model holds it in both places."""

    def output(self, *, tied: bool) -> "TokenEmbedding":
        """The output that belongs to this embedding: itself if tied, else a new matrix."""
        vocab, dim = self.weight.shape
        return self if tied else TokenEmbedding(vocab, dim, self.pad)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [B, T] int64 -> [B, T, D], scaled by sqrt(D)."""
        return super().forward(tokens) * math.sqrt(self.weight.shape[1])

    def scores(self, x: Tensor) -> Tensor:
        """x [..., D] -> logits [..., V]."""
        return F.linear(x, self.weight)

    def nll(self, x: Tensor, target: Tensor) -> Tensor:
        """x [n, D], target [n] int64 -> -log p(target) [n], in float32 or wider."""
        return token_nll(self.scores(x), target)

    def loss(self, x: Tensor, target: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """x [n, D], target [n] int64 -> sums [] of the smoothed loss and of the plain one.

        Logits exist for a few positions at a time.
        """
        return linear_cross_entropy(x, self.weight, target, smoothing=smoothing)


class Band(NamedTuple):
    """Words from `first` to before `end`, as vectors of `width`."""

    first: int
    end: int
    width: int


class AdaptiveEmbedding(nn.Module):
    """A matrix [V_i, d_i] and a projection d_i -> D per band; scaled by sqrt(D) on use."""

    def __init__(self, vocab: int, dim: int, pad: int, config: AdaptiveConfig) -> None:
        super().__init__()
        self.dim = dim
        self.pad = pad
        self.config = config
        self.bands = tuple(
            Band(first, end, dim // config.factor**place)
            for place, (first, end) in enumerate(pairwise((0, *config.cutoffs, vocab)))
        )
        self.words = nn.ModuleList(band_words(band, pad) for band in self.bands)
        self.projections = nn.ModuleList(linear(b.width, dim, bias=False) for b in self.bands)

    def output(self, *, tied: bool) -> "AdaptiveOutput":
        """The output of this embedding; if tied, it shares what the configuration says."""
        return AdaptiveOutput(self, tied=tied)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [B, T] int64 -> [B, T, D]."""
        which = band_of(tokens, self.bands)
        parts: list[Tensor] = []
        for place, (words, project) in enumerate(zip(self.words, self.projections, strict=True)):
            # Every band reads every token and gives zeros for those of other bands: picking out its
            # own would wait for the device and leave no static shape to compile for.
            others = which != place
            rows = words((tokens - self.bands[place].first).masked_fill(others, 0))
            parts.append(project(rows.masked_fill(others[..., None], 0.0)))
        return sum(parts[1:], parts[0]) * math.sqrt(self.dim)


class AdaptiveOutput(nn.Module):
    """p(word) = p(word | head), or p(band | head) * p(word | band) beyond band 0.

    The head chooses among the words of band 0 and one class per further band. No biases.
    """

    def __init__(self, embedding: AdaptiveEmbedding, *, tied: bool) -> None:
        super().__init__()
        config, dim = embedding.config, embedding.dim
        self.bands = embedding.bands
        self.dropout = config.dropout
        # Modules are shared, not parameters: parameters would part when a module moves to a device
        # that cannot hold them in place.
        self.words: Any = embedding.words
        if not (tied and config.tie_words):
            self.words = nn.ModuleList(band_words(band, embedding.pad) for band in self.bands)
        self.classes = linear(dim, len(self.bands) - 1, bias=False)
        shared = tied and config.tie_projections
        self.projections = nn.ModuleList(
            Transposed(original) if shared else linear(dim, band.width, bias=False)
            for band, original in zip(self.bands[1:], embedding.projections[1:], strict=True)
        )

    def scores(self, x: Tensor) -> Tensor:
        """x [..., D] -> log-probabilities of all words [..., V], in float32 or wider."""
        wide, common = accumulate_dtype(x.dtype), self.bands[0].end
        head = self._head(x).log_softmax(-1, dtype=wide)
        parts = [head[..., :common]]
        for place in range(1, len(self.bands)):
            inner = F.linear(self._project(x, place), self.words[place].weight)
            inside = inner.log_softmax(-1, dtype=wide)
            parts.append(head[..., common + place - 1, None] + inside)
        return torch.cat(parts, dim=-1)

    def nll(self, x: Tensor, target: Tensor) -> Tensor:
        """x [n, D], target [n] int64 -> -log p(target) [n], in float32 or wider."""
        column, inside = self._split(x, target)
        loss = token_nll(self._head(x), column)
        for rows, inner, weight, words in inside:
            loss = loss.index_add(0, rows, token_nll(F.linear(inner, weight), words))
        return loss

    def loss(self, x: Tensor, target: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """x [n, D], target [n] int64 -> the sum [] of `nll`, with and without a gradient.

        Logits exist for a few positions at a time. Nothing is smoothed: words outside the target's
        band have no scores.
        """
        if smoothing != 0.0:
            raise ValueError(
                f"label_smoothing={smoothing} must be 0 with an adaptive output, which scores only "
                "the words of the target's band"
            )
        column, inside = self._split(x, target)
        common, classes = self.words[0].weight, self.classes.weight
        total, _ = linear_cross_entropy(x, common, column, more=classes)
        for _, inner, weight, words in inside:
            total = total + linear_cross_entropy(inner, weight, words)[0]
        return total, total.detach()

    def _split(self, x: Tensor, target: Tensor) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        """Column of the head per target [n]; per further band its rows, inputs, matrix and words.

        A band's words are scored only where the target is one of them. A band without rows takes
        part too: ranks can sum gradients of zero, but not of None.
        """
        which, column = band_of(target, self.bands), target
        inside: list[tuple[Tensor, ...]] = []
        for place, band in enumerate(self.bands[1:], start=1):
            own = which == place
            column = column.masked_fill(own, self.bands[0].end + place - 1)
            rows = own.nonzero()[:, 0]
            inner = self._project(x.index_select(0, rows), place)
            words = target.index_select(0, rows) - band.first
            inside.append((rows, inner, self.words[place].weight, words))
        return column, inside

    def _head(self, x: Tensor) -> Tensor:
        """x [..., D] -> logits [..., V_0 + bands - 1]."""
        return torch.cat([F.linear(x, self.words[0].weight), self.classes(x)], dim=-1)

    def _project(self, x: Tensor, place: int) -> Tensor:
        """x [..., D] -> [..., d_i]."""
        x = self.projections[place - 1](x)
        return ops.dropout(x, self.dropout) if self.training else x


class Transposed(nn.Module):
    """The transpose of an embedding's projection d -> D: [..., D] -> [..., d]."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.original: Any = original

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.original.weight.t())


Embedding = TokenEmbedding | AdaptiveEmbedding
Output = TokenEmbedding | AdaptiveOutput


def build_embedding(vocab: int, config: ModelConfig) -> Embedding:
    """One matrix, or bands if the configuration is adaptive; `output()` is of the same kind."""
    if config.adaptive is None:
        return TokenEmbedding(vocab, config.dim, config.pad)
    return AdaptiveEmbedding(vocab, config.dim, config.pad, config.adaptive)


def band_of(tokens: Tensor, bands: tuple[Band, ...]) -> Tensor:
    """Band of each token: [...] int64 -> [...] int64; an invalid id fails when it is looked up."""
    which = torch.zeros_like(tokens)
    for band in bands[1:]:
        which = which + (tokens >= band.first)
    return which


def band_words(band: Band, pad: int) -> Words:
    """Matrix [V_i, d_i] of a band."""
    own = band.first <= pad < band.end
    return Words(band.end - band.first, band.width, pad - band.first if own else None)


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
    """x [B, T, D] plus the sinusoid of each token's position in its sentence.

    padding  [B, T] bool, on either side: only real tokens are counted, the first has pad + 1
    position number of tokens of the sentence before x
    """
    T, D = x.shape[1:]
    first = position + pad + 1
    table = sinusoids(torch.arange(first, first + T, device=x.device), D, x.dtype)
    place = ((~padding).cumsum(1) - 1).clamp(min=0)
    return x + table[place].masked_fill(padding[..., None], 0.0)


def embed(embedding: nn.Module, tokens: Tensor, config: ModelConfig, position: int = 0) -> Tensor:
    """Input of the first layer: words plus positions, then dropout.

    tokens   [B, T] int64
    position number of tokens of the sentence before
    returns  [B, T, D]
    """
    x = add_positions(embedding(tokens), tokens == config.pad, config.pad, position)
    if autocast_dtype(x) == torch.bfloat16:  # which has the range of float32
        x = x.bfloat16()
    return ops.dropout(x, config.dropout) if embedding.training else x
