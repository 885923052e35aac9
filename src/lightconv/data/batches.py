"""Batches of tensors, and the examples and the plan that they are made from."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from lightconv.data.examples import Arrays, Examples
from lightconv.data.plan import BatchPlan, Epoch, TooLong
from lightconv.data.vocabulary import PAD


class Batch(NamedTuple):
    """What a model reads and what it should say, padded on the right.

    inputs  the arguments of the model, int64: (source [B, S], target_in [B, T]), where each source
            ends with EOS, or (tokens [B, T],); what is read to predict begins with EOS
    target  [B, T] int64, what should be said at each position
    rows    [B] int64, the numbers of the examples in their split, if they have such
    """

    inputs: tuple[Tensor, ...]
    target: Tensor
    rows: Tensor | None = None

    @property
    def tokens(self) -> int:
        """How many target tokens there are, padding left out."""
        return int((self.target != PAD).sum())

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """The batch on a device; `rows` stay where they are."""
        inputs = tuple(part.to(device, non_blocking=non_blocking) for part in self.inputs)
        return Batch(inputs, self.target.to(device, non_blocking=non_blocking), self.rows)


def to_tensors(arrays: Arrays) -> Batch:
    """The batch in the memory of its arrays."""
    inputs = tuple(map(torch.from_numpy, arrays.inputs))
    return Batch(inputs, torch.from_numpy(arrays.target), torch.from_numpy(arrays.rows))


class Batches:
    """Examples and the plan of their batches; the options are those of `BatchPlan`."""

    def __init__(
        self,
        examples: Examples,
        *,
        max_tokens: int,
        max_sentences: int | None = None,
        multiple: int = 1,
        too_long: TooLong = "error",
    ) -> None:
        self.examples = examples
        self.plan = BatchPlan(
            examples.lengths(),
            max_tokens=max_tokens,
            max_sentences=max_sentences,
            multiple=multiple,
            too_long=too_long,
        )

    def make(self, rows: NDArray[Any]) -> Batch:
        """The batch of the examples with those numbers [B]."""
        return to_tensors(self.examples.make(rows))

    def epoch(self, seed: int, epoch: int) -> Epoch:
        """The global order of an epoch."""
        return self.plan.epoch(seed, epoch)

    def by_length(self, *, rank: int = 0, ranks: int = 1) -> Iterator[Batch]:
        """Every example once, the longest first; `rows` say how to put results back in order."""
        order = self.plan.by_length()
        for index in range(rank, len(order), ranks):
            yield self.make(order[index])
