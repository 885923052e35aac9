"""Sampling: outputs drawn at random instead of a search.

Every draw is a function of (seed of the sentence, number of the sample, position): it does not
depend on the batch of the sentence, and the first sample is the same however many follow.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from lightconv import mixers
from lightconv.decode.beam import Hypothesis, Live, Penalty, Reorder, Running, StepFunction
from lightconv.decode.options import SampleConfig
from lightconv.decode.rules import Lengths, Rules
from lightconv.ops.reference import random_bits
from lightconv.ops.vocabulary import topk

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
    running = Running(step, Draws(samples, config), length_penalty, 0.0, reorder)
    return running.run(state, first, rules.seeded(seeds))


class Draws:
    """Each hypothesis of a sentence continued by a word of its own draw."""

    def __init__(self, samples: int, config: SampleConfig) -> None:
        self.width = self.starts = self.ends = samples
        self._config = config

    def choose(self, running: Running[Any], logits: Tensor) -> Live:
        config, live, rules = self._config, running.live, running.rules
        # Strictly between 0 and 1: [b, samples] float64.
        draws = torch.arange(self.width, device=live.words.device) << 32
        draws = (draws + running.length).expand_as(live.words)
        uniform = (random_bits(rules.seeds[:, None], draws).double() + 0.5) / 2**32
        chances, known = running.allow(logits), None
        if config.top_k > 0:
            chances, known = topk(chances, min(config.top_k, logits.shape[1]))
        probs = (chances.double() / config.temperature).softmax(-1)
        place = choose(probs, uniform.flatten()[running.at], config.top_p)[:, None]
        words = running.spread(place if known is None else known.gather(1, place), 0)
        values = running.spread(chances.gather(1, place).double(), -torch.inf)
        totals = live.totals + values.view_as(live.totals)
        return Live(running.rows, words.view_as(live.words), totals)

    def survive(self, candidates: Live, ended: Tensor) -> Live:
        return candidates._replace(totals=candidates.totals.masked_fill(ended, -torch.inf))

    def order(self, found: list[tuple[int, Hypothesis]]) -> list[Hypothesis]:
        return [each for _, each in sorted(found, key=lambda pair: pair[0])]


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
