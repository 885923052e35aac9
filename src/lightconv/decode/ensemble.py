"""Several models as one: the mean of their probabilities."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightconv.decode.beam import StepFunction
from lightconv.ops.check import accumulate_dtype


def ensemble_steps(steps: Sequence[StepFunction[Any]]) -> StepFunction[tuple[Any, ...]]:
    """A step whose state is the tuple of the models' states, and which `mixers.reorder` can move.

    Each of `steps` has the same vocabulary. If all return attention, so does the result: the mean.
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


def _mean_logprobs(scores: Sequence[Tensor]) -> Tensor:
    """log of the mean of the softmaxes: scores [N, n, V] each -> [N, n, V]."""
    sizes = {each.shape[-1] for each in scores}
    if len(sizes) > 1:
        raise ValueError(
            f"the models of an ensemble must have one vocabulary, got {sorted(sizes)} words"
        )
    logprobs = [each.log_softmax(-1, dtype=accumulate_dtype(each.dtype)) for each in scores]
    return torch.stack(logprobs).logsumexp(0) - math.log(len(logprobs))
