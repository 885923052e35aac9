"""Texts: a corpus by split; lines of files: UTF-8, split at newlines only, plain or compressed."""

import bz2
import gzip
import io
import itertools
import lzma
import stat
import zlib
from array import array
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from lightconv.data.config import FilterConfig, PipelineConfig, TaskConfig
from lightconv.files import inside

# One text for each side: (source, target), or (text,) for language modelling.
Example = tuple[str, ...]
Reader = Callable[[], Iterator[Example]]
T = TypeVar("T")

SPLITS = ("train", "valid", "test")
# A word between the sentences of a summary; measures split there.
SENTENCE_BREAK = "¶"


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Input of `prepare`; each reader starts from the beginning when called."""

    task: TaskConfig
    splits: Mapping[str, Reader]
    pipeline: PipelineConfig
    filters: FilterConfig = field(default_factory=FilterConfig)
    # The owners have normalised and tokenised the texts as the pipeline would.
    tokenized: bool = False
    # The owners' file of BPE codes for both sides, instead of learned codes.
    codes: Path | None = None
    # Approximate numbers of examples, where they are known before reading.
    examples: Mapping[str, int] = field(default_factory=dict)
    # Inputs, for the record: file or index -> SHA-256.
    digests: Mapping[str, str] = field(default_factory=dict)


# Far above any sentence or article: a longer line is not text, or an archive made to fill memory.
LONGEST_LINE = 16 << 20
LARGEST_LIST = 64 << 20  # of tokens or codes

# Text shrinks to a third or a tenth when it is packed; small files may shrink more.
MAX_GROWTH = 200
SMALL = 64 << 20

COMPRESSED: dict[str, Any] = {".gz": gzip.GzipFile, ".bz2": bz2.BZ2File, ".xz": lzma.LZMAFile}


@dataclass
class Notes:
    """Counts of what was dropped while reading, for one warning at the end."""

    marks: int = 0
    returns: int = 0

    def warning(self) -> str | None:
        """One line for the user; None if nothing was dropped."""
        parts = []
        if self.marks:
            parts.append(f"the byte order mark of {self.marks} file{'s' * (self.marks > 1)}")
        if self.returns:
            lines = f"{self.returns} line{'s' * (self.returns > 1)}"
            parts.append(f"the carriage return (CR) of {lines}")
        return f"dropped {' and '.join(parts)}" if parts else None


def read_lines(path: str | Path, notes: Notes | None = None) -> Iterator[str]:
    """The lines of a file without their ends, decompressed; a missing file is an error at once."""
    check_file(Path(path))
    return _read(Path(path), notes or Notes())


def side_by_side(
    names: Sequence[T], read: Callable[[T], Iterator[str]], remedy: str = ""
) -> Iterator[tuple[str, ...]]:
    """Line 1 of each text, line 2 of each, ...; ValueError at the end if their numbers differ."""
    for lines in itertools.zip_longest(*map(read, names)):
        if None in lines:
            check_lines(names, map(read, names), remedy)
            raise ValueError(f"{' or '.join(map(str, names))} changed while it was read")
        yield lines


def check_lines(names: Sequence[object], texts: Iterable[Iterable[str]], remedy: str = "") -> int:
    """The number of lines of each text; ValueError with the counts if they differ."""
    first, *others = [array("L", map(len, lines)) for lines in texts]
    for name, other in zip(names[1:], others, strict=True):
        if len(other) != len(first):
            remedy = remedy or "Look there for a line that is missing or split"
            raise ValueError(
                f"{names[0]} has {len(first)} lines and {name} has {len(other)}, expected the same "
                f"number. They seem to diverge at line {first_gap(first, other)}. {remedy}"
            )
    return len(first)


def first_gap(first: Sequence[int], second: Sequence[int]) -> int:
    """The line, from 1, at which one of two files lacks some lines, by the lengths of all lines."""
    import numpy

    short, long = sorted((first, second), key=len)
    shorter = numpy.log1p(numpy.asarray(short, dtype=numpy.float64))
    longer = numpy.log1p(numpy.asarray(long, dtype=numpy.float64))
    before = numpy.abs(shorter - longer[: len(shorter)])
    behind = numpy.abs(shorter - longer[len(longer) - len(shorter) :])
    # cost[p]: lines before p are paired as they are, the others without the surplus.
    cost = numpy.concatenate([[0.0], numpy.cumsum(before - behind)])
    return int(numpy.argmin(cost)) + 1


def lines_of(
    readline: Callable[[int], bytes], name: str | Path, notes: Notes | None = None
) -> Iterator[str]:
    """The lines of an open file without their newlines; a carriage return stays."""
    line = b""
    for number, raw in enumerate(iter(lambda: readline(LONGEST_LINE + 1), b""), 1):
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


def read_list(path: Path, most: int, notes: Notes | None = None) -> list[str]:
    """The lines of an untrusted file, at most so many."""
    if path.stat().st_size > LARGEST_LIST or path.read_bytes().count(b"\n") > most:
        size = f"{LARGEST_LIST >> 20} MB and {most:,} lines"
        raise ValueError(f"{path} is too large to be read into memory, expected at most {size}")
    return list(lines_of(io.BytesIO(path.read_bytes()).readline, path, notes))


def find_files(folder: Path, what: str, shared: str, pair: tuple[str, str]) -> list[Path]:
    """The file of a model folder for both languages, or those of source and target."""
    names = (shared,) if (folder / shared).exists() else pair
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise ValueError(
            f"{folder} has no {what}: {' and '.join(missing)} missing, expected {shared} or "
            f"{' and '.join(pair)}"
        )
    return [inside(folder, name) for name in names]


def check_file(path: Path) -> None:
    """Raises ValueError if the file does not exist or is empty."""
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


def check_growth(packed: int, size: int, where: object) -> None:
    """Raises ValueError if `packed` bytes have become more than text would."""
    if size > MAX_GROWTH * packed + SMALL:
        raise ValueError(
            f"{where} unpacks to more than {MAX_GROWTH} times its size, which text never does. "
            "Fetch it from its owner"
        )


def _read(path: Path, notes: Notes) -> Iterator[str]:
    kind = COMPRESSED.get(path.suffix.lower())
    try:
        with (kind or Path.open)(path, "rb") as file:
            for line in lines_of(file.readline, path, notes):
                if kind is not None:
                    check_growth(path.stat().st_size, file.tell(), path)
                notes.returns += line.endswith("\r")
                yield line.removesuffix("\r")
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise ValueError(f"{path} is damaged or not compressed: {error}. Fetch it again") from None
    except OSError as error:
        # Errors of bz2 have no errno.
        reason = error.strerror or f"damaged or not compressed: {error}"
        raise ValueError(f"{path} cannot be read: {reason}") from None
