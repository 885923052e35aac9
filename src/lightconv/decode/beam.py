"""Beam search over any (step, state): it keeps words and sums, the state is opaque to it.

At each position a sentence has W live hypotheses (one at first, then `beam`). Their W x V
continuations compete and the best 2 x beam are candidates. Those of the first `beam` candidates
that end with EOS are finished; the first `beam` that do not end live on. A sentence with `beam`
finished hypotheses leaves the batch. Of equal sums the one whose past was better comes first, then
the lower word.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from lightconv import mixers
from lightconv.decode.options import DecodeConfig
from lightconv.decode.rules import PENALTIES, Lengths, Rules, coverage_penalty
from lightconv.ops.vocabulary import topk

S = TypeVar("S")
# tokens [N, 1], state -> logits [N, 1, V], next state and, for alignments, attention [N, 1, S].
StepFunction = Callable[[Tensor, S], tuple[Tensor, S] | tuple[Tensor, S, Tensor]]
NO_OUTPUT = (
    "{} has no output: every one has probability zero or is not a number. Check the "
    "model's weights, and whether prefix, n-gram blocking and lengths contradict each other"
)
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
    running = Running(step, Beams(beam, nbest), length_penalty, coverage, reorder)
    return running.run(state, first, rules, padding)


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


class Live(NamedTuple):
    """W hypotheses of each of b sentences, best first; or candidates."""

    rows: Tensor  # [b, W], the row of the step before that each continues
    words: Tensor  # [b, W], the next input
    totals: Tensor  # [b, W] float64, sums of log-probabilities; -inf fills up the rectangle


class Choice(Protocol):
    """Rule of continuation: `width` hypotheses of a sentence live on, `starts` at first."""

    width: int
    starts: int
    ends: int  # outputs with which a sentence leaves

    def choose(self, running: "Running[Any]", logits: Tensor) -> Live:
        """Candidates of each sentence; the first `width` may end."""

    def survive(self, candidates: Live, ended: Tensor) -> Live:
        """Those that live on; ended [b, C] bool."""

    def order(self, found: list[tuple[int, "Hypothesis"]]) -> "list[Hypothesis]":
        """The outputs of a sentence from (place among the candidates, output) as they ended."""


class Beams:
    """The best continuations of all hypotheses of a sentence together."""

    starts = 1

    def __init__(self, beam: int, nbest: int) -> None:
        self.width = self.ends = beam
        self._nbest = nbest

    def choose(self, running: "Running[Any]", logits: Tensor) -> Live:
        # With one hypothesis the second candidate is never used.
        width = 2 * self.width if self.width > 1 else 1
        values, words = topk(running.allow(logits), min(width, logits.shape[1]))
        b, W = running.live.words.shape
        k = values.shape[1]
        # Sums in float64: the log-probability of a token is the difference of two of them.
        totals = running.live.totals[..., None] + running.spread(values, -torch.inf).view(b, W, k)
        totals, index = totals.view(b, W * k).sort(dim=1, descending=True, stable=True)
        totals, index = totals[:, :width], index[:, :width]
        words = running.spread(words, 0).view(b, W * k).gather(1, index)
        return Live(running.rows.gather(1, index // k), words, totals)

    def survive(self, candidates: Live, ended: Tensor) -> Live:
        # A stable sort puts ended ones last and keeps the order of the rest. With a vocabulary
        # smaller than the beam the rest can be too few; ended ones then fill up the rectangle.
        order = ended.to(torch.int8).argsort(dim=1, stable=True)[:, : self.width]
        totals = candidates.totals.masked_fill(ended, -torch.inf)
        return Live(*(each.gather(1, order) for each in (*candidates[:2], totals)))

    def order(self, found: list[tuple[int, "Hypothesis"]]) -> "list[Hypothesis]":
        # Of equal scores the one that ended first comes first.
        return sorted((each for _, each in found), key=lambda h: -h.score)[: self._nbest]


class _Sentence(NamedTuple):
    key: Any
    padding: Tensor | None
    found: list[tuple[int, Hypothesis]]


class Running(Generic[S]):
    """A search in steps, over sentences that begin together and leave at any of them.

    Between steps row r of the state is the r-th real hypothesis of `live`; `past` has the words it
    read and its sums up to each.
    """

    def __init__(
        self,
        step: StepFunction[S],
        choice: Choice,
        length_penalty: Penalty = 1.0,
        coverage: float = 0.0,
        reorder: Reorder[S] = mixers.reorder,
    ) -> None:
        self.step, self.choice, self.coverage, self.reorder = step, choice, coverage, reorder
        if not callable(length_penalty):
            length_penalty = partial(PENALTIES["power"], alpha=length_penalty)
        self.penalty = length_penalty
        self.length = 0  # of live hypotheses
        self.sentences: list[_Sentence] = []
        self.state: Any = None
        self.rules: Rules
        self.live: Any = None
        self.past: Any = None
        self.real: Any = None
        self.order = torch.empty(0)  # 0, 1, ..., for whom nothing moves
        self.looks: Tensor | None = None  # [N, t, S], attention of the steps so far

    def __len__(self) -> int:
        return len(self.sentences)

    def begin(
        self, keys: Sequence[Any], state: S, first: Tensor, rules: Rules, padding: Tensor | None
    ) -> None:
        """The sentences, when there are none; `padding` as of `beam_search`."""
        B, W, starts = len(first), self.choice.width, self.choice.starts
        if starts > 1:
            copies = torch.arange(B, device=first.device).repeat_interleave(starts)
            state = self.reorder(state, copies)
        totals = first.new_zeros(B, W, dtype=torch.float64)
        totals[:, starts:] = -torch.inf
        self.state, self.rules, self.looks, self.length = state, rules, None, 0
        self.real = torch.arange(W, device=first.device).expand(B, W) < starts
        self.live = Live(self.real, first[:, None].expand(B, W), totals)
        self.past = totals.new_empty(B * starts, 0, 2)
        paddings = [None] * B if padding is None else padding
        self.sentences = [_Sentence(*one, []) for one in zip(keys, paddings, strict=True)]
        self._number()

    def _number(self) -> None:
        """Numbers real hypotheses: `rows` [b, W], `of` their sentences [N], `at` their places."""
        b, W = self.real.shape
        self.at = self.real.flatten().nonzero()[:, 0]
        if len(self.order) < b * W:
            self.order = torch.arange(2 * b * W, device=self.at.device)
        self.is_full = len(self.at) == b * W
        rows = torch.zeros(b * W, dtype=torch.int64, device=self.at.device)
        rows[self.at] = self.order[: len(self.at)]
        self.rows, self.of = rows.view(b, W), self.at // W

    def spread(self, values: Tensor, fill: float) -> Tensor:
        """Values [N, k] of the real hypotheses at their places in the rectangle: [b * W, k]."""
        if self.is_full:
            return values
        found = values.new_full((self.real.numel(), values.shape[1]), fill)
        found[self.at] = values
        return found

    def allow(self, logits: Tensor) -> Tensor:
        """As `Rules.allow` of the real hypotheses."""
        tokens = self.past[:, 1:, 0].long() if self.rules.block_ngrams > 0 else None
        return self.rules.allow(logits, self.length, self.of, tokens)

    def advance(self, steps: int = 1, seconds: float = 0.0) -> list[tuple[Any, list[Hypothesis]]]:
        """One step, whatever is asked for; keys and outputs of the sentences that leave."""
        self.length += 1
        words, totals = (each.reshape(-1) for each in self.live[1:])
        if not self.is_full:
            words, totals = words[self.at], totals[self.at]
        logits, self.state, *attention = self.step(words[:, None], self.state)
        new = torch.stack([words.double(), totals], 1)[:, None]
        self.past = torch.cat([self.past, new], 1)
        for each in attention:
            look = each[:, -1:].float()
            self.looks = look if self.looks is None else torch.cat([self.looks, look], 1)
        width = self.choice.width
        candidates = self.choice.choose(self, logits[:, -1])
        ended = candidates.words == self.rules.eos
        left = []
        # Without a number among its totals (NaN) a sentence would never end.
        dead = ~(candidates.totals > -torch.inf).any(1)
        if bool(ended.any() | dead.any()):
            self._end(candidates, ended[:, :width] & (candidates.totals[:, :width] > -torch.inf))
            live = self.choice.survive(candidates, ended)
            going = (live.totals > -torch.inf).any(1).tolist()
            done = [len(each.found) >= self.choice.ends for each in self.sentences]
            stays = [go and not end for go, end in zip(going, done, strict=True)]
            left = [each for each, stay in zip(self.sentences, stays, strict=True) if not stay]
        else:
            live = Live(*(each[:, :width] for each in candidates))
            stays = []
        self._keep(live, stays if left else None)
        return [(each.key, self.choice.order(each.found)) for each in left]

    def cancel(self, keys: Collection[Any]) -> None:
        """Those sentences leave without outputs."""
        live = self.live._replace(rows=self.rows)
        self._keep(live, [each.key not in keys for each in self.sentences])

    def _keep(self, live: Live, stays: list[bool] | None) -> None:
        """Moves state and past to the hypotheses of `live`, of those sentences that stay."""
        if stays is not None:
            kept = torch.tensor(stays, device=live.words.device).nonzero()[:, 0]
            self.sentences = [
                each for each, stay in zip(self.sentences, stays, strict=True) if stay
            ]
            live = Live(*(each[kept] for each in live))
            self.rules.take(kept)
        if not self.sentences:
            self.state = self.past = self.looks = None
            return
        # What has no probability is nobody's past.
        real, self.live = live.totals > -torch.inf, live
        is_full = bool(real.all())
        rows, N = live.rows.flatten() if is_full else live.rows[real], len(self.past)
        if len(rows) != N or not torch.equal(rows, self.order[:N]):
            self.state, self.past = self.reorder(self.state, rows), self.past[rows]
            self.looks = None if self.looks is None else self.looks[rows]
        if not (is_full and self.is_full and real.shape == self.real.shape):
            self.real = real
            self._number()

    def _end(self, candidates: Live, ended: Tensor) -> None:
        """Outputs of those candidates [b, W] bool, as long as their sentences want some."""
        places = ended.nonzero()
        sentences, ranks = places.unbind(1)
        rows = candidates.rows[sentences, ranks]
        totals = candidates.totals[sentences, ranks].tolist()
        seen = self.past[rows].tolist()
        for n, ((b, rank), total) in enumerate(zip(places.tolist(), totals, strict=True)):
            each = self.sentences[b]
            if len(each.found) >= self.choice.ends:
                continue
            # The input of a step is the token chosen at the step before it.
            words, sums = zip(*seen[n], strict=True)
            logprobs = [after - before for before, after in pairwise((*sums, total))]
            looks = None if self.looks is None else self.looks[rows[n]]
            score = total / self.penalty(self.length)
            if self.coverage > 0.0:
                if looks is None or each.padding is None:
                    raise ValueError(
                        "coverage needs a step that returns the attention to the source, and the "
                        "source's padding; without them use coverage=0"
                    )
                covered = coverage_penalty(looks[None], each.padding[None])
                score += float(self.coverage * covered)
            tokens = [*map(int, words[1:]), self.rules.eos]
            each.found.append((rank, Hypothesis(tokens, score, logprobs, looks)))

    def best_so_far(self, key: Any) -> list[int]:
        """Tokens of the first hypothesis of a live sentence."""
        b = [each.key for each in self.sentences].index(key)
        read = self.past[int(self.rows[b, 0]), 1:, 0].long().tolist()
        return [*read, int(self.live.words[b, 0])] if self.length else []

    def run(
        self, state: S, first: Tensor, rules: Rules, padding: Tensor | None = None
    ) -> list[list[Hypothesis]]:
        """Outputs of each of B sentences; ValueError if one has none."""
        found: list[list[Hypothesis]] = [[] for _ in first]
        with torch.inference_mode():
            if len(first):
                self.begin(range(len(first)), state, first, rules, padding)
            while self.sentences:
                for b, hypotheses in self.advance():
                    found[b] = hypotheses
        for b, hypotheses in enumerate(found):
            if not hypotheses:
                raise ValueError(NO_OUTPUT.format(f"sentence {b}"))
        return found
