"""Beam search over any (step, state): it keeps words and sums, the state is opaque to it.

At each position a sentence has W live hypotheses (one at first, then `beam`). Their W x V
continuations compete and the best 2 x beam are candidates. Those of the first `beam` candidates
that end with EOS are finished; the first `beam` that do not end live on. A sentence with `beam`
finished hypotheses leaves the batch. Of equal sums the one whose past was better comes first, then
the lower word.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lightconv import mixers
from lightconv.decode.options import DecodeConfig
from lightconv.decode.rules import PENALTIES, Lengths, Rules, coverage_penalty

S = TypeVar("S")
Array = npt.NDArray[Any]
# tokens [N, 1], state -> logits [N, 1, V], next state and, for alignments, attention [N, 1, S].
StepFunction = Callable[[Tensor, S], tuple[Tensor, S] | tuple[Tensor, S, Tensor]]
# state, rows [N'] -> the state of those rows.
Reorder = Callable[[S, Tensor], S]
# length -> divisor of the sum of log-probabilities; a number alpha means length ** alpha.
Penalty = float | Callable[[int], float]


class Hypothesis(NamedTuple):
    """A finished output: tokens up to EOS, score, and of each token its log-probability.

    attention [tokens, S], if the step returns it
    """

    tokens: list[int]
    score: float
    logprobs: list[float]
    attention: Tensor | None = None


def beam_search(
    step: StepFunction[S],
    state: S,
    first: Tensor,
    *,
    beam: int,
    max_len: Lengths,
    eos: int,
    pad: int | None = None,
    min_len: Lengths = 1,
    length_penalty: Penalty = 1.0,
    coverage: float = 0.0,
    padding: Tensor | None = None,
    block_ngrams: int = 0,
    forbidden: Sequence[int] = (),
    prefix: Sequence[Sequence[int]] | None = None,
    nbest: int | None = None,
    reorder: Reorder[S] = mixers.reorder,
) -> list[list[Hypothesis]]:
    """For each of B sentences, up to `nbest` (else `beam`) finished hypotheses, best first.

    step           tokens [N, 1] int64, state -> logits [N, 1, V], next state; at most max_len
                   times. A third result, attention [N, 1, S], is returned with the hypotheses
    state          of B rows, before the first token
    first          [B] int64, the first input of `step` (EOS); not part of a hypothesis
    max_len        longest outputs, one for all or [B]; `min_len` likewise; both count EOS
    pad, forbidden never chosen
    length_penalty of a length with EOS: the sum of log-probabilities is divided by it to give the
                   score; a number alpha means length ** alpha
    coverage       weight of `rules.coverage_penalty` in the score; needs attention and the
                   source's padding [B, S] bool
    block_ngrams   no n-gram of this length occurs twice; 0 allows any
    prefix         for each sentence the words it begins with, which count like any others
    reorder        state, rows [N'] int64 -> the state of those rows; not called if none moved
    """
    if beam < 1:
        raise ValueError(f"beam must be at least 1, got {beam}")
    nbest = beam if nbest is None else nbest
    if not 1 <= nbest <= beam:
        raise ValueError(f"nbest must be from 1 to beam={beam}, got {nbest}")
    forbidden = forbidden if pad is None else (*forbidden, pad)
    rules = Rules(first, eos, max_len, min_len, forbidden, block_ngrams, prefix)
    with torch.inference_mode():
        trace = _search(step, state, first, rules, beam, reorder)
        found = trace.hypotheses(length_penalty, coverage=coverage, padding=padding)
    # Of equal scores the one that ended first comes first.
    return [sorted(each, key=lambda h: -h.score)[:nbest] for each in found]


def beam_options(
    config: DecodeConfig,
    source_lengths: Sequence[int],
    *,
    eos: int,
    pad: int | None = None,
    unknown: int | None = None,
) -> dict[str, Any]:
    """A configuration as keywords of `beam_search`, for sources of those lengths, EOS counted.

    With `config.coverage` the search also needs `padding` and a step that returns attention.
    """
    penalty = PENALTIES[config.length_penalty]
    least, most = config.min_len_ratio, config.max_len_ratio
    return {
        "beam": config.beam,
        "max_len": [max(1, int(most * n + config.max_len_plus)) for n in source_lengths],
        "min_len": [max(config.min_len, int(least * n)) for n in source_lengths],
        "length_penalty": lambda length: penalty(length, config.alpha),
        "coverage": config.coverage,
        "block_ngrams": config.block_ngrams,
        "eos": eos,
        "pad": pad,
        "forbidden": () if unknown is None or config.allow_unknown else (unknown,),
    }


class _Live(NamedTuple):
    """W hypotheses of each of b sentences, best first; or candidates."""

    sentences: Tensor  # [b], their rows in the batch
    rows: Tensor  # [b, W], the row of the step before that each continues
    words: Tensor  # [b, W], the next input
    totals: Tensor  # [b, W] float64, sums of log-probabilities; -inf fills up the rectangle


def _search(
    step: StepFunction[S], state: S, first: Tensor, rules: Rules, beam: int, reorder: Reorder[S]
) -> "Trace":
    # With one hypothesis the second candidate is never used.
    width = 2 * beam if beam > 1 else 1
    trace = Trace(len(first), rules.eos)
    order = torch.arange(len(first) * beam, device=first.device)
    sentences = order[: len(first)]
    totals = torch.zeros_like(first, dtype=torch.float64)
    live = _Live(sentences, sentences[:, None], first[:, None], totals[:, None])
    counts = torch.zeros_like(first)
    tokens = None
    for length in range(1, rules.longest + 1):
        logits, state, *attention = step(live.words.reshape(-1, 1), state)
        trace.add(live.words, live.totals, live.rows, attention)
        if rules.block_ngrams > 0:
            tokens = extend(tokens, live.rows.flatten(), live.words.flatten())
        values, words = rules.best(logits[:, -1], length, live.sentences, tokens, width)
        candidates = _expand(live, values, words, width, order)
        ended = candidates.words == rules.eos
        if bool(ended.any()):
            live = _survive(candidates, ended, beam)
            _finish(candidates, ended, counts, trace, beam)
            going = (counts[live.sentences] < beam) & (live.totals[:, 0] > -torch.inf)
            if not bool(going.all()):
                live = _Live(*(each[going] for each in live))
                if len(live.sentences) == 0:
                    break
        else:
            rows, words, totals = (each[:, :beam] for each in candidates[1:])
            live = _Live(candidates.sentences, rows, words, totals)
        if length < rules.longest:
            state = move(state, live.rows.flatten(), order[: len(logits)], reorder)
    return trace


def _expand(live: _Live, values: Tensor, words: Tensor, width: int, order: Tensor) -> _Live:
    """The best `width` continuations of each sentence; values, words [b * W, k]."""
    b, W = live.words.shape
    k = values.shape[1]
    # Sums in float64: the log-probability of a token is the difference of two of them.
    totals = live.totals[..., None] + values.reshape(b, W, k)
    totals, index = totals.view(b, W * k).sort(dim=1, descending=True, stable=True)
    totals, index = totals[:, :width], index[:, :width]
    rows = index // k + order[:b, None] * W
    return _Live(live.sentences, rows, words.reshape(b, W * k).gather(1, index), totals)


def _survive(candidates: _Live, ended: Tensor, beam: int) -> _Live:
    """The first `beam` candidates of each sentence that have not ended; ended [b, k] bool."""
    # A stable sort puts ended ones last and keeps the order of the rest. With a vocabulary smaller
    # than the beam the rest can be too few; ended ones then fill up the rectangle.
    order = ended.to(torch.int8).argsort(dim=1, stable=True)[:, :beam]
    totals = candidates.totals.masked_fill(ended, -torch.inf)
    rows, words, totals = (each.gather(1, order) for each in (*candidates[1:3], totals))
    return _Live(candidates.sentences, rows, words, totals)


def _finish(candidates: _Live, ended: Tensor, counts: Tensor, trace: "Trace", beam: int) -> None:
    """Finishes those of the first `beam` candidates that have ended; raises counts [B]."""
    ended = ended[:, :beam] & (candidates.totals[:, :beam] > -torch.inf)
    nth = counts[candidates.sentences, None] + ended.cumsum(1)
    place = (ended & (nth <= beam)).nonzero(as_tuple=True)
    sentences = candidates.sentences[place[0]]
    trace.end(sentences, candidates.rows[place], candidates.totals[place])
    counts.index_add_(0, sentences, torch.ones_like(sentences))


def extend(tokens: Tensor | None, rows: Tensor, words: Tensor) -> Tensor:
    """Inputs of rows [N'] so far, without the first: [N, t] and words [N'] -> [N', t + 1]."""
    if tokens is None:
        return words.new_zeros(len(words), 0)
    return torch.cat([tokens[rows], words[:, None]], dim=1)


def move(state: S, rows: Tensor, order: Tensor, reorder: Reorder[S]) -> S:
    """The state of those rows out of all, `order`; untouched if every row stays."""
    return state if torch.equal(rows, order) else reorder(state, rows)


class Trace:
    """The steps of a search over B sentences, from which finished hypotheses are read back.

    At each step a row has its input word, the sum of its log-probabilities up to that word, and
    its parent: the row of the step before that it continues. So nothing grows inside the search.
    """

    def __init__(self, B: int, eos: int) -> None:
        self.B = B
        self.eos = eos
        # Of each step [N], attention [N, S].
        self._words: list[Tensor] = []
        self._totals: list[Tensor] = []
        self._parents: list[Tensor] = []
        self._attention: list[Tensor] = []
        # Of each step with ends [m]: sentences, rows, sums and lengths.
        self._ends: list[tuple[Tensor, ...]] = []

    def add(
        self, words: Tensor, totals: Tensor, parents: Tensor, attention: Sequence[Tensor]
    ) -> None:
        self._words.append(words.flatten())
        self._totals.append(totals.flatten())
        self._parents.append(parents.flatten())
        self._attention += [each[:, -1].float() for each in attention]

    def end(self, sentences: Tensor, rows: Tensor, totals: Tensor) -> None:
        """Ends those rows [m] of the last step with EOS, with those sums."""
        lengths = torch.full_like(rows, len(self._words))
        self._ends.append((sentences, rows, totals, lengths))

    def hypotheses(
        self, length_penalty: Penalty, *, coverage: float = 0.0, padding: Tensor | None = None
    ) -> list[list[Hypothesis]]:
        """For each sentence its hypotheses in the order they ended; ValueError if it has none."""
        found: list[list[Hypothesis]] = [[] for _ in range(self.B)]
        for b, hypothesis in self._read(length_penalty, coverage, padding) if self._ends else ():
            found[b].append(hypothesis)
        for b, hypotheses in enumerate(found):
            if not hypotheses:
                raise ValueError(
                    f"sentence {b} has no output: every one has probability zero or is not a "
                    "number. Check the model's weights, and whether prefix, n-gram blocking and "
                    "lengths contradict each other"
                )
        return found

    def _read(
        self, length_penalty: Penalty, coverage: float, padding: Tensor | None
    ) -> Iterator[tuple[int, Hypothesis]]:
        if not callable(length_penalty):
            length_penalty = partial(PENALTIES["power"], alpha=length_penalty)
        columns = list(map(torch.cat, zip(*self._ends, strict=True)))
        sentences, rows, totals, lengths = (column.cpu().numpy() for column in columns)
        path = self._read_back(rows, lengths)
        words = torch.cat(self._words).cpu().numpy()[path]
        sums = np.pad(torch.cat(self._totals).cpu().numpy()[path], ((0, 0), (0, 1)))
        sums[np.arange(len(path)), lengths] = totals
        attention = None
        if self._attention:
            places = torch.from_numpy(path).to(columns[3].device)
            real = torch.arange(path.shape[1], device=places.device) < columns[3][:, None]
            attention = torch.cat(self._attention)[places] * real[..., None]  # [M, T, S]
        extra = [0.0] * len(path)
        if coverage > 0.0:
            if attention is None or padding is None:
                raise ValueError(
                    "coverage needs a step that returns the attention to the source, and the "
                    "source's padding; without them use coverage=0"
                )
            extra = (coverage * coverage_penalty(attention, padding[columns[0]])).tolist()
        table = sentences, lengths, totals, words, np.diff(sums, axis=1)
        each = zip(*(column.tolist() for column in table), strict=True)
        for i, (b, length, total, read, logprobs) in enumerate(each):
            # The input of a step is the token chosen at the step before it.
            tokens = [*read[1:length], self.eos]
            score = total / length_penalty(length) + extra[i]
            looks = None if attention is None else attention[i, :length]
            yield b, Hypothesis(tokens, score, logprobs[:length], looks)

    def _read_back(self, rows: Array, lengths: Array) -> Array:
        """The rows of M hypotheses, counted over all T steps: [M, T], any behind the end."""
        starts = np.cumsum([0, *map(len, self._words)])[:-1]
        parents = np.split(torch.cat(self._parents).cpu().numpy(), starts[1:])
        path = np.empty((len(starts), len(rows)), dtype=np.int64)
        here = np.zeros_like(rows)
        for t in reversed(range(len(starts))):
            here = np.where(lengths == t + 1, rows, here)
            path[t] = here + starts[t]
            here = parents[t][here]
        return path.T
