"""One side of a split: the ids of its sentences, mapped from two files (see `layout`)."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightconv.data.layout import (
    HEADER_BYTES,
    SUFFIXES,
    Header,
    damaged,
    file_name,
    read_header,
)

# Offsets read at a time.
CHUNK = 1 << 20
LONGEST = 2**31 - 1


class Side:
    """The sentences of one side, by number; a damaged file is a ValueError, whatever it holds."""

    def __init__(self, folder: Path, split: str, side: str) -> None:
        names = [file_name(split, side, suffix) for suffix in SUFFIXES]
        self.paths = [folder / name for name in names]
        self.headers = [read_header(folder, name) for name in names]
        about, other = self.headers
        if (about.examples, about.tokens) != (other.examples, other.tokens):
            raise damaged(
                self.paths[1],
                f"{other.tokens} tokens in {other.examples} examples, "
                f"expected {about.tokens} in {about.examples}",
            )
        self.examples, self.vocab = about.examples, about.vocab
        self.tokens, self.offsets = map(_open, self.paths, self.headers)
        if self.offsets[0] != 0 or self.offsets[-1] != about.tokens:
            raise self._not_rising(0)

    def lengths(self) -> NDArray[np.uint32]:
        """How many tokens each sentence has: [examples]."""
        found = np.empty(self.examples, dtype=np.uint32)
        for begin in range(0, self.examples, CHUNK):
            sizes = np.diff(self.offsets[begin : begin + CHUNK + 1])
            # A smaller offset after a larger one wraps around to a huge size.
            if sizes.max() > LONGEST:
                raise self._not_rising(begin)
            found[begin : begin + CHUNK] = sizes
        return found

    def bounds(self, rows: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the ids of some sentences begin and end: rows [n] int -> [n], [n]."""
        begins = self.offsets[rows].astype(np.int64)
        ends = self.offsets[rows + 1].astype(np.int64)
        wrong = (begins < 0) | (ends < begins) | (ends > len(self.tokens))
        if wrong.any():
            raise self._not_rising(int(rows[wrong.argmax()]))
        return begins, ends

    def take(
        self, rows: NDArray[Any], *, most: int | None = None, keep: str = "start"
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The ids of some sentences, one after the other, and the length of each.

        rows  [n] int
        most  longer sentences are cut to this; `keep` says which part is left, "start" or "end"
        """
        begins, ends = self.bounds(rows)
        if most is not None and keep == "start":
            ends = np.minimum(ends, begins + most)
        elif most is not None:
            begins = np.maximum(begins, ends - most)
        sizes = ends - begins
        before = np.cumsum(sizes) - sizes
        places = np.repeat(begins - before, sizes) + np.arange(sizes.sum())
        return self._checked(self.tokens[places]), sizes

    def stream(self, begin: int, end: int, eos: int) -> NDArray[np.int64]:
        """Places `begin` to `end` of the text that all sentences make, `eos` after each.

        The text has as many places as there are tokens and examples together.
        """
        first, size = self._ended(begin), end - begin
        # Each sentence takes a place at least, so that no more than `size` of them end here.
        ends = self.offsets[first + 1 : first + 1 + size].astype(np.int64) - begin
        ends += np.arange(first, first + len(ends))
        ends = ends[: np.searchsorted(ends, size)]
        tokens = self._checked(self.tokens[begin - first : end - first - len(ends)])
        if len(tokens) + len(ends) != size or (
            len(ends) and not (ends[0] >= 0 and ends[-1] < size and (ends[:-1] < ends[1:]).all())
        ):
            raise self._not_rising(first)
        is_token = np.ones(size, dtype=bool)
        is_token[ends] = False
        found = np.full(size, eos, dtype=np.int64)
        found[is_token] = tokens
        return found

    def verify(self) -> None:
        """Reads both files and compares them with the digests in their headers."""
        for path, header in zip(self.paths, self.headers, strict=True):
            with path.open("rb") as file:
                file.seek(HEADER_BYTES)
                found = hashlib.file_digest(file, "sha256").digest()
            if found != header.payload:
                wanted = header.payload.hex()
                raise damaged(path, f"SHA-256 {found.hex()[:12]}..., expected {wanted[:12]}...")
        self.lengths()

    def _ended(self, place: int) -> int:
        """How many sentences have their `eos` before that place of the text."""
        low, high = 0, self.examples
        while low < high:
            middle = (low + high) // 2
            if self.offsets.item(middle + 1) + middle < place:
                low = middle + 1
            else:
                high = middle
        return low

    def _checked(self, tokens: NDArray[Any]) -> NDArray[Any]:
        if len(tokens) and tokens.max() >= self.vocab:
            raise damaged(self.paths[0], f"id {tokens.max()}, expected less than {self.vocab}")
        return tokens

    def _not_rising(self, row: int) -> ValueError:
        return damaged(
            self.paths[1], f"offsets that do not rise from {row} on, expected 0 to all tokens"
        )


def _open(path: Path, header: Header) -> NDArray[Any]:
    """What follows the header, mapped and not read."""
    mapped = np.memmap(
        path, dtype=f"<u{header.item}", mode="r", offset=HEADER_BYTES, shape=(header.items,)
    )
    # A plain array: the subclass costs a microsecond with every slice.
    return mapped.view(np.ndarray)
