"""Several models as one: the mean of their probabilities.

runner = Ensemble([Engine(first), second])      # an engine or a model each
state = runner.start(runner.encode(source), max_len)
beam_search(runner.step, state, first, reorder=runner.reorder, ...)
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightconv import mixers
from lightconv.decode.beam import StepFunction
from lightconv.decode.engine import Engine
from lightconv.models import LanguageModel, Seq2Seq
from lightconv.ops.check import accumulate_dtype


def ensemble_steps(steps: Sequence[StepFunction[Any]]) -> StepFunction[tuple[Any, ...]]:
    """A step whose state is the tuple of the models' states, and which `mixers.reorder` can move.

    Each of `steps` gives tokens [N, n] scores [N, n, V] of the same vocabulary. If all return
    attention, so does the result: the mean.
    """
    if not steps:
        raise ValueError("an ensemble needs at least one step")

    def step(
        tokens: Tensor, states: tuple[Any, ...]
    ) -> tuple[Tensor, tuple[Any, ...]] | tuple[Tensor, tuple[Any, ...], Tensor]:
        results = [each(tokens, state) for each, state in zip(steps, states, strict=True)]
        scores = _mean_logprobs([result[0] for result in results])
        after = tuple(result[1] for result in results)
        looks = [result[2] for result in results if len(result) == 3]
        if len(looks) < len(results):
            return scores, after
        return scores, after, torch.stack(looks).mean(0)

    return step


class Ensemble:
    """Several engines or models, stepped as if they were one; a state is a tuple of theirs."""

    def __init__(self, runners: Sequence[Engine | Seq2Seq | LanguageModel]) -> None:
        self.runners: tuple[Any, ...] = tuple(runners)
        self.step = ensemble_steps([runner.step for runner in self.runners])

    def step_attending(self, tokens: Tensor, states: tuple[Any, ...]) -> Any:
        """As `step`, with the mean of their attention; for models, not engines."""
        return ensemble_steps([runner.step_attending for runner in self.runners])(tokens, states)

    def encode(self, source: Tensor) -> tuple[Any, ...]:
        """source [B, S] int64."""
        return tuple(runner.encode(source) for runner in self.runners)

    def start(self, sources: tuple[Any, ...] | int, max_len: int) -> tuple[Any, ...]:
        """The state before the first token of encoded sources, or of that many texts."""
        each = (sources,) * len(self.runners) if isinstance(sources, int) else sources
        return tuple(
            runner.start(source, max_len) for runner, source in zip(self.runners, each, strict=True)
        )

    def reorder(self, states: tuple[Any, ...], rows: Tensor) -> tuple[Any, ...]:
        """The states of those rows [N'] int64."""
        return tuple(
            runner.reorder(state, rows)
            if isinstance(runner, Engine)
            else mixers.reorder(state, rows)
            for runner, state in zip(self.runners, states, strict=True)
        )


def _mean_logprobs(scores: Sequence[Tensor]) -> Tensor:
    """log of the mean of the softmaxes: scores [N, n, V] each -> [N, n, V]."""
    sizes = {each.shape[-1] for each in scores}
    if len(sizes) > 1:
        raise ValueError(
            f"the models of an ensemble must have one vocabulary, got {sorted(sizes)} words"
        )
    logprobs = [each.log_softmax(-1, dtype=accumulate_dtype(each.dtype)) for each in scores]
    return torch.stack(logprobs).logsumexp(0) - math.log(len(logprobs))
