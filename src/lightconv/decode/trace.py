"""What a search stepped, kept as it came, and the finished hypotheses read back out of it.

At each step a row has the word it reads, the sum of its log-probabilities up to that word, and the
row of the step before that it continues. So nothing grows inside the search: a hypothesis is one
row of the last step it was in, and its past is found by going back.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lightconv.decode.rules import coverage

Array = npt.NDArray[Any]


class Hypothesis(NamedTuple):
    """A finished output: tokens up to EOS, its score, the log-probability of each token.

    attention [tokens, S], where the model looked for each token, if the step gives that
    """

    tokens: list[int]
    score: float
    logprobs: list[float]
    attention: Tensor | None = None


class _Step(NamedTuple):
    """One step: words, sums and parents [N], attention [N, S]."""

    words: Tensor
    totals: Tensor
    parents: Tensor
    attention: Tensor | None


class _Ends(NamedTuple):
    """Hypotheses that ended at one step [m]: of which sentence, from which row, with which sum."""

    sentences: Tensor
    rows: Tensor
    totals: Tensor
    lengths: Tensor


class Trace:
    """The steps of a search over B sentences, and its ends."""

    def __init__(self, B: int, eos: int) -> None:
        self.B = B
        self.eos = eos
        self._steps: list[_Step] = []
        self._ends: list[_Ends] = []

    def add(self, words: Tensor, totals: Tensor, parents: Tensor, attention: Tensor | None) -> None:
        """A step of N rows; words, totals and parents any shape of N elements."""
        if attention is not None:
            attention = attention[:, -1].float()
        self._steps.append(_Step(words.flatten(), totals.flatten(), parents.flatten(), attention))

    def end(self, sentences: Tensor, rows: Tensor, totals: Tensor) -> None:
        """Those rows [m] of the last step end with EOS, with those sums."""
        lengths = torch.full_like(rows, len(self._steps))
        self._ends.append(_Ends(sentences, rows, totals, lengths))

    def hypotheses(
        self,
        penalty: Callable[[int], float],
        *,
        beta: float = 0.0,
        padding: Tensor | None = None,
    ) -> list[list[Hypothesis]]:
        """For each sentence its hypotheses in the order they ended.

        penalty of a length, which divides the sum; beta times the `coverage` is added to it
        padding [B, S] bool, of the source
        """
        found: list[list[Hypothesis]] = [[] for _ in range(self.B)]
        if not self._ends:
            return found
        ends = _Ends(*map(torch.cat, zip(*self._ends, strict=True)))
        lengths = ends.lengths.cpu().numpy()
        path = self._read_back(ends.rows.cpu().numpy(), lengths)
        words = _flat([step.words for step in self._steps])[path]
        sums = np.pad(_flat([step.totals for step in self._steps])[path], ((0, 0), (0, 1)))
        sums[np.arange(len(path)), lengths] = totals = ends.totals.cpu().numpy()
        attention = self._attention(path, ends.lengths)
        extra = [0.0] * len(path)
        if beta > 0.0:
            extra = (beta * _coverage(attention, padding, ends.sentences)).tolist()
        columns = ends.sentences, lengths, totals, words, np.diff(sums, axis=1)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for i, (b, length, total, read, logprobs) in enumerate(rows):
            # What is read at a step is the token chosen at the step before it.
            tokens = [*read[1:length], self.eos]
            score = total / penalty(length) + extra[i]
            looks = None if attention is None else attention[i, :length]
            found[b].append(Hypothesis(tokens, score, logprobs[:length], looks))
        return found

    def _read_back(self, rows: Array, lengths: Array) -> Array:
        """Where M hypotheses were at each of T steps: [M, T], counted over the rows of all steps.

        rows and lengths [M]: where they ended. Behind the end of a hypothesis stands 0.
        """
        sizes = [len(step.words) for step in self._steps]
        starts = np.cumsum([0, *sizes[:-1]])
        parents = _flat([step.parents for step in self._steps]) + np.repeat(
            [0, *starts[:-1]], sizes
        )
        order = np.argsort(-lengths, kind="stable")
        here = (rows + starts[lengths - 1])[order]
        path = np.zeros((len(rows), len(sizes)), dtype=np.int64)
        # The longest come first, so that those that have begun to be read back are a slice.
        counts = np.searchsorted(-lengths[order], -np.arange(len(sizes) + 1), side="right")
        for t in range(len(sizes), 0, -1):
            at = here[: counts[t]]
            path[: counts[t], t - 1] = at
            here[: counts[t]] = parents[at]
        path[order] = path.copy()
        return path

    def _attention(self, path: Array, lengths: Tensor) -> Tensor | None:
        """[M, T, S], zero behind the end."""
        steps = [step.attention for step in self._steps if step.attention is not None]
        if len(steps) < len(self._steps):
            return None
        places = torch.from_numpy(path).to(lengths.device)
        real = torch.arange(len(steps), device=lengths.device) < lengths[:, None]
        return torch.cat(steps)[places] * real[..., None]


def _flat(steps: Sequence[Tensor]) -> Array:
    return torch.cat([*steps]).cpu().numpy()


def _coverage(attention: Tensor | None, padding: Tensor | None, sentences: Tensor) -> Tensor:
    if attention is None or padding is None:
        raise ValueError(
            "coverage needs a step that returns the attention to the source, and the source's "
            "padding; without them use coverage=0"
        )
    return coverage(attention, padding[sentences])


def best_first(found: Sequence[list[Hypothesis]], nbest: int) -> list[list[Hypothesis]]:
    """The `nbest` best of each sentence; of equal scores the one that ended first."""
    return [sorted(each, key=lambda h: -h.score)[:nbest] for each in found]
