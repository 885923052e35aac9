"""Token ids of a split on disk, memory-mapped; free of torch.

Each side (source and target, or text) has two little-endian files with a header of 128 bytes:

    train.source.bin   the ids of all sentences one after the other, uint16 or uint32
    train.source.idx   where each sentence begins and the last one ends, uint64 [examples + 1]

No EOS is stored: batches add it.
"""

import hashlib
import struct
import zlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from lightconv.files import inside, lock, sync

# Sides of an example: a pair, or one text for language modelling.
PAIR = ("source", "target")
TEXT = ("text",)

VERSION = 1
SUFFIXES = (".bin", ".idx")
HEADER_BYTES = 128
_MAGICS = dict(zip(SUFFIXES, (b"LCTOKENS", b"LCOFFSET"), strict=True))
# Magic, version, bytes of an item, examples, tokens, vocabulary, digests; then a CRC-32.
_FIELDS = struct.Struct("<8sIIQQQ32s32s20x")
_CHECK = struct.Struct("<I")
_CHUNK = 1 << 20  # offsets read at a time
_LONGEST = 2**31 - 1  # tokens of a sentence
_ANOTHER = "of another preparation, expected the same for all files"


class Header(NamedTuple):
    """The header of a file.

    item     bytes of a number
    vocab    number of ids of the side
    payload  SHA-256 of the bytes after the header
    split    SHA-256 of all payload digests of the split: equal in files that belong together
    """

    suffix: str
    item: int
    examples: int
    tokens: int
    vocab: int
    payload: bytes
    split: bytes

    @property
    def items(self) -> int:
        return self.tokens if self.suffix == ".bin" else self.examples + 1

    @property
    def size(self) -> int:
        return HEADER_BYTES + self.items * self.item

    def pack(self) -> bytes:
        data = _FIELDS.pack(_MAGICS[self.suffix], VERSION, *self[1:])
        return data + _CHECK.pack(zlib.crc32(data))

    @classmethod
    def read(cls, path: Path) -> Self:
        with path.open("rb") as file:
            data = file.read(HEADER_BYTES)
        magic = _MAGICS[path.suffix]
        if len(data) < HEADER_BYTES or not data.startswith(magic):
            raise damaged(path, f"begins with {data[:8]!r}, expected {magic!r} and a whole header")
        _, version, *fields = _FIELDS.unpack(data[: _FIELDS.size])
        # Before the CRC: another version may have another checksum.
        if version != VERSION:
            raise damaged(path, f"version {version} of the format, expected {VERSION}")
        if _CHECK.unpack(data[_FIELDS.size :])[0] != zlib.crc32(data[: _FIELDS.size]):
            raise damaged(path, "the header does not match its checksum, expected an intact one")
        header = cls(path.suffix, *fields)
        expected = _item_bytes(path.suffix, header.vocab)
        if header.item != expected:
            raise damaged(path, f"numbers of {header.item} bytes, expected {expected}")
        size = path.stat().st_size
        if size != header.size:
            raise damaged(path, f"{size} bytes, expected {header.size} as its header says")
        return header


def file_name(split: str, side: str, suffix: str) -> str:
    return f"{split}.{side}{suffix}"


def damaged(path: Path, found: str) -> ValueError:
    return ValueError(f"prepared data ({path}): {found}. Run `lightconv prepare` again")


def _item_bytes(suffix: str, vocab: int) -> int:
    return 8 if suffix == ".idx" else 2 if vocab <= 2**16 else 4


class TokenColumn:
    """The sentences of one side, by number; ValueError if a file is damaged."""

    def __init__(self, folder: Path, split: str, side: str) -> None:
        self.paths = [inside(folder, file_name(split, side, suffix)) for suffix in SUFFIXES]
        self.headers = list(map(Header.read, self.paths))
        about, other = self.headers
        if (about.examples, about.tokens) != (other.examples, other.tokens):
            counts = [f"{each.tokens} tokens in {each.examples} examples" for each in self.headers]
            raise damaged(self.paths[1], f"{counts[1]}, expected {counts[0]}")
        self.examples, self.vocab = about.examples, about.vocab
        # Plain arrays: the subclass costs a microsecond with every slice.
        self.tokens, self.offsets = (
            np.memmap(path, f"<u{each.item}", "r", HEADER_BYTES, (each.items,)).view(np.ndarray)
            for path, each in zip(self.paths, self.headers, strict=True)
        )
        if self.offsets[0] != 0 or self.offsets[-1] != about.tokens:
            raise self._not_rising(0)

    def lengths(self) -> NDArray[np.uint32]:
        """Tokens of each sentence: [examples]."""
        found = np.empty(self.examples, dtype=np.uint32)
        for begin in range(0, self.examples, _CHUNK):
            sizes = np.diff(self.offsets[begin : begin + _CHUNK + 1])
            # A smaller offset after a larger one wraps around to a huge size.
            if sizes.max() > _LONGEST:
                raise self._not_rising(begin)
            found[begin : begin + _CHUNK] = sizes
        return found

    def bounds(self, rows: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Begins and ends of the ids of some sentences: rows [n] or [] -> twice that."""
        begins = self.offsets[rows].astype(np.int64)
        ends = self.offsets[rows + 1].astype(np.int64)
        wrong = (begins < 0) | (ends < begins) | (ends > len(self.tokens))
        if wrong.any():
            raise self._not_rising(int(rows.flat[wrong.argmax()]))
        return begins, ends

    def take(self, rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The ids of some sentences, one after the other, and their lengths: rows [n] int."""
        begins, ends = self.bounds(rows)
        sizes = ends - begins
        before = np.cumsum(sizes) - sizes
        tokens = self.tokens[np.repeat(begins - before, sizes) + np.arange(sizes.sum())]
        if len(tokens) and tokens.max() >= self.vocab:
            raise damaged(self.paths[0], f"id {tokens.max()}, expected less than {self.vocab}")
        return tokens, sizes

    def _not_rising(self, row: int) -> ValueError:
        found = f"offsets that do not rise from {row} on, expected 0 to all tokens"
        return damaged(self.paths[1], found)


class Store:
    """The examples of a split: opening costs the same for any number of them.

    sides   their names in order: source and target, or text
    vocab   number of ids of each side
    tokens  number of tokens of each side
    digest  the same for the same examples, whenever and wherever they were prepared
    """

    def __init__(self, folder: str | Path, split: str) -> None:
        self.folder = Path(folder)
        self.split = split
        self.sides = _find_sides(self.folder, split)
        self._columns = [TokenColumn(self.folder, split, side) for side in self.sides]
        first = self._columns[0].headers[0]
        for column in self._columns:
            for path, header in zip(column.paths, column.headers, strict=True):
                # Of two preparations, the later one not finished.
                if (header.split, header.examples) != (first.split, first.examples):
                    raise damaged(path, _ANOTHER)
        self.vocab = tuple(column.vocab for column in self._columns)
        self.tokens = tuple(len(column.tokens) for column in self._columns)
        self.digest = first.split.hex()
        self._examples = first.examples

    def __len__(self) -> int:
        return self._examples

    def __getitem__(self, index: int) -> tuple[NDArray[Any], ...]:
        """One example: for each side its ids, a view of the file."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"example {index} of {len(self)}")
        row = np.array(index % len(self))
        return tuple(column.tokens[slice(*column.bounds(row))] for column in self._columns)

    def column(self, side: str) -> TokenColumn:
        if side not in self.sides:
            raise ValueError(f"{self.folder} has the sides {', '.join(self.sides)}, no {side!r}")
        return self._columns[self.sides.index(side)]

    def verify(self) -> None:
        """Reads everything and raises ValueError if a byte is not as it was written."""
        for column in self._columns:
            for path, header in zip(column.paths, column.headers, strict=True):
                with path.open("rb") as file:
                    file.seek(HEADER_BYTES)
                    found = hashlib.file_digest(file, "sha256").digest()
                if found != header.payload:
                    marks = [each.hex()[:12] for each in (found, header.payload)]
                    raise damaged(path, f"SHA-256 {marks[0]}..., expected {marks[1]}...")
            column.lengths()
        payloads = [header.payload for column in self._columns for header in column.headers]
        if hashlib.sha256(b"".join(payloads)).hexdigest() != self.digest:
            raise damaged(self._columns[0].paths[0], _ANOTHER)


def _find_sides(folder: Path, split: str) -> tuple[str, ...]:
    for sides in (PAIR, TEXT):
        names = [file_name(split, side, suffix) for side in sides for suffix in SUFFIXES]
        missing = [name for name in names if not (folder / name).exists()]
        if not missing:
            return sides
        if len(missing) < len(names):
            raise damaged(folder, f"no {missing[0]}, expected it beside the others of its split")
    place = f"split {split!r} in {folder}" if folder.is_dir() else f"folder {folder}"
    raise ValueError(f"there is no {place}. Run `lightconv prepare` to make it")


class StoreWriter(AbstractContextManager["StoreWriter"]):
    """Writes a split, a few examples at a time, in constant memory.

        with StoreWriter(folder, "train", {"source": 8848, "target": 6632}) as writer:
            writer.append([[5, 6, 7], [8]], [[9], [4, 4]])

    Files have temporary names until all of them are complete and on disk.

    vocab  number of ids of each side
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
        self.vocab = dict(vocab)
        self.examples = 0
        self.digest: str | None = None
        self._tokens = dict.fromkeys(vocab, 0)
        self._files: dict[tuple[str, str], _File] = {}
        keys = list(product(vocab, SUFFIXES))
        paths = [self.folder / file_name(split, side, suffix) for side, suffix in keys]
        busy = f"{paths[0]}: another process is writing it, expected to be the only one"
        self._lock = ExitStack()
        self._lock.enter_context(lock(_temporary(paths[0]), busy, inherited=True))
        for (side, suffix), path in zip(keys, paths, strict=True):
            self._files[side, suffix] = _File(path, _item_bytes(suffix, vocab[side]))
        for side in vocab:
            self._files[side, ".idx"].write(np.zeros(1, dtype=np.uint64))

    def append(self, *sides: Sequence[Sequence[int] | NDArray[Any]]) -> None:
        """Appends examples: for each side the same number of sentences, without EOS."""
        if len(sides) != len(self.vocab) or len(set(map(len, sides))) != 1:
            raise ValueError(
                f"{' and '.join(str(len(sentences)) for sentences in sides)} sentences, expected "
                f"the same number for each of {', '.join(self.vocab)}"
            )
        flat = [self._flatten(*item) for item in zip(self.vocab, sides, strict=True)]
        for side, (tokens, sizes) in zip(self.vocab, flat, strict=True):
            self._files[side, ".bin"].write(tokens)
            self._files[side, ".idx"].write(self._tokens[side] + np.cumsum(sizes))
            self._tokens[side] += len(tokens)
        self.examples += len(sides[0])

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._publish()
        finally:
            for file in self._files.values():
                file.remove()
            self._lock.close()

    def _publish(self) -> None:
        payloads = {key: file.digest.digest() for key, file in self._files.items()}
        split = hashlib.sha256(b"".join(payloads.values())).digest()
        for (side, suffix), file in self._files.items():
            counts = (self.examples, self._tokens[side], self.vocab[side])
            header = Header(suffix, file.item, *counts, payloads[side, suffix], split)
            file.finish(header.pack())
        for file in self._files.values():
            file.temporary.replace(file.path)
        sync(self.folder)
        self.digest = split.hex()

    def _flatten(
        self, side: str, sentences: Sequence[Sequence[int] | NDArray[Any]]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        sizes = np.fromiter(map(len, sentences), np.int64, count=len(sentences))
        arrays = (np.asarray(sentence, np.int64) for sentence in sentences)
        tokens = np.concatenate([np.zeros(0, np.int64), *arrays])
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
    def __init__(self, path: Path, item: int) -> None:
        self.path, self.temporary = path, _temporary(path)
        self.item = item
        self.digest = hashlib.sha256()
        self._file = self.temporary.open("wb")
        self._file.write(bytes(HEADER_BYTES))

    def write(self, items: NDArray[Any]) -> None:
        data = items.astype(f"<u{self.item}").tobytes()
        self.digest.update(data)
        self._file.write(data)

    def finish(self, header: bytes) -> None:
        self._file.seek(0)
        self._file.write(header)
        self._file.close()
        sync(self.temporary)

    def remove(self) -> None:
        self._file.close()
        self.temporary.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")
