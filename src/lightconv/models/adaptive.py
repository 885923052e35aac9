"""A large vocabulary in bands of falling width, at the input and at the output of a model.

Words are numbered by falling frequency; band i holds V_i of them as a matrix [V_i, d_i] with
d_i = D // factor ** i, so that rare words cost little. After Grave et al. (2017) for the softmax,
Baevski and Auli (2019) for the input.
"""

import math
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightconv import ops
from lightconv.models.config import AdaptiveConfig, ModelConfig
from lightconv.models.embedding import TokenEmbedding, Words, token_nll
from lightconv.ops.check import accumulate_dtype
from lightconv.ops.vocabulary import linear_cross_entropy


class Band(NamedTuple):
    """The words from `first` to before `end`, and the width of their vectors."""

    first: int
    end: int
    width: int


class AdaptiveEmbedding(nn.Module):
    """A matrix [V_i, d_i] and a projection d_i -> D per band, the first one included.

    Scaled by sqrt(D) on use like one matrix: the original scales whatever its embedding gives.
    """

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
        self.projections = nn.ModuleList(projection(band.width, dim) for band in self.bands)

    def output(self, *, tied: bool) -> "AdaptiveOutput":
        """The output beside this embedding; if `tied`, it shares what the configuration says."""
        return AdaptiveOutput(self, tied=tied)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [B, T] int64 -> [B, T, D]."""
        which = band_of(tokens, self.bands)
        parts: list[Tensor] = []
        for place, (words, project) in enumerate(zip(self.words, self.projections, strict=True)):
            # Every band looks at every token and gives zeros for those of the others. To pick out
            # its own would save little, wait for the device and leave no shape to compile for.
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
        # Whole modules are shared, not their parameters: those part when a module moves to a
        # device that cannot hold them in place.
        self.words = (
            embedding.words
            if tied and config.tie_words
            else nn.ModuleList(band_words(band, embedding.pad) for band in self.bands)
        )
        self.classes = projection(dim, len(self.bands) - 1)
        self.projections = nn.ModuleList(
            Transposed(original) if tied and config.tie_projections else projection(dim, band.width)
            for band, original in zip(self.bands[1:], embedding.projections[1:], strict=True)
        )

    def scores(self, x: Tensor) -> Tensor:
        """x [..., D] -> the log-probabilities of all words [..., V], in float32 or wider."""
        head, common = log_softmax(self._head(x)), self.bands[0].end
        parts = [head[..., :common]]
        for place in range(1, len(self.bands)):
            inside = log_softmax(self._inside(x, place))
            parts.append(head[..., self._column(place), None] + inside)
        return torch.cat(parts, dim=-1)

    def nll(self, x: Tensor, target: Tensor) -> Tensor:
        """x [n, D], target [n] int64 -> -log p(target) [n], in float32 or wider.

        A band's words are scored only in the rows whose target it holds.
        """
        which, column = band_of(target, self.bands), target
        inside = []
        for place, band in enumerate(self.bands[1:], start=1):
            own = which == place
            column = column.masked_fill(own, self._column(place))
            # A band without any rows takes part all the same: gradients of zero, not of None, are
            # what several processes can add up.
            rows = own.nonzero()[:, 0]
            logits = self._inside(x.index_select(0, rows), place)
            inside.append((rows, token_nll(logits, target.index_select(0, rows) - band.first)))
        loss = token_nll(self._head(x), column)
        for rows, part in inside:
            loss = loss.index_add(0, rows, part)
        return loss

    def loss(self, x: Tensor, target: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """x [n, D], target [n] int64 -> the sum of `nll`, with and without a gradient: [] and [].

        Logits exist for a few positions at a time. Nothing is smoothed: the words of a band that is
        not the target's have no scores.
        """
        if smoothing != 0.0:
            raise ValueError(
                f"label_smoothing={smoothing} must be 0 with an adaptive output, which scores no "
                "words but those of the target's band"
            )
        which, column = band_of(target, self.bands), target
        losses = []
        for place, band in enumerate(self.bands[1:], start=1):
            own = which == place
            column = column.masked_fill(own, self._column(place))
            rows = own.nonzero()[:, 0]
            inner = self._project(x.index_select(0, rows), place)
            words = target.index_select(0, rows) - band.first
            losses.append(linear_cross_entropy(inner, matrix(self.words[place]), words)[0])
        common, classes = matrix(self.words[0]), matrix(self.classes)
        head, _ = linear_cross_entropy(x, common, column, more=classes)
        total = sum(losses, head)
        return total, total.detach()

    def _column(self, place: int) -> int:
        """Where in the head the class of a band stands."""
        return self.bands[0].end + place - 1

    def _head(self, x: Tensor) -> Tensor:
        """x [..., D] -> logits [..., V_0 + bands - 1]."""
        return torch.cat([F.linear(x, matrix(self.words[0])), self.classes(x)], dim=-1)

    def _inside(self, x: Tensor, place: int) -> Tensor:
        """x [..., D] -> logits of the band's words [..., V_i]."""
        return F.linear(self._project(x, place), matrix(self.words[place]))

    def _project(self, x: Tensor, place: int) -> Tensor:
        """x [..., D] -> what the band's words are compared with [..., d_i]."""
        x = self.projections[place - 1](x)
        return ops.dropout(x, self.dropout) if self.training else x


class Transposed(nn.Module):
    """The projection d -> D of an embedding, read backwards: [..., D] -> [..., d]."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.original = original

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, matrix(self.original).t())


Embedding = TokenEmbedding | AdaptiveEmbedding
Output = TokenEmbedding | AdaptiveOutput


def build_embedding(vocab: int, config: ModelConfig) -> Embedding:
    """One matrix or bands, as the configuration says; `output()` is of the same kind.

    embedding(tokens [B, T]) -> [B, T, D]; output.scores(x [..., D]) -> [..., V], of which a
    softmax makes probabilities; output.nll(x [n, D], target [n]) -> [n].
    """
    if config.adaptive is None:
        return TokenEmbedding(vocab, config.dim, config.pad)
    return AdaptiveEmbedding(vocab, config.dim, config.pad, config.adaptive)


def band_of(tokens: Tensor, bands: tuple[Band, ...]) -> Tensor:
    """Which band each token is in: [...] int64 -> [...] int64.

    What is no word goes to the first or the last band, where looking it up is an error.
    """
    which = torch.zeros_like(tokens)
    for band in bands[1:]:
        which = which + (tokens >= band.first)
    return which


def band_words(band: Band, pad: int) -> Words:
    """The matrix [V_i, d_i] of a band."""
    own = band.first <= pad < band.end
    return Words(band.end - band.first, band.width, pad - band.first if own else None)


def projection(inputs: int, outputs: int) -> nn.Linear:
    """[..., inputs] -> [..., outputs]: xavier-uniform, no bias."""
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.xavier_uniform_(layer.weight)
    return layer


def matrix(module: nn.Module) -> Tensor:
    """The weight of a module that has one."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight


def log_softmax(logits: Tensor) -> Tensor:
    """Over the last dimension, in float32 or wider."""
    return logits.log_softmax(-1, dtype=accumulate_dtype(logits.dtype))
