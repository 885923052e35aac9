"""Which examples stand together in a batch, and in which order batches come; no torch.

The order of an epoch is a function of (seed, epoch) alone. It is cut into updates, runs of batches
that make one step of the optimiser, before any rank takes its share: rank r of n takes the batches
r, r + n, r + 2n, ... of each update. So the set of an update is the same for any number of ranks,
and where n divides the number of its batches every rank has as many.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

TooLong = Literal["error", "skip", "alone"]


class Position(NamedTuple):
    """Where a run stands in its data: the next batch of an epoch's global order."""

    seed: int
    epoch: int = 0
    batch: int = 0


class Epoch:
    """All batches of an epoch, in an order that every rank shares: `epoch[i]` are rows [B]."""

    def __init__(
        self,
        order: NDArray[Any],
        bounds: NDArray[np.int64],
        sequence: NDArray[Any],
        tokens: NDArray[np.int64],
    ) -> None:
        self._order = order
        self._bounds = bounds
        self._sequence = sequence
        # Target tokens of each batch, EOS included.
        self.tokens = tokens[sequence]

    def __len__(self) -> int:
        return len(self._sequence)

    def __getitem__(self, index: int) -> NDArray[Any]:
        """The examples of one batch; costs the same for any `index`."""
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        batch = int(self._sequence[index])
        return self._order[self._bounds[batch] : self._bounds[batch + 1]]

    def updates(self, *, tokens: int | None = None, batches: int = 1) -> list[int]:
        """Where updates begin, and the end: update i has the batches bounds[i] to bounds[i + 1].

        tokens   an update ends as soon as it has that many target tokens
        batches  without `tokens`: every update has that many batches

        The last one has what is left: no update reaches into the next epoch.
        """
        if min(1 if tokens is None else tokens, batches) < 1:
            raise ValueError(f"an update of {tokens=}, {batches=} must have at least 1")
        if tokens is None:
            return [*range(0, len(self), batches), len(self)]
        ends = np.cumsum(self.tokens).tolist()
        bounds = [0]
        while bounds[-1] < len(self):
            before = ends[bounds[-1] - 1] if bounds[-1] else 0
            bounds.append(min(bisect_left(ends, before + tokens) + 1, len(self)))
        return bounds


class BatchPlan:
    """Batches of about as long examples: every example in one of them.

    lengths        for each side [examples] int: positions of a row, EOS included; target last
    max_tokens     sentences times the longest of them on either side is at most this
    max_sentences  and so many sentences at most
    multiple       a batch has a multiple of so many sentences, wherever it has more
    too_long       what happens to an example of more than `max_tokens`: "error", "skip" leaves it
                   out, "alone" makes it a batch of its own

    batches, examples, skipped   how many
    padding                      the share of positions on all sides that hold nothing
    """

    def __init__(
        self,
        lengths: Sequence[NDArray[Any]],
        *,
        max_tokens: int,
        max_sentences: int | None = None,
        multiple: int = 1,
        too_long: TooLong = "error",
    ) -> None:
        for name, value in (
            ("max_tokens", max_tokens),
            ("max_sentences", 1 if max_sentences is None else max_sentences),
            ("multiple", multiple),
        ):
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if too_long not in get_args(TooLong):
            raise ValueError(f"{too_long=} must be one of {', '.join(get_args(TooLong))}")
        self._longest, self._second = _keys(lengths)
        self._rows = _select(self._longest, max_tokens, too_long)
        self.examples = len(self._rows)
        self.skipped = len(self._longest) - len(self._rows)
        self._bounds = _cut(
            *np.unique(self._longest[self._rows], return_counts=True),
            max_tokens=max_tokens,
            max_sentences=max_sentences,
            multiple=multiple,
        )
        self.batches = len(self._bounds) - 1
        # Examples of one key are as long on every side: these sums are those of every epoch.
        order = self._sort(self._rows)
        starts, counts = self._bounds[:-1], np.diff(self._bounds)
        padded = 0
        real = 0
        for side in lengths:
            of_batches = side[order]
            widths = np.maximum.reduceat(of_batches, starts).astype(np.int64)
            self._tokens = np.add.reduceat(of_batches, starts, dtype=np.int64)
            padded += int((widths * counts).sum())
            real += int(self._tokens.sum())
        self.padding = 1.0 - real / padded

    def epoch(self, seed: int, epoch: int) -> Epoch:
        """The batches of an epoch: examples of equal lengths and whole batches change places."""
        random = np.random.default_rng([seed, epoch])
        rows = self._rows.copy()
        random.shuffle(rows)
        sequence = random.permutation(self.batches)
        return Epoch(self._sort(rows), self._bounds, sequence, self._tokens)

    def by_length(self) -> Epoch:
        """The batches from the longest to the shortest, for validation and decoding."""
        sequence = np.arange(self.batches)[::-1]
        return Epoch(self._sort(self._rows), self._bounds, sequence, self._tokens)

    def _sort(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Rows by their lengths; those of equal lengths keep their order."""
        # Keys of 16 bits are sorted by radix, in linear time.
        order = np.lexsort((self._second[rows], self._longest[rows]))
        found: NDArray[Any] = rows[order]
        return found


def _keys(lengths: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
    """By what examples are sorted: the longest side, then by how much the first is longer.

    The second key runs up and down in turns: where the longest side grows by one, the other sides
    go on where they were, so that hardly a batch holds both ends of them.
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


def _select(longest: NDArray[Any], max_tokens: int, too_long: TooLong) -> NDArray[np.uint32]:
    """The examples that are put into batches: [n]."""
    over = longest > max_tokens
    count = 0 if too_long == "alone" else int(np.count_nonzero(over))
    if count == 0:
        return np.arange(len(longest), dtype=np.uint32)
    first = int(over.argmax())
    if too_long == "error":
        raise ValueError(
            f"example {first} takes {longest[first]} positions with EOS (longest of all "
            f"{longest.max()}, too long {count} of {len(longest)}), expected at most "
            f"max_tokens={max_tokens}. Raise max_tokens, or leave such examples out"
        )
    if count == len(longest):
        raise ValueError(
            f"all {count} examples are too long, the shortest takes {longest.min()} positions "
            f"with EOS, expected at most max_tokens={max_tokens}. Raise max_tokens"
        )
    return np.flatnonzero(~over).astype(np.uint32)


def _cut(
    lengths: NDArray[Any],
    counts: NDArray[np.int64],
    *,
    max_tokens: int,
    max_sentences: int | None,
    multiple: int,
) -> NDArray[np.int64]:
    """Where batches begin, and the end, among examples sorted by length.

    lengths  each length that occurs, in rising order
    counts   how often
    """
    found = [np.zeros(1, dtype=np.int64)]
    start = begin = 0  # of the batch that is not full, and of the examples of this length
    for length, count in zip(lengths.tolist(), counts.tolist(), strict=True):
        room = max(1, max_tokens // length)
        if max_sentences is not None:
            room = min(room, max_sentences)
        room = _whole(room, multiple)
        # A batch of shorter sentences may have more than would fit with one of these.
        while begin - start >= room:
            start += _whole(begin - start, multiple)
            found.append(np.array([start]))
        begin += count
        full = (begin - start) // room
        found.append(start + room * np.arange(1, full + 1))
        start += full * room
    if start < begin:
        found.append(np.array([begin]))
    return np.concatenate(found)


def _whole(sentences: int, multiple: int) -> int:
    """The largest multiple that is not more; less than one stays."""
    return sentences - sentences % multiple if sentences >= multiple else sentences
