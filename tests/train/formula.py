"""The smoothed loss by its formula, and what tests of training share."""

import math
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import pytest
from torch import Tensor, nn

from lightconv.data import PAD, Batch
from lightconv.train import Group, Record, Trainer


def smoothed(logits: Tensor, target: Tensor, smoothing: float = 0.1) -> tuple[Tensor, int]:
    """sum over tokens of (1 - smoothing) * nll(target) + smoothing / V * sum_v nll(v); tokens."""
    nll = -logits.flatten(0, 1).log_softmax(-1)
    rows = target.flatten()
    each = (1 - smoothing) * nll.gather(1, rows[:, None])[:, 0] + smoothing * nll.mean(1)
    return each[rows != PAD].sum(), int((rows != PAD).sum())


def observe(
    patch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    before: Callable[[Any], object] = lambda self: None,
    after: Callable[[Any], object] = lambda self: None,
) -> None:
    """Every call of a method is preceded and followed by these."""
    real = getattr(owner, name)

    def call(self: Any, *args: Any, **options: Any) -> Any:
        before(self)
        found = real(self, *args, **options)
        after(self)
        return found

    patch.setattr(owner, name, call)


class Overflow(Group):
    """The gradient has an infinity at these updates, as fp16 would give."""

    def __init__(self, *steps: int) -> None:
        self.steps = steps
        self.seen = 0

    def norm(self, model: nn.Module) -> Tensor:
        self.seen += 1
        if self.seen in self.steps:
            next(model.parameters()).grad[0, 0] = math.inf
        return super().norm(model)


def fit(trainer: Trainer, batches: Iterable[Batch]) -> list[Record]:
    """Every batch is an update, until `max_steps`."""
    left = trainer.config.max_steps - trainer.step
    return [trainer.update([batch]) for batch in islice(batches, left)]
