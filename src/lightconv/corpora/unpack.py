"""The files of a .tar, .tgz, .zip or .gz as streams, without unpacking them onto the disk.

An archive may come from a stranger: names that climb out of it are refused, links are passed over,
and so is what grows more than text does.
"""

import gzip
import io
import itertools
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

# Text shrinks to a third or a tenth when it is packed; what is small may do as it likes.
MAX_GROWTH = 200
SMALL = 64 << 20
BLOCK = 1 << 18

_GZIP = b"\x1f\x8b"
_ZIP = b"PK\x03\x04"
_DAMAGE = (EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile)


@dataclass(frozen=True)
class Member:
    """One file of a source: loose, or the part of an archive that has this name."""

    container: Path
    name: str
    packed: bool

    @property
    def base(self) -> str:
        """Its name without folders, and without .gz."""
        return self.name.rpartition("/")[2].removesuffix(".gz")

    def __str__(self) -> str:
        return f"{self.container}: {self.name}" if self.packed else str(self.container)


class Found(NamedTuple):
    """A member and its bytes, to be read before the next member is asked for."""

    member: Member
    stream: io.BufferedReader


Contents = Generator[Found, None, None]
Watch = Callable[[bytes], object]


def is_archive(path: Path) -> bool:
    """Whether a file is packed, by its first bytes."""
    with path.open("rb") as file:
        head = file.read(512)
    return head.startswith((_GZIP, _ZIP)) or _is_tar(head)


def contents(archive: Path, watch: Watch | None = None, links: set[str] | None = None) -> Contents:
    """Every regular file of an archive, in its order; the names of links are added to `links`.

    `watch` sees all bytes of the archive itself by the time the last file has been passed.
    """
    links = set() if links is None else links
    with _damage_named(archive), _Pieces(_pieces(archive), watch) as raw:
        if raw.startswith(_ZIP):
            yield from _zip_contents(archive, links)
        else:
            with unpacked(raw, archive, raw.size) as stream:
                if _is_tar(stream.peek(512)):
                    yield from _tar_contents(archive, stream, links)
                else:
                    name = archive.name.removesuffix(archive.suffix)
                    yield Found(Member(archive, name, packed=True), stream)
                if watch:  # So that the checksum at the end of a .gz is looked at.
                    _drain(stream)
        if watch:
            _drain(raw)


def _tar_contents(archive: Path, stream: io.BufferedReader, links: set[str]) -> Contents:
    with tarfile.open(fileobj=stream, mode="r|", bufsize=BLOCK) as tar:
        while info := tar.next():
            tar.members = []  # type: ignore[attr-defined]  # It would remember every file.
            if info.issym() or info.islnk():
                links.add(PurePosixPath(info.name).name)
            if not info.isreg() or info.issparse():
                continue
            member = Member(archive, _safe_name(info.name, archive), packed=True)
            with unpacked(tar.extractfile(info), member, info.size) as content:
                yield Found(member, content)


def _zip_contents(archive: Path, links: set[str]) -> Contents:
    with zipfile.ZipFile(archive) as zipped:
        files = [info for info in zipped.infolist() if not info.is_dir()]
        if sum(info.file_size for info in files) > _limit(archive.stat().st_size):
            raise ValueError(_bomb(archive))
        for info in files:
            if stat.S_ISLNK(info.external_attr >> 16):
                links.add(PurePosixPath(info.filename).name)
                continue
            if info.flag_bits & 1:
                raise ValueError(f"{archive}: {info.filename} is encrypted. Unpack it first")
            member = Member(archive, _safe_name(info.filename, archive), packed=True)
            with zipped.open(info) as file, unpacked(file, member, info.file_size) as content:
                yield Found(member, content)


def _safe_name(name: str, archive: Path) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise ValueError(
            f"{archive} holds a file named {name[:80]!r}, expected names below one folder. "
            "Fetch the archive from its owner"
        )
    return str(path)


def unpacked(stream: Any, where: object, size: int) -> "io.BufferedReader[Any]":
    """A stream of `size` bytes, without gzip if that is what it is, with an eye on its growth."""
    plain = io.BufferedReader(_Guard(stream, where), min(BLOCK, max(size, 512)))
    if not plain.peek(2).startswith(_GZIP):
        return plain
    return io.BufferedReader(_Guard(gzip.GzipFile(fileobj=plain), where, _limit(size)), BLOCK)


def _is_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar"


def _limit(packed: int) -> int:
    return MAX_GROWTH * packed + SMALL


def _bomb(where: object) -> str:
    return (
        f"{where} unpacks to more than {MAX_GROWTH} times its size, which text never does. "
        "Fetch it from its owner"
    )


def _drain(stream: Any) -> None:
    while stream.read(BLOCK):
        pass


@contextmanager
def _damage_named(where: object) -> Iterator[None]:
    """What goes wrong with a damaged archive, in words."""
    try:
        yield
    except (*_DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # gzip's own have none
            raise
        raise ValueError(
            f"{where} is damaged or incomplete ({error}). Fetch it again and compare its size "
            "with what the owner says"
        ) from None


class _Guard(io.RawIOBase):
    """A stream that names its file when it is damaged, and ends when it grows too long."""

    def __init__(self, stream: Any, where: object, limit: int | None = None) -> None:
        self.stream, self.where, self.limit = stream, where, limit
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        with _damage_named(self.where):
            block = self.stream.read(len(buffer))
        buffer[: len(block)] = block
        self.count += len(block)
        if self.limit is not None and self.count > self.limit:
            raise ValueError(_bomb(self.where))
        return len(block)


def _pieces(path: Path) -> list[Path]:
    """The files that make up an archive: itself, or .00, .01 and so on."""
    if path.suffix != ".00":
        return [path]
    numbered = (path.with_suffix(f".{number:02}") for number in itertools.count())
    return list(itertools.takewhile(Path.exists, numbered))


class _Pieces(io.RawIOBase):
    """Files read as one; `watch` sees every block once."""

    def __init__(self, paths: list[Path], watch: Watch | None = None) -> None:
        self.files = [path.open("rb") for path in paths]
        self.size = sum(path.stat().st_size for path in paths)
        self.place = 0
        self.watch = watch

    def startswith(self, mark: bytes) -> bool:
        return self.files[0].peek(len(mark)).startswith(mark)

    def readable(self) -> bool:
        return True

    def read(self, size: int = BLOCK) -> bytes:
        while self.place < len(self.files):
            if block := self.files[self.place].read(size):
                if self.watch:
                    self.watch(block)
                return block
            self.place += 1
        return b""

    def close(self) -> None:
        for file in self.files:
            file.close()
        super().close()
