"""What stands in a row of a batch: a pair, a sentence, or a block of running text.

Numbers in, arrays out: which examples stand together is the plan's business (`plan`), and tensors
are made later (`batches`), so that processes without torch can do this work.
"""

from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lightconv.data.layout import PAIR, TEXT
from lightconv.data.store import Store
from lightconv.data.vocabulary import EOS, PAD

Part = Literal["start", "end"]


class Arrays(NamedTuple):
    """A batch before it is made of tensors; see `Batch`."""

    inputs: tuple[NDArray[np.int64], ...]
    target: NDArray[np.int64]
    rows: NDArray[np.int64]


class Examples(Protocol):
    """Something that can be put into batches."""

    def lengths(self) -> tuple[NDArray[Any], ...]:
        """For each side [examples] how many positions a row takes, EOS included; target last."""

    def make(self, rows: NDArray[Any]) -> Arrays:
        """The rows with those numbers [B], padded on the right."""


class Pairs:
    """Source and target, each sentence ended by EOS.

    max_len  a side that has more tokens, EOS included, is cut; `keep` says which part is left
    """

    def __init__(self, store: Store, *, max_len: int | None = None, keep: Part = "start") -> None:
        self._source = Sentences(store, side=PAIR[0], max_len=max_len, keep=keep)
        self._target = Sentences(store, side=PAIR[1], max_len=max_len, keep=keep)

    def lengths(self) -> tuple[NDArray[Any], ...]:
        """Source, target: [examples] each."""
        return *self._source.lengths(), *self._target.lengths()

    def make(self, rows: NDArray[Any]) -> Arrays:
        """inputs (source [B, S], target_in [B, T]), target [B, T]."""
        source = self._source.make(rows)
        target = self._target.make(rows)
        return Arrays((source.target, *target.inputs), target.target, target.rows)


class Sentences:
    """One side, a sentence in each row: read from EOS on, said up to EOS.

    max_len  longer sentences, EOS included, are cut; `keep` says which part is left
    """

    def __init__(
        self,
        store: Store,
        *,
        side: str = TEXT[0],
        max_len: int | None = None,
        keep: Part = "start",
    ) -> None:
        if max_len is not None and max_len < 2:
            raise ValueError(f"max_len={max_len} must be at least 2, a token and EOS")
        if keep not in ("start", "end"):
            raise ValueError(f"keep={keep!r} must be 'start' or 'end'")
        self._side = store.side(side)
        self._most = None if max_len is None else max_len - 1
        self._keep = keep

    def lengths(self) -> tuple[NDArray[Any], ...]:
        """[examples]"""
        found = self._side.lengths()
        if self._most is not None:
            np.minimum(found, self._most, out=found)
        found += 1
        return (found,)

    def make(self, rows: NDArray[Any]) -> Arrays:
        """inputs (tokens [B, T],), target [B, T]."""
        rows = rows.astype(np.int64)
        tokens, sizes = self._side.take(rows, most=self._most, keep=self._keep)
        T = int(sizes.max(initial=0)) + 1
        places = np.arange(T)
        is_token = places < sizes[:, None]
        target = np.full((len(rows), T), PAD, dtype=np.int64)
        target[is_token] = tokens
        read = np.full((len(rows), T), PAD, dtype=np.int64)
        read[:, 0] = EOS
        read[:, 1:] = target[:, :-1]
        target[np.arange(len(rows)), sizes] = EOS
        return Arrays((read,), target, rows)


class Blocks:
    """Running text, EOS after each sentence, cut into blocks of as many positions.

    Every token is said once; what a block reads first is the token before it, EOS at the start.
    """

    def __init__(self, store: Store, tokens_per_sample: int, *, side: str = TEXT[0]) -> None:
        if tokens_per_sample < 1:
            raise ValueError(f"tokens_per_sample={tokens_per_sample} must be at least 1")
        self._side = store.side(side)
        self._width = tokens_per_sample
        self._places = len(self._side.tokens) + self._side.examples

    def lengths(self) -> tuple[NDArray[Any], ...]:
        """[blocks]; only the last one can be shorter."""
        found = np.full(-(-self._places // self._width), self._width, dtype=np.uint32)
        if len(found):
            found[-1] = self._places - self._width * (len(found) - 1)
        return (found,)

    def make(self, rows: NDArray[Any]) -> Arrays:
        """inputs (tokens [B, T],), target [B, T]."""
        rows = rows.astype(np.int64)
        begins = rows * self._width
        ends = np.minimum(begins + self._width, self._places)
        T = int((ends - begins).max(initial=0))
        read, target = (np.full((len(rows), T), PAD, dtype=np.int64) for _ in range(2))
        read[:, 0] = EOS
        for row, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
            before = min(begin, 1)
            text = self._side.stream(begin - before, end, EOS)
            target[row, : end - begin] = text[before:]
            read[row, 1 - before : end - begin] = text[:-1]
        return Arrays((read,), target, rows)
