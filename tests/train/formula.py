"""The smoothed loss by its formula, on logits that are there as a whole."""

from collections.abc import Iterable
from itertools import islice

from torch import Tensor

from lightconv.data import PAD, Batch
from lightconv.train import Record, Trainer


def smoothed(logits: Tensor, target: Tensor, smoothing: float = 0.1) -> tuple[Tensor, int]:
    """sum over tokens of (1 - smoothing) * nll(target) + smoothing / V * sum_v nll(v); tokens."""
    nll = -logits.flatten(0, 1).log_softmax(-1)
    rows = target.flatten()
    each = (1 - smoothing) * nll.gather(1, rows[:, None])[:, 0] + smoothing * nll.mean(1)
    return each[rows != PAD].sum(), int((rows != PAD).sum())


def fit(trainer: Trainer, batches: Iterable[Batch]) -> list[Record]:
    """Every batch is an update, until `max_steps`."""
    left = trainer.config.max_steps - trainer.step
    return [trainer.update([batch]) for batch in islice(batches, left)]
