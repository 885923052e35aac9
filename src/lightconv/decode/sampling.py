"""Sampling: outputs drawn at random instead of a search.

Every draw is a function of (seed of the sentence, number of the sample, position): it does not
depend on the batch of the sentence, and the first sample is the same however many follow.
"""

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from lightconv import mixers
from lightconv.decode.beam import Hypothesis, Penalty, Reorder, StepFunction, Trace, extend, move
from lightconv.decode.options import SampleConfig
from lightconv.decode.rules import Lengths, Rules
from lightconv.ops.reference import random_bits

S = TypeVar("S")


def sample(
    step: StepFunction[S],
    state: S,
    first: Tensor,
    *,
    seeds: Sequence[int],
    max_len: Lengths,
    eos: int,
    samples: int = 1,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    pad: int | None = None,
    min_len: Lengths = 1,
    length_penalty: Penalty = 1.0,
    block_ngrams: int = 0,
    forbidden: Sequence[int] = (),
    prefix: Sequence[Sequence[int]] | None = None,
    reorder: Reorder[S] = mixers.reorder,
) -> list[list[Hypothesis]]:
    """For each of B sentences `samples` outputs, in the order of their numbers.

    first       [B] int64, the first input of `step` (EOS)
    seeds       of each sentence, 64 bits
    temperature divides the log-probabilities: below 1 probable words become more so
    top_k       only the most probable words may be drawn; 0 means all
    top_p       of these, only the most probable that together have this probability

    The rest is as for `beam_search`. Log-probabilities and scores are the model's own, whatever the
    temperature.
    """
    config = SampleConfig(temperature=temperature, top_k=top_k, top_p=top_p)
    if samples < 1:
        raise ValueError(f"samples={samples} must be at least 1")
    if len(seeds) != len(first):
        raise ValueError(f"seeds must be one for each of {len(first)} sentences, got {len(seeds)}")
    forbidden = forbidden if pad is None else (*forbidden, pad)
    rules = Rules(first, eos, max_len, min_len, forbidden, block_ngrams, prefix)
    # The same 64 bits as signed numbers.
    signed = [(seed + 2**63) % 2**64 - 2**63 for seed in seeds]
    keys = torch.tensor(signed, dtype=torch.int64, device=first.device)
    with torch.inference_mode():
        trace = _run(step, state, first, keys, rules, samples, config, reorder)
        found = trace.hypotheses(length_penalty)
    flat = [hypothesis for hypotheses in found for hypothesis in hypotheses]
    return [flat[b * samples : (b + 1) * samples] for b in range(len(first))]


def _run(
    step: StepFunction[S],
    state: S,
    first: Tensor,
    keys: Tensor,
    rules: Rules,
    samples: int,
    config: SampleConfig,
    reorder: Reorder[S],
) -> Trace:
    """All steps; sample n of sentence b is number b * samples + n of the trace."""
    B = len(first)
    trace = Trace(B * samples, rules.eos)
    numbers = torch.arange(B * samples, device=first.device)
    live = torch.arange(B, device=first.device)  # [b], the sentences that continue
    rows = live.repeat_interleave(samples)
    state = move(state, rows, live, reorder)
    words, totals = first[rows], torch.zeros_like(rows, dtype=torch.float64)
    unended = torch.ones_like(rows, dtype=torch.bool)
    tokens = None
    for length in range(1, rules.longest + 1):
        logits, state, *attention = step(words[:, None], state)
        trace.add(words, totals, rows, attention)
        if rules.block_ngrams > 0:
            tokens = extend(tokens, rows, words)
        # Strictly between 0 and 1: [b, samples] float64.
        draws = torch.arange(samples, device=rows.device) << 32
        uniform = (random_bits(keys[live, None], draws + length).double() + 0.5) / 2**32
        scores = logits[:, -1]
        if config.top_k > 0:
            chances, known = rules.best(scores, length, live, tokens, config.top_k)
            order = chances.argsort(dim=1, descending=True, stable=True)[:, : config.top_k]
            chances, known = chances.gather(1, order), known.gather(1, order)
        else:
            chances, known = rules.all(scores, length, live, tokens), None
        probs = (chances.double() / config.temperature).softmax(-1)
        place = choose(probs, uniform.flatten(), config.top_p)[:, None]
        words = (place if known is None else known.gather(1, place))[:, 0]
        values = chances.gather(1, place)[:, 0].double()
        totals = totals + values
        ended = unended & (words == rules.eos) & (totals > -torch.inf)
        order = rows = torch.arange(len(words), device=words.device)
        if bool(ended.any()):
            trace.end(numbers[ended], rows[ended], totals[ended])
            unended = unended & ~ended
            # A sentence leaves with the last of its samples: all sentences have the same number
            # of rows, which share the state of the source.
            going = unended.view(-1, samples).any(1)
            kept = going.repeat_interleave(samples)
            live, rows = live[going], rows[kept]
            numbers, unended = numbers[kept], unended[kept]
            words, totals = words[kept], totals[kept]
            if len(live) == 0:
                break
        if length < rules.longest:
            state = move(state, rows, order, reorder)
    return trace


def choose(probs: Tensor, uniform: Tensor, top_p: float = 1.0) -> Tensor:
    """Index of one of k by inverse transform: where a uniform number falls in the running sum.

    probs   [N, k], of sum 1
    uniform [N] in (0, 1)
    top_p   only the most probable that together reach this, at least one
    returns [N] int64
    """
    if top_p < 1.0:
        ordered, order = probs.sort(dim=1, descending=True, stable=True)
        beyond = ordered.cumsum(1)[:, :-1] >= top_p
        ordered[:, 1:].masked_fill_(beyond, 0.0)
        probs = torch.zeros_like(probs).scatter(1, order, ordered)
    upto = probs.cumsum(1)
    return (upto <= uniform[:, None] * upto[:, -1:]).sum(1).clamp(max=probs.shape[1] - 1)
