"""When memory does not suffice: how that looks, and how a batch becomes two."""

import torch
from torch import Tensor

from lightconv.data import PAD, Batch

# What torch says on a processor, where the error has no class of its own.
WORDS = ("DefaultCPUAllocator", "can't allocate memory", "not enough memory", "out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice, on whatever device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in WORDS)


def positions(batch: Batch) -> int:
    """How many positions the largest part of a batch has, padding included."""
    return max(part.numel() for part in (*batch.inputs, batch.target))


def halve(batch: Batch) -> tuple[Batch, Batch]:
    """The first and the second half of the rows, each without columns of padding only."""
    middle = len(batch.target) // 2
    return _cut(batch, slice(middle)), _cut(batch, slice(middle, None))


def _cut(batch: Batch, rows: slice) -> Batch:
    inputs = tuple(_trim(part[rows]) for part in batch.inputs)
    return Batch(
        inputs, _trim(batch.target[rows]), None if batch.rows is None else batch.rows[rows]
    )


def _trim(part: Tensor) -> Tensor:
    """[B, T] padded on the right -> [B, the longest of these]."""
    return part[:, : int((part != PAD).sum(1).max())]
