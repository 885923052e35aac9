"""Batches: the plan of an epoch, the rows of a batch, and the batch as tensors.

The order of an epoch is a function of (seed, epoch) alone. It is cut into updates, runs of batches
for one step of the optimiser, before ranks take their shares: rank r of n takes the batches r,
r + n, r + 2n, ... of each update. So an update has the same examples for any number of ranks.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightconv.data.store import PAIR, TEXT, Store
from lightconv.data.vocabulary import EOS, PAD

TooLong = Literal["error", "alone"]


class Batch(NamedTuple):
    """Inputs and targets of a model, padded on the right.

    inputs  arguments of the model, int64: (source [B, S], target_in [B, T]), where each source
            ends with EOS, or (tokens [B, T],); target_in and tokens begin with EOS
    target  [B, T] int64, the token to predict at each position
    rows    [B] int64, numbers of the examples in their split, if they have some
    """

    inputs: tuple[Tensor, ...]
    target: Tensor
    rows: Tensor | None = None

    @property
    def tokens(self) -> int:
        """Number of target tokens, without padding."""
        return int((self.target != PAD).sum())

    @property
    def positions(self) -> int:
        """Positions of the largest part, padding included."""
        return max(part.numel() for part in (*self.inputs, self.target))

    def cut(self, rows: slice) -> "Batch":
        """Some of the rows, without columns of padding only."""
        numbers = None if self.rows is None else self.rows[rows]
        parts = [part[rows] for part in (*self.inputs, self.target)]
        *inputs, target = (part[:, : int((part != PAD).sum(1).max())] for part in parts)
        return Batch(tuple(inputs), target, numbers)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """The batch on a device; `rows` stay where they are."""
        inputs = tuple(part.to(device, non_blocking=non_blocking) for part in self.inputs)
        return Batch(inputs, self.target.to(device, non_blocking=non_blocking), self.rows)


class Sentences:
    """One sentence per row, input from EOS on, target up to EOS."""

    def __init__(self, store: Store, *, side: str = TEXT[0]) -> None:
        self._column = store.column(side)

    def lengths(self) -> tuple[NDArray[Any], ...]:
        """Positions of each row, EOS included: [examples]."""
        return (self._column.lengths() + np.uint32(1),)

    def make(self, rows: NDArray[Any]) -> Batch:
        """The batch of the examples with those numbers [B]."""
        rows = rows.astype(np.int64)
        tokens, sizes = self._column.take(rows)
        T = int(sizes.max(initial=0)) + 1
        target = np.full((len(rows), T), PAD, dtype=np.int64)
        target[np.arange(T) < sizes[:, None]] = tokens
        read = np.full((len(rows), T), PAD, dtype=np.int64)
        read[:, 0] = EOS
        read[:, 1:] = target[:, :-1]
        target[np.arange(len(rows)), sizes] = EOS
        return Batch((torch.from_numpy(read),), torch.from_numpy(target), torch.from_numpy(rows))


class Pairs:
    """Source and target, each sentence ended by EOS."""

    def __init__(self, store: Store) -> None:
        self._source, self._target = (Sentences(store, side=side) for side in PAIR)

    def lengths(self) -> tuple[NDArray[Any], ...]:
        return *self._source.lengths(), *self._target.lengths()

    def make(self, rows: NDArray[Any]) -> Batch:
        source, target = self._source.make(rows), self._target.make(rows)
        return Batch((source.target, *target.inputs), target.target, target.rows)


class Position(NamedTuple):
    """The next batch of a run, in the global order of an epoch."""

    seed: int
    epoch: int = 0
    batch: int = 0


@dataclass(frozen=True)
class Epoch:
    """All batches of an epoch, in an order that all ranks share: `epoch[i]` are rows [B].

    tokens  target tokens of each batch, EOS included
    """

    _order: NDArray[Any]
    _bounds: NDArray[np.int64]
    _sequence: NDArray[Any]
    tokens: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self._sequence)

    def __getitem__(self, index: int) -> NDArray[Any]:
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        batch = int(self._sequence[index])
        return self._order[self._bounds[batch] : self._bounds[batch + 1]]

    def updates(self, *, tokens: int = 0, batches: int = 0) -> list[int]:
        """Bounds of updates: update i has the batches bounds[i] to bounds[i + 1].

        An update has so many `batches`, or ends with the batch that reaches `tokens` target tokens;
        the last one of the epoch may have fewer.
        """
        if min(tokens, batches) < 0 or (tokens > 0) == (batches > 0):
            raise ValueError(f"an update of {tokens=} and {batches=}, expected one of them above 0")
        if batches:
            return [*range(0, len(self), batches), len(self)]
        ends = np.cumsum(self.tokens).tolist()
        bounds = [0]
        while bounds[-1] < len(self):
            before = ends[bounds[-1] - 1] if bounds[-1] else 0
            bounds.append(min(bisect_left(ends, before + tokens) + 1, len(self)))
        return bounds


class BatchPlan:
    """Batches of examples of similar lengths; every example is in one of them.

    lengths     [examples] int per side: positions of a row, EOS included; the target last
    max_tokens  bound of the sentences of a batch times the longest of them on either side
    too_long    an example of more than `max_tokens` is an "error", or a batch "alone"

    batches  their number
    padding  share of positions that are padding, on all sides
    """

    def __init__(
        self, lengths: Sequence[NDArray[Any]], *, max_tokens: int, too_long: TooLong = "error"
    ) -> None:
        if max_tokens < 1:
            raise ValueError(f"{max_tokens=} must be at least 1")
        if too_long not in ("error", "alone"):
            raise ValueError(f"{too_long=} must be one of error, alone")
        self._longest, self._second = _keys(lengths)
        over = np.flatnonzero(self._longest > max_tokens)
        if too_long == "error" and len(over):
            raise ValueError(
                f"example {over[0]} takes {self._longest[over[0]]} positions with EOS (longest of "
                f"all {self._longest.max()}, too long {len(over)} of {len(self._longest)}), "
                f"expected at most {max_tokens=}. Raise max_tokens, or leave such examples out"
            )
        self._bounds = _cut(self._longest, max_tokens)
        self.batches = len(self._bounds) - 1
        # Examples of one key have equal lengths on every side: these sums hold for every epoch.
        order = self._sort(self._rows())
        starts, counts = self._bounds[:-1], np.diff(self._bounds)
        padded = real = 0
        for side in lengths:
            sorted_ = side[order]
            widths = np.maximum.reduceat(sorted_, starts).astype(np.int64)
            self._tokens = np.add.reduceat(sorted_, starts, dtype=np.int64)
            padded += int((widths * counts).sum())
            real += int(self._tokens.sum())
        self.padding = 1.0 - real / padded

    def epoch(self, seed: int, epoch: int) -> Epoch:
        """The batches of an epoch: examples of equal lengths and whole batches are shuffled."""
        random = np.random.default_rng([seed, epoch])
        rows = self._rows()
        random.shuffle(rows)
        return self._epoch(rows, random.permutation(self.batches))

    def by_length(self) -> Epoch:
        """The batches from the longest to the shortest, for validation and decoding."""
        return self._epoch(self._rows(), np.arange(self.batches)[::-1])

    def _epoch(self, rows: NDArray[Any], sequence: NDArray[Any]) -> Epoch:
        return Epoch(self._sort(rows), self._bounds, sequence, self._tokens[sequence])

    def _rows(self) -> NDArray[np.uint32]:
        return np.arange(len(self._longest), dtype=np.uint32)

    def _sort(self, rows: NDArray[Any]) -> NDArray[Any]:
        # Keys of 16 bits are sorted by radix, in linear time.
        return np.asarray(rows[np.lexsort((self._second[rows], self._longest[rows]))])


def _keys(lengths: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Sort keys: the longest side, then the difference between the first side and the last.

    The second key rises and falls in turns, so that hardly a batch holds both of its extremes.
    """
    longest = np.maximum.reduce(lengths)
    if not len(longest):
        raise ValueError("no examples, expected at least one to make a batch of")
    difference = lengths[0].astype(np.int32) - lengths[-1].astype(np.int32)
    np.negative(difference, out=difference, where=longest % 2 == 0)
    difference -= difference.min()
    return _narrow(longest), _narrow(difference)


def _narrow(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(np.uint16 if values.max() < 2**16 else np.uint32)


def _cut(longest: NDArray[Any], max_tokens: int) -> NDArray[np.int64]:
    """Bounds of the batches of examples that are sorted by their longest side."""
    lengths, counts = np.unique(longest, return_counts=True)
    found = [np.zeros(1, dtype=np.int64)]
    start = begin = 0  # of the batch that is not full, and of the examples of this length
    for length, count in zip(lengths.tolist(), counts.tolist(), strict=True):
        room = max(1, max_tokens // length)
        # A batch of shorter sentences may have more than fit with one of these.
        if begin - start >= room:
            start = begin
            found.append(np.array([start]))
        begin += count
        full = (begin - start) // room
        found.append(start + room * np.arange(1, full + 1))
        start += full * room
    if start < begin:
        found.append(np.array([begin]))
    return np.concatenate(found)


class Batches:
    """Examples and the plan of their batches."""

    def __init__(
        self, examples: Pairs | Sentences, *, max_tokens: int, too_long: TooLong = "error"
    ) -> None:
        self.examples = examples
        self.plan = BatchPlan(examples.lengths(), max_tokens=max_tokens, too_long=too_long)

    def by_length(self, *, rank: int = 0, ranks: int = 1) -> Iterator[Batch]:
        """Every example once, the longest first; `rows` restore the order."""
        order = self.plan.by_length()
        for index in range(rank, len(order), ranks):
            yield self.examples.make(order[index])
