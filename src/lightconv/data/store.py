"""The examples of a split as token ids on the disk; nothing here needs torch.

The files are described in `layout`.
"""

import fcntl
import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lightconv.data.layout import (
    HEADER_BYTES,
    PAIR,
    SUFFIXES,
    TEXT,
    Header,
    damaged,
    file_name,
    split_digest,
    token_bytes,
)
from lightconv.data.side import Side
from lightconv.files import sync


class Store:
    """The examples of a split, mapped: opening costs the same however many they are.

    sides   their names in order: source and target, or text
    vocab   how many ids each side may have
    tokens  how many tokens each side has
    digest  the same for the same examples, whenever and wherever they were prepared
    """

    def __init__(self, folder: str | Path, split: str) -> None:
        self.folder = Path(folder)
        self.split = split
        self.sides = _find_sides(self.folder, split)
        self._sides = {name: Side(self.folder, split, name) for name in self.sides}
        first = self._sides[self.sides[0]].headers[0]
        for side in self._sides.values():
            for path, header in zip(side.paths, side.headers, strict=True):
                # Of two preparations, the later one not finished.
                if (header.split, header.examples) != (first.split, first.examples):
                    raise damaged(path, "of another preparation, expected the same for all files")
        self.vocab = tuple(side.vocab for side in self._sides.values())
        self.tokens = tuple(len(side.tokens) for side in self._sides.values())
        self.digest = first.split.hex()
        self._examples = first.examples

    @classmethod
    def open(cls, folder: str | Path, split: str) -> Self:
        """The split of a prepared folder: "train", "valid" or "test"."""
        return cls(folder, split)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.folder, self.split)

    def __repr__(self) -> str:
        return f"Store({str(self.folder)!r}, {self.split!r}, {len(self)} examples)"

    def __len__(self) -> int:
        return self._examples

    def __getitem__(self, index: int) -> tuple[NDArray[Any], ...]:
        """One example: for each side its ids, a view of the file."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"example {index} of {len(self)}")
        row = np.array([index % len(self)])
        found = []
        for side in self._sides.values():
            (begin,), (end,) = side.bounds(row)
            found.append(side.tokens[begin:end])
        return tuple(found)

    def side(self, name: str) -> Side:
        """One side by its name."""
        if name not in self._sides:
            raise ValueError(f"{self} has the sides {', '.join(self.sides)}, no {name!r}")
        return self._sides[name]

    def lengths(self, side: str) -> NDArray[np.uint32]:
        """How many tokens each example has on that side: [examples], read from the offsets."""
        return self.side(side).lengths()

    def verify(self) -> None:
        """Reads everything and raises ValueError if a byte is not as it was written."""
        for side in self._sides.values():
            side.verify()
        payloads = [h.payload for side in self._sides.values() for h in side.headers]
        if split_digest(payloads).hex() != self.digest:
            path = self._sides[self.sides[0]].paths[0]
            raise damaged(path, "of another preparation, expected the same for all files")


class StoreWriter:
    """Writes a split, a few examples at a time, in constant memory.

        with StoreWriter(folder, "train", {"source": 8848, "target": 6632}) as writer:
            writer.append([[5, 6, 7], [8]], [[9], [4, 4]])

    The files have temporary names until all of them are whole and on the disk; a block that ends
    with an exception leaves nothing, a process that is killed at worst files that are not opened.
    """

    def __init__(self, folder: str | Path, split: str, vocab: Mapping[str, int]) -> None:
        if tuple(vocab) not in (PAIR, TEXT):
            raise ValueError(
                f"sides {', '.join(vocab) or 'none'}, expected {' and '.join(PAIR)}, or {TEXT[0]}"
            )
        if not split or not split.replace("-", "_").isidentifier():
            raise ValueError(f"split={split!r} must be a plain word")
        for side, ids in vocab.items():
            if not 1 <= ids <= 2**32:
                raise ValueError(f"vocabulary of {ids} ids ({side}), expected 1 to {2**32}")
        self.folder = Path(folder)
        self.split = split
        self.vocab = dict(vocab)
        self.examples = 0
        self.digest: str | None = None
        self.folder.mkdir(parents=True, exist_ok=True)
        self._files: dict[tuple[str, str], _File] = {}
        try:
            for side, suffix in ((side, suffix) for side in vocab for suffix in SUFFIXES):
                item = token_bytes(vocab[side]) if suffix == ".bin" else 8
                path = self.folder / file_name(split, side, suffix)
                self._files[side, suffix] = _File(path, f"<u{item}")
        except BaseException:
            self.abort()
            raise
        self._tokens = dict.fromkeys(vocab, 0)
        for side in vocab:
            self._files[side, ".idx"].write(np.zeros(1, dtype=np.uint64))

    def append(self, *sides: Sequence[Sequence[int] | NDArray[Any]]) -> None:
        """The next examples: for each side as many sentences, without EOS."""
        if len(sides) != len(self.vocab) or len({len(sentences) for sentences in sides}) != 1:
            raise ValueError(
                f"{' and '.join(str(len(sentences)) for sentences in sides)} sentences, expected "
                f"as many for each of {', '.join(self.vocab)}"
            )
        flat = [self._flatten(*item) for item in zip(self.vocab, sides, strict=True)]
        for side, (tokens, sizes) in zip(self.vocab, flat, strict=True):
            self._files[side, ".bin"].write(tokens)
            self._files[side, ".idx"].write(self._tokens[side] + np.cumsum(sizes))
            self._tokens[side] += len(tokens)
        self.examples += len(sides[0])

    def close(self) -> None:
        """Gives the files their names; the split can be opened when this returns."""
        if not self._files:
            return
        payloads = {key: file.digest.digest() for key, file in self._files.items()}
        split = split_digest(list(payloads.values()))
        try:
            for (side, suffix), file in self._files.items():
                header = Header(
                    suffix=suffix,
                    item=file.dtype.itemsize,
                    examples=self.examples,
                    tokens=self._tokens[side],
                    vocab=self.vocab[side],
                    payload=payloads[side, suffix],
                    split=split,
                )
                file.finish(header.pack())
            for file in self._files.values():
                file.temporary.replace(file.path)
            sync(self.folder)
        finally:
            self.abort()
        self.digest = split.hex()

    def abort(self) -> None:
        """Removes what has no final name yet."""
        for file in self._files.values():
            file.remove()
        self._files = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _flatten(
        self, side: str, sentences: Sequence[Sequence[int] | NDArray[Any]]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All ids of some sentences, and the length of each."""
        sizes = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
        if len(sentences) and isinstance(sentences[0], np.ndarray):
            tokens = np.concatenate(sentences).astype(np.int64)
        else:
            tokens = np.fromiter(chain.from_iterable(sentences), np.int64, count=int(sizes.sum()))
        wrong = (tokens < 0) | (tokens >= self.vocab[side])
        if wrong.any():
            place = int(wrong.argmax())
            row = self.examples + int(np.searchsorted(np.cumsum(sizes), place, side="right"))
            raise ValueError(
                f"id {tokens[place]} ({side} of example {row}), expected 0 to "
                f"{self.vocab[side] - 1}. The vocabulary is not the one that made the ids"
            )
        return tokens, sizes


class _File:
    """A file under a temporary name, with room for its header, and the digest of the rest."""

    def __init__(self, path: Path, dtype: str) -> None:
        self.path = path
        self.temporary = path.with_name(f".{path.name}.new")
        self.dtype = np.dtype(dtype)
        self.digest = hashlib.sha256()
        # What a killed process left is written over; what another one writes is not.
        handle = os.open(self.temporary, os.O_RDWR | os.O_CREAT, 0o666)
        self._file = os.fdopen(handle, "r+b")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = os.path.samestat(os.fstat(handle), self.temporary.stat())
        except OSError:
            ours = False
        if not ours:
            self._file.close()
            raise ValueError(f"{path}: another process is writing it, expected to be the only one")
        self._file.truncate(0)
        self._file.write(bytes(HEADER_BYTES))

    def write(self, items: NDArray[Any]) -> None:
        """Appends numbers."""
        data = items.astype(self.dtype).tobytes()
        self.digest.update(data)
        self._file.write(data)

    def finish(self, header: bytes) -> None:
        """Writes the header; the file is on the disk when this returns."""
        self._file.seek(0)
        self._file.write(header)
        self._file.flush()
        os.fsync(self._file.fileno())

    def remove(self) -> None:
        """Closes it, and removes it if it still has its temporary name."""
        with suppress(OSError):
            if os.path.samestat(os.fstat(self._file.fileno()), self.temporary.stat()):
                self.temporary.unlink()
        with suppress(OSError):
            self._file.close()


def _find_sides(folder: Path, split: str) -> tuple[str, ...]:
    """Which sides a split has, from the names of its files."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}. Run `lightconv prepare` to make it")
    for sides in (PAIR, TEXT):
        names = [file_name(split, side, suffix) for side in sides for suffix in SUFFIXES]
        missing = [name for name in names if not (folder / name).exists()]
        if not missing:
            return sides
        if len(missing) < len(names):
            raise damaged(folder, f"no {missing[0]}, expected it beside the others of its split")
    raise ValueError(f"there is no split {split!r} in {folder}. Run `lightconv prepare` to make it")
