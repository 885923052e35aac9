"""Beam search over anything that steps: it holds tokens and sums, the state is opaque to it.

At each position a sentence has W live hypotheses (one at first, then `beam`). Their W x V
continuations compete and the best 2 x beam are candidates. Those of the first `beam` candidates
that end with EOS are finished; the first `beam` that do not end live on. A sentence with `beam`
finished hypotheses leaves the batch.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from lightconv import mixers
from lightconv.ops.check import accumulate_dtype

S = TypeVar("S")


class Hypothesis(NamedTuple):
    """A finished output: tokens up to EOS, its score, the log-probability of each token."""

    tokens: list[int]
    score: float
    logprobs: list[float]


def beam_search(
    step: Callable[[Tensor, S], tuple[Tensor, S]],
    state: S,
    first: Tensor,
    *,
    beam: int,
    max_len: int,
    eos: int,
    pad: int | None = None,
    min_len: int = 1,
    length_penalty: float = 1.0,
    reorder: Callable[[S, Tensor], S] = mixers.reorder,
) -> list[list[Hypothesis]]:
    """For each of B sentences, up to `beam` finished hypotheses, best first.

    step    tokens [N, 1] int64, state -> logits [N, 1, V], next state; at most max_len times
    state   of B rows, before the first token
    first   [B] int64, what `step` reads first (EOS); not part of a hypothesis
    reorder state, rows [N'] int64 -> the state of those rows

    `min_len` and `max_len` count EOS, and so does the score, the sum of log-probabilities divided
    by length ** length_penalty. `pad` is never chosen.
    """
    if beam < 1:
        raise ValueError(f"beam must be at least 1, got {beam}")
    if not 1 <= min_len <= max_len:
        raise ValueError(f"min_len and max_len must rise from 1, got {min_len} and {max_len}")
    with torch.inference_mode():
        live = _start(first)
        finished = _Finished(first, beam, max_len)
        for length in range(1, max_len + 1):
            logits, state = step(live.tokens[..., -1].reshape(-1, 1), state)
            logprobs = logits[:, -1].log_softmax(-1, dtype=accumulate_dtype(logits.dtype))
            _forbid(logprobs, eos, pad, may_end=length >= min_len, must_end=length == max_len)
            candidates = _expand(live, logprobs, 2 * beam)
            ended = candidates.tokens[..., -1] == eos
            finished.add(candidates, ended, length**length_penalty)
            unfinished = (finished.counts[live.sentences] < beam).nonzero()[:, 0]
            if len(unfinished) == 0 or length == max_len:
                break
            live = _survive(candidates, ended, unfinished, beam)
            state = reorder(state, live.rows.flatten())
        return finished.hypotheses()


class _Beam(NamedTuple):
    """W hypotheses of each of b sentences, best first.

    sentences [b] int64, their places in the batch
    rows      [b, W] int64, the row of the state that each of them continues
    tokens    [b, W, 1 + t] int64, the first one not part of the hypothesis
    totals    [b, W, 1 + t], the sum of log-probabilities up to each token; -inf in the last place
              marks what is no hypothesis but fills up the rectangle
    """

    sentences: Tensor
    rows: Tensor
    tokens: Tensor
    totals: Tensor


def _start(first: Tensor) -> _Beam:
    """One empty hypothesis per sentence."""
    sentences = torch.arange(len(first), device=first.device)
    tokens = first[:, None, None]
    totals = torch.zeros_like(tokens, dtype=torch.float32)
    return _Beam(sentences, sentences[:, None], tokens, totals)


def _forbid(logprobs: Tensor, eos: int, pad: int | None, *, may_end: bool, must_end: bool) -> None:
    """logprobs [N, V]: -inf, in place, for what must not come next."""
    if pad is not None:
        logprobs[:, pad] = -torch.inf
    if not may_end:
        logprobs[:, eos] = -torch.inf
    if must_end:
        logprobs[:, :eos] = -torch.inf
        logprobs[:, eos + 1 :] = -torch.inf


def _expand(live: _Beam, logprobs: Tensor, count: int) -> _Beam:
    """The best `count` continuations of each sentence; logprobs [b * W, V]."""
    b, W = live.tokens.shape[:2]
    V = logprobs.shape[-1]
    totals = live.totals[..., -1:] + logprobs.view(b, W, V)
    best, index = totals.flatten(1).topk(min(count, W * V))
    parents, tokens = index // V, index % V
    return _Beam(
        live.sentences,
        torch.arange(b, device=index.device)[:, None] * W + parents,
        torch.cat([_pick(live.tokens, parents), tokens[..., None]], dim=-1),
        torch.cat([_pick(live.totals, parents), best[..., None]], dim=-1),
    )


def _survive(candidates: _Beam, ended: Tensor, unfinished: Tensor, beam: int) -> _Beam:
    """The first `beam` candidates of each sentence that have not ended.

    ended      [b, k] bool
    unfinished [b'] int64, which of the b sentences go on
    """
    sentences, rows, tokens, totals = (each[unfinished] for each in candidates)
    ended = ended[unfinished]
    # A stable sort puts what has ended last and keeps the order of the rest. With a vocabulary
    # smaller than the beam the rest can be too few; what has ended is then dead weight.
    order = ended.to(torch.int8).argsort(dim=1, stable=True)[:, :beam]
    totals[..., -1].masked_fill_(ended, -torch.inf)
    return _Beam(sentences, rows.gather(1, order), _pick(tokens, order), _pick(totals, order))


def _pick(x: Tensor, index: Tensor) -> Tensor:
    """x [b, W, t], index [b, k] -> [b, k, t]."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))


class _Finished:
    """Up to `beam` finished hypotheses for each of B sentences, in the order they ended."""

    def __init__(self, first: Tensor, beam: int, max_len: int) -> None:
        B = len(first)
        self.beam = beam
        self.counts = first.new_zeros(B)
        self.lengths = first.new_zeros(B, beam)
        self.tokens = first.new_zeros(B, beam, max_len)
        self.logprobs = torch.zeros_like(self.tokens, dtype=torch.float64)
        self.scores = torch.zeros_like(self.lengths, dtype=torch.float64)

    def add(self, candidates: _Beam, ended: Tensor, divisor: float) -> None:
        """Those of the first `beam` candidates that have ended [b, k], while there is room."""
        totals = candidates.totals
        ended = ended[:, : self.beam] & (totals[:, : self.beam, -1] > -torch.inf)
        slots = self.counts[candidates.sentences, None] + ended.cumsum(1) - 1
        row, column = (ended & (slots < self.beam)).nonzero(as_tuple=True)
        place = candidates.sentences[row], slots[row, column]
        length = totals.shape[-1] - 1
        self.lengths[place] = length
        self.tokens[(*place, slice(length))] = candidates.tokens[row, column, 1:]
        sums = totals[row, column].double()
        self.logprobs[(*place, slice(length))] = sums.diff(dim=-1)
        self.scores[place] = sums[:, -1] / divisor
        self.counts.index_add_(0, place[0], torch.ones_like(place[0]))

    def hypotheses(self) -> list[list[Hypothesis]]:
        """As plain values, best first."""
        lengths, tokens = self.lengths.tolist(), self.tokens.tolist()
        logprobs, scores = self.logprobs.tolist(), self.scores.tolist()
        return [
            sorted(
                (
                    Hypothesis(
                        tokens[b][i][: lengths[b][i]], scores[b][i], logprobs[b][i][: lengths[b][i]]
                    )
                    for i in range(count)
                ),
                key=lambda hypothesis: -hypothesis.score,
            )
            for b, count in enumerate(self.counts.tolist())
        ]
