"""Lines of text files: UTF-8, cut at newlines and nowhere else, plain or compressed.

What other systems leave in a file (a byte order mark, carriage returns) is dropped and counted in
`Notes`; what cannot be text is a ValueError that names file, line, byte and remedy.
"""

import bz2
import gzip
import itertools
import lzma
import stat
import zlib
from array import array
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import Protocol

# No sentence and no article comes near it; what does is no text, or an archive made to fill memory.
LONGEST_LINE = 16 << 20

COMPRESSED: dict[str, Callable[[Path], BufferedIOBase]] = {
    ".gz": gzip.GzipFile,
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
}


class ByteLines(Protocol):
    """What is read of an open file."""

    def readline(self, size: int, /) -> bytes:
        """Up to and with the next newline, or `size` bytes."""


@dataclass
class Notes:
    """What was put right while reading, for one warning at the end."""

    marks: int = 0
    returns: int = 0

    def warning(self) -> str | None:
        """One line for the user; None if there is nothing to say."""
        parts = []
        if self.marks:
            parts.append(f"the byte order mark of {_count(self.marks, 'file')}")
        if self.returns:
            parts.append(f"the carriage return (CR) of {_count(self.returns, 'line')}")
        return f"dropped {' and '.join(parts)}" if parts else None


def read_lines(path: str | Path, notes: Notes | None = None) -> Iterator[str]:
    """The lines of a file, one by one, without their ends; .gz, .bz2 and .xz are unpacked.

    A missing or empty file and a folder are errors when this is called, all else while reading.
    """
    path = Path(path)
    check_file(path)
    return _without_returns(_read(path, notes), notes)


def read_parallel(
    paths: Sequence[str | Path], notes: Notes | None = None
) -> Iterator[tuple[str, ...]]:
    """Line 1 of each file, line 2 of each, ...; ValueError at the end if one has more than another.

    `check_parallel` finds that out before anything is done with the lines.
    """
    files = [read_lines(path, notes) for path in paths]
    return _zip(files, paths)


def check_parallel(paths: Sequence[str | Path]) -> int:
    """The number of lines of each file; ValueError with the counts if they differ."""
    for path in paths:
        check_file(Path(path))
    lengths = [_lengths(Path(path)) for path in paths]
    for path, other in zip(paths[1:], lengths[1:], strict=True):
        if len(other) != len(lengths[0]):
            raise ValueError(
                f"{paths[0]} has {len(lengths[0])} lines and {path} has {len(other)}, expected as "
                f"many. They seem to part at line {first_gap(lengths[0], other)}: look there for a "
                "line that is missing, or cut in two"
            )
    return len(lengths[0])


def first_gap(first: Sequence[int], second: Sequence[int]) -> int:
    """Where a piece is missing from one of two files, given the lengths of their lines; from 1.

    The place that makes the lines before it most alike as they stand, and those behind it most
    alike when the surplus of the longer file is left out there.
    """
    import numpy

    short, long = sorted((first, second), key=len)
    shorter = numpy.log1p(numpy.asarray(short, dtype=numpy.float64))
    longer = numpy.log1p(numpy.asarray(long, dtype=numpy.float64))
    surplus = len(longer) - len(shorter)
    before = numpy.abs(shorter - longer[: len(shorter)])
    behind = numpy.abs(shorter - longer[surplus:])
    # cost[p]: lines below p are paired as they stand, the others with the surplus left out.
    cost = numpy.concatenate([[0.0], numpy.cumsum(before - behind)])
    return int(numpy.argmin(cost)) + 1


def lines_of(file: ByteLines, name: str | Path, notes: Notes | None = None) -> Iterator[str]:
    """The lines of an open file without their newlines; a carriage return stays."""
    line = b""
    for number, raw in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), b""), 1):
        line = raw
        if number == 1:
            if line.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
                raise ValueError(
                    f"{name} is UTF-16, expected UTF-8. Convert it with iconv -f UTF-16 -t UTF-8"
                )
            if line.startswith(BOM_UTF8):
                line = line.removeprefix(BOM_UTF8)
                if notes is not None:
                    notes.marks += 1
                if not line:
                    break
        if len(line) > LONGEST_LINE:
            raise ValueError(
                f"{name}, line {number}: longer than {LONGEST_LINE >> 20} MB, expected lines of "
                "text. Does the file have line ends of another system?"
            )
        yield _decode(line.removesuffix(b"\n"), name, number)
    if not line:
        raise ValueError(f"{name} is empty, expected lines of text")


def check_file(path: Path) -> None:
    """Raises ValueError if there is no such file, or nothing in it."""
    try:
        found = path.stat()
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist, expected a text file") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if stat.S_ISDIR(found.st_mode):
        raise ValueError(f"{path} is a folder, expected a text file")
    if stat.S_ISREG(found.st_mode) and not found.st_size:
        raise ValueError(f"{path} is empty, expected lines of text")


def _decode(line: bytes, name: str | Path, number: int) -> str:
    if b"\0" in line:
        raise ValueError(
            f"{name}, line {number}: a NUL character (byte {line.index(0) + 1} of the line), "
            "expected text. If the file is UTF-16, convert it with iconv -f UTF-16 -t UTF-8"
        )
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name}, line {number}: byte {line[error.start]:#04x} is not UTF-8 (byte "
            f"{error.start + 1} of the line). Convert the file with iconv -t UTF-8"
        ) from None


def _open(path: Path) -> BufferedIOBase:
    compressed = COMPRESSED.get(path.suffix.lower())
    return path.open("rb") if compressed is None else compressed(path)


def _read(path: Path, notes: Notes | None) -> Iterator[str]:
    try:
        with _open(path) as file:
            yield from lines_of(file, path, notes)
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise ValueError(f"{path} is damaged or not compressed: {error}. Fetch it again") from None
    except OSError as error:
        # bz2 has no error of its own: what has no errno comes from it.
        reason = error.strerror or f"damaged or not compressed: {error}"
        raise ValueError(f"{path} cannot be read: {reason}") from None


def _without_returns(lines: Iterator[str], notes: Notes | None) -> Iterator[str]:
    for line in lines:
        if line.endswith("\r"):
            if notes is not None:
                notes.returns += 1
            yield line[:-1]
        else:
            yield line


def _zip(files: Sequence[Iterator[str]], paths: Sequence[str | Path]) -> Iterator[tuple[str, ...]]:
    for lines in itertools.zip_longest(*files):
        if None in lines:
            check_parallel(paths)
            raise ValueError(f"{' or '.join(map(str, paths))} changed while it was read")
        yield lines


def _lengths(path: Path) -> "array[int]":
    return array("L", map(len, _read(path, None)))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
