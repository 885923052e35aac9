"""Beam search over anything that steps: it holds words and sums, the state is opaque to it.

At each position a sentence has W live hypotheses (one at first, then `beam`). Their W x V
continuations compete and the best 2 x beam are candidates. Those of the first `beam` candidates
that end with EOS are finished; the first `beam` that do not end live on. A sentence with `beam`
finished hypotheses leaves the batch. Of equal sums the one whose past was better comes first, then
the lower word.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from lightconv import mixers
from lightconv.decode.config import DecodeConfig
from lightconv.decode.rules import PENALTIES, Lengths, Rules, power, relative_lengths
from lightconv.decode.trace import Hypothesis, Trace, best_first

__all__ = ["Hypothesis", "Reorder", "StepFunction", "beam_options", "beam_search"]

S = TypeVar("S")
# tokens [N, 1], state -> logits [N, 1, V], next state and, for alignments, attention [N, 1, S].
StepFunction = Callable[[Tensor, S], tuple[Tensor, S] | tuple[Tensor, S, Tensor]]
# state, rows [N'] -> the state of those rows.
Reorder = Callable[[S, Tensor], S]


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
    length_penalty: float | Callable[[int], float] = 1.0,
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
                   times. A third result, attention [N, 1, S], is handed out with the hypotheses
    state          of B rows, before the first token
    first          [B] int64, what `step` reads first (EOS); not part of a hypothesis
    max_len        the longest outputs, one for all or [B]; `min_len` likewise; both count EOS
    pad, forbidden never chosen
    length_penalty of a length with EOS, which divides the sum of log-probabilities to give the
                   score; a number alpha means length ** alpha
    coverage       times `rules.coverage` is added to the score; needs attention and the source's
                   padding [B, S] bool
    block_ngrams   no n-gram of this length comes twice; 0 allows any
    prefix         for each sentence the words it begins with, which count like any others
    reorder        state, rows [N'] int64 -> the state of those rows; not called if none moved
    """
    nbest = _check_beam(beam, nbest)
    rules = Rules(
        first,
        eos=eos,
        max_len=max_len,
        min_len=min_len,
        forbidden=forbidden if pad is None else (*forbidden, pad),
        block_ngrams=block_ngrams,
        prefix=prefix,
    )
    penalty = length_penalty if callable(length_penalty) else partial(power, alpha=length_penalty)
    with torch.inference_mode():
        trace = _search(step, state, first, rules, beam, reorder)
        found = trace.hypotheses(penalty, beta=coverage, padding=padding)
    require_all(found)
    return best_first(found, nbest)


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
    relative = relative_lengths(source_lengths, config.min_len_ratio, 0)
    return {
        "beam": config.beam,
        "max_len": relative_lengths(source_lengths, config.max_len_ratio, config.max_len_plus),
        "min_len": [max(config.min_len, length) for length in relative],
        "length_penalty": lambda length: penalty(length, config.alpha),
        "coverage": config.coverage,
        "block_ngrams": config.block_ngrams,
        "eos": eos,
        "pad": pad,
        "forbidden": () if unknown is None or config.allow_unknown else (unknown,),
    }


class _Live(NamedTuple):
    """W hypotheses of each of b sentences, best first; or candidates to be such.

    sentences [b] int64, their places in the batch
    rows      [b, W] int64, the row of the step before that each of them continues
    words     [b, W] int64, what it reads next
    totals    [b, W] float64, the sum of log-probabilities; -inf marks what is no hypothesis but
              fills up the rectangle
    """

    sentences: Tensor
    rows: Tensor
    words: Tensor
    totals: Tensor


def _search(
    step: StepFunction[S], state: S, first: Tensor, rules: Rules, beam: int, reorder: Reorder[S]
) -> Trace:
    """All steps of all sentences."""
    # With one hypothesis the second candidate is never looked at.
    width = 2 * beam if beam > 1 else 1
    trace = Trace(len(first), rules.eos)
    order = torch.arange(len(first) * beam, device=first.device)
    live = _start(first)
    counts = torch.zeros_like(first)
    tokens = None
    for length in range(1, rules.longest + 1):
        logits, state, *attention = step(live.words.reshape(-1, 1), state)
        trace.add(live.words, live.totals, live.rows, attention[0] if attention else None)
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


def _start(first: Tensor) -> _Live:
    """One empty hypothesis per sentence."""
    sentences = torch.arange(len(first), device=first.device)
    totals = torch.zeros_like(first, dtype=torch.float64)
    return _Live(sentences, sentences[:, None], first[:, None], totals[:, None])


def _expand(live: _Live, values: Tensor, words: Tensor, width: int, order: Tensor) -> _Live:
    """The best `width` continuations of each sentence.

    values, words [b * W, k]
    order         0, 1, 2, ... , at least b of them
    """
    b, W = live.words.shape
    k = values.shape[1]
    # Sums in float64: the log-probability of a token is what two of them differ by.
    totals = live.totals[..., None] + values.reshape(b, W, k)
    totals, index = totals.view(b, W * k).sort(dim=1, descending=True, stable=True)
    totals, index = totals[:, :width], index[:, :width]
    rows = index // k + order[:b, None] * W
    return _Live(live.sentences, rows, words.reshape(b, W * k).gather(1, index), totals)


def _survive(candidates: _Live, ended: Tensor, beam: int) -> _Live:
    """The first `beam` candidates of each sentence that have not ended; ended [b, k] bool."""
    # A stable sort puts what has ended last and keeps the order of the rest. With a vocabulary
    # smaller than the beam the rest can be too few; what has ended is then dead weight.
    order = ended.to(torch.int8).argsort(dim=1, stable=True)[:, :beam]
    totals = candidates.totals.masked_fill(ended, -torch.inf)
    rows, words, totals = (each.gather(1, order) for each in (*candidates[1:3], totals))
    return _Live(candidates.sentences, rows, words, totals)


def _finish(candidates: _Live, ended: Tensor, counts: Tensor, trace: Trace, beam: int) -> None:
    """Those of the first `beam` candidates that have ended are finished, while there is room.

    ended  [b, k] bool
    counts [B] int64: how many each sentence has, raised in place
    """
    ended = ended[:, :beam] & (candidates.totals[:, :beam] > -torch.inf)
    nth = counts[candidates.sentences, None] + ended.cumsum(1)
    place = (ended & (nth <= beam)).nonzero(as_tuple=True)
    sentences = candidates.sentences[place[0]]
    trace.end(sentences, candidates.rows[place], candidates.totals[place])
    counts.index_add_(0, sentences, torch.ones_like(sentences))


def extend(tokens: Tensor | None, rows: Tensor, words: Tensor) -> Tensor:
    """What each row has read, without what was read first.

    tokens  [N, t] of the step before, None before the first step
    rows    [N'] int64, which of them go on; words [N'], what they read now
    returns [N', t + 1]; [N', 0] at the first step
    """
    if tokens is None:
        return words.new_zeros(len(words), 0)
    return torch.cat([tokens[rows], words[:, None]], dim=1)


def move(state: S, rows: Tensor, order: Tensor, reorder: Reorder[S]) -> S:
    """The state of those rows, out of `order`, which are all; untouched if every row stays."""
    return state if torch.equal(rows, order) else reorder(state, rows)


def require_all(found: Sequence[Sequence[Hypothesis]]) -> None:
    """Raises ValueError if a sentence has no hypothesis."""
    for b, hypotheses in enumerate(found):
        if not hypotheses:
            raise ValueError(
                f"sentence {b} has no output: every one has probability zero or is not a number. "
                "Check the model's weights, and whether prefix, n-gram blocking and lengths "
                "contradict each other"
            )


def _check_beam(beam: int, nbest: int | None) -> int:
    if beam < 1:
        raise ValueError(f"beam must be at least 1, got {beam}")
    nbest = beam if nbest is None else nbest
    if not 1 <= nbest <= beam:
        raise ValueError(f"nbest must be from 1 to beam={beam}, got {nbest}")
    return nbest
