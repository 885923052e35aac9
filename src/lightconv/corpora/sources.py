"""Files of a corpus as its owners ship it, in folders and archives, found by name.

They are read as streams; nothing is unpacked onto the disk. An archive is not trusted: names that
leave it are refused, links are skipped, and unpacking stops when it grows more than text does.
"""

import gzip
import hashlib
import io
import itertools
import os
import re
import stat
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from lightconv.corpora import Progress
from lightconv.data.text import check_growth, lines_of, side_by_side
from lightconv.files import inside, replace_file

# The corpus with the most files has 1.4 million questions and 312,085 stories.
MAX_MEMBERS = 2_000_000
LARGEST_COPY = 64 << 20
BLOCK = 1 << 18

_GZIP = b"\x1f\x8b"
_ZIP = b"PK\x03\x04"
_TAR = b"ustar"  # at byte 257
# .00 is the first of several pieces.
_ARCHIVES = (".tar", ".tgz", ".gz", ".zip", ".00")


@dataclass(frozen=True)
class Member:
    """One file of a source: loose, or inside an archive."""

    container: Path
    name: str
    packed: bool

    @property
    def base(self) -> str:
        """File name without folders and without .gz."""
        return self.name.rpartition("/")[2].removesuffix(".gz")

    def __str__(self) -> str:
        return f"{self.container}: {self.name}" if self.packed else str(self.container)


# A stream must be read before the next member is asked for.
Contents = Generator[tuple[Member, io.BufferedReader], None, None]


class SourceFiles:
    """The files of a folder or an archive; of a folder, also those of the archives in it.

    ignore  text in the path of a file, or in the name of its archive, that leaves the file out
    """

    def __init__(self, path: Path, progress: Progress = lambda _: None, ignore: str = "") -> None:
        self.path = path
        # SHA-256 of archives, and of the required loose files.
        self.digests: dict[str, str] = {}
        self._named: dict[str, list[Member]] = {}
        self._links: set[str] = set()
        folder = path if path.is_dir() else path.parent
        loose, archives = _listed(path)
        for file in loose:
            self._add(Member(file, file.relative_to(folder).as_posix(), packed=False), ignore)
        for archive in archives:
            progress(f"looking through {archive.name}")
            digest = hashlib.sha256()
            for member, _ in _contents(archive, self._links, digest):
                self._add(member, ignore)
            self.digests[archive.relative_to(folder).as_posix()] = digest.hexdigest()
        if not self._named:
            raise ValueError(f"{path} holds no files, expected a corpus")

    def __iter__(self) -> Iterator[Member]:
        return itertools.chain.from_iterable(self._named.values())

    def find(self, *names: str) -> Member | None:
        """The first file that has one of these names; loose files and earlier names come first."""
        for name in names:
            if name in self._named:
                return self._named[name][0]
            if name in self._links:
                raise ValueError(
                    f"{self.path}: {name} is a link in an archive, expected a file. Unpack the "
                    "archive and give the folder"
                )
        return None

    def require(self, wanted: Mapping[str, Sequence[str]], needs: str) -> list[Member]:
        """One file for each description and the names it may have, entered in `digests`."""
        found = {what: self.find(*names) for what, names in wanted.items()}
        missing = [what for what, member in found.items() if member is None]
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise ValueError(f"{self.path} lacks {', '.join(missing[:3])}{more}, expected {needs}")
        members = [member for member in found.values() if member]
        for member in members:
            if not member.packed:
                with self.open(member) as file:
                    self.digests[member.name] = hashlib.file_digest(file, "sha256").hexdigest()
        return members

    def walk(self, names: Collection[str]) -> Contents:
        """The first file of each of these names, in one pass over each archive."""
        chosen: dict[Path, list[Member]] = {}
        for base, members in self._named.items():
            if base in names:
                chosen.setdefault(members[0].container, []).append(members[0])
        for members in chosen.values():
            yield from self._read(members)

    @contextmanager
    def open(self, member: Member) -> Iterator[io.BufferedReader]:
        """The bytes of one file; a .tgz is read from its beginning."""
        with closing(self._read([member])) as found:
            yield next(found)[1]

    def lines(self, member: Member, *, mend: bool = False) -> Iterator[str]:
        """The lines of one file, without CR; `mend` replaces bytes that are not UTF-8."""
        mended = 0

        def read(size: int) -> bytes:
            nonlocal mended
            raw = stream.readline(size)
            if not mend or (raw.isascii() and b"\0" not in raw):
                return raw
            text = raw.decode(errors="replace").replace("\0", " ").encode()
            mended += text != raw
            return text

        with self.open(member) as stream:
            for line in lines_of(read, str(member)):
                yield line.removesuffix("\r")
        if mended:
            warnings.warn(f"{member}: replaced broken bytes in {mended} lines", stacklevel=2)

    def on_disk(self, member: Member, folder: Path) -> Path:
        """A path to the file's content; a packed file is copied into the folder."""
        if not member.packed:
            return member.container
        folder.mkdir(parents=True, exist_ok=True)
        with self.open(member) as stream:
            content = stream.read(LARGEST_COPY + 1)
        if len(content) > LARGEST_COPY:
            raise ValueError(f"{member}: longer than {LARGEST_COPY >> 20} MB, expected BPE codes")
        path = folder / f"{hashlib.sha256(content).hexdigest()[:16]}.{member.base}"
        replace_file(path, content)
        return path

    def _add(self, member: Member, ignore: str) -> None:
        if ignore and ignore in f"{member.container.name}/{member.name}":
            return
        self._named.setdefault(member.base, []).append(member)
        if len(self._named) > MAX_MEMBERS:
            raise ValueError(
                f"{self.path} holds more than {MAX_MEMBERS:,} files, expected one corpus. "
                "Give the folder or the archive of the corpus alone"
            )

    def _read(self, members: list[Member]) -> Contents:
        container = members[0].container
        if not members[0].packed:
            if container != self.path and not stat.S_ISREG(container.lstat().st_mode):
                inside(self.path, members[0].name)  # a link may not leave the folder
            with container.open("rb") as file:
                yield members[0], file
            return
        left = {member.name for member in members}
        with closing(_contents(container, set())) as contents:
            for member, stream in contents:
                if member.name in left:
                    left.discard(member.name)
                    yield member, stream
                if not left:
                    return
        raise ValueError(f"{container} has changed: {min(left)} is gone. Start again")


def _listed(path: Path) -> tuple[list[Path], list[Path]]:
    if path.is_file():
        return ([], [path]) if _is_archive(path) else ([path], [])
    if not path.is_dir():
        kind = "is neither a file nor a folder" if path.exists() else "does not exist"
        raise ValueError(f"{path} {kind}, expected the archive or the folder of a corpus")
    loose: list[Path] = []
    archives: list[Path] = []
    for folder, folders, files in os.walk(path):
        folders.sort()
        for name in sorted(files):
            file = Path(folder, name)
            if name.endswith(_ARCHIVES) and file.is_file() and _is_archive(file):
                archives.append(file)
            elif not (file.suffix[1:].isdecimal() and file.with_suffix(".00").exists()):
                loose.append(file)
        if len(loose) > MAX_MEMBERS:  # `_add` raises
            break
    return loose, archives


def _is_archive(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(512)
    return head.startswith((_GZIP, _ZIP)) or head[257:262] == _TAR


def _contents(archive: Path, links: set[str], digest: Any = None) -> Contents:
    """Every regular file of an archive; adds names of links to `links` and bytes to `digest`."""
    pieces = [archive]
    if archive.suffix == ".00":
        numbered = (archive.with_suffix(f".{number:02}") for number in itertools.count())
        pieces = list(itertools.takewhile(Path.exists, numbered))
    size = sum(piece.stat().st_size for piece in pieces)
    with _damage_named(archive), closing(_blocks(pieces, digest)) as blocks:
        raw = io.BufferedReader(_Stream(blocks), BLOCK)
        if raw.peek(4).startswith(_ZIP):
            yield from _zip_contents(archive, links)
        else:
            with _unpacked(raw, archive, size) as stream:
                if stream.peek(512)[257:262] == _TAR:
                    yield from _tar_contents(archive, stream, links)
                else:
                    name = archive.name.removesuffix(archive.suffix)
                    yield Member(archive, name, packed=True), stream
                while digest and stream.read(BLOCK):
                    pass  # verifies the checksum at the end of a .gz
        while digest and raw.read(BLOCK):
            pass


def _tar_contents(archive: Path, stream: io.BufferedReader, links: set[str]) -> Contents:
    with tarfile.open(fileobj=stream, mode="r|", bufsize=BLOCK) as tar:
        while info := tar.next():
            tar.members = []  # type: ignore[attr-defined]  # it would keep every file
            if info.issym() or info.islnk():
                links.add(PurePosixPath(info.name).name)
            if not info.isreg() or info.issparse():
                continue
            member = Member(archive, _safe_name(info.name, archive), packed=True)
            with _unpacked(tar.extractfile(info), member, info.size) as content:
                yield member, content


def _zip_contents(archive: Path, links: set[str]) -> Contents:
    with zipfile.ZipFile(archive) as zipped:
        files = [info for info in zipped.infolist() if not info.is_dir()]
        check_growth(archive.stat().st_size, sum(info.file_size for info in files), archive)
        for info in files:
            if stat.S_ISLNK(info.external_attr >> 16):
                links.add(PurePosixPath(info.filename).name)
                continue
            if info.flag_bits & 1:
                raise ValueError(f"{archive}: {info.filename} is encrypted. Unpack it first")
            member = Member(archive, _safe_name(info.filename, archive), packed=True)
            with zipped.open(info) as file, _unpacked(file, member, info.file_size) as content:
                yield member, content


def _safe_name(name: str, archive: Path) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise ValueError(
            f"{archive} holds a file named {name[:80]!r}, expected names below one folder. "
            "Fetch the archive from its owner"
        )
    return str(path)


def _unpacked(stream: Any, where: object, size: int) -> "io.BufferedReader[Any]":
    """A stream of `size` bytes, decompressed if it is gzip, with a limit to its growth."""
    plain = io.BufferedReader(_Stream(_guarded(stream, where)), min(BLOCK, max(size, 512)))
    if not plain.peek(2).startswith(_GZIP):
        return plain
    blocks = _guarded(gzip.GzipFile(fileobj=plain), where, size)
    return io.BufferedReader(_Stream(blocks), BLOCK)


@contextmanager
def _damage_named(where: object) -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # gzip's own have none
            raise
        raise ValueError(
            f"{where} is damaged or incomplete ({error}). Fetch it again and compare its size "
            "with what the owner says"
        ) from None


def _blocks(paths: Iterable[Path], digest: Any) -> Generator[bytes, None, None]:
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                if digest:
                    digest.update(block)
                yield block


def _guarded(stream: Any, where: object, packed: int | None = None) -> Iterator[bytes]:
    """The bytes of a stream, decompressed from `packed` bytes; ValueError if it is damaged."""
    count = 0
    with _damage_named(where):
        while block := stream.read(BLOCK):
            count += len(block)
            if packed is not None:
                check_growth(packed, count, where)
            yield block


class _Stream(io.RawIOBase):
    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        self._rest = self._rest or memoryview(next(self._blocks, b""))
        part = self._rest[: len(buffer)]
        buffer[: len(part)] = part
        self._rest = self._rest[len(part) :]
        return len(part)


_OPEN = re.compile(r"<seg\b[^<>]*>?", re.IGNORECASE)
_CLOSE = re.compile("</seg>", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:(amp|lt|gt|quot|apos)|#([0-9]{1,7})|#x([0-9a-fA-F]{1,6}));")
_NAMED = {"amp": 38, "lt": 60, "gt": 62, "quot": 34, "apos": 39}


def read_pairs(
    read: Callable[[Member], Iterator[str]], members: Sequence[Member]
) -> Iterator[tuple[str, ...]]:
    """Pairs of lines of files, source and target by turns; ValueError if their numbers differ."""
    for pair in zip(members[::2], members[1::2], strict=True):
        yield from side_by_side(pair, read, "Fetch the corpus again")


def segments(lines: Iterable[str], name: str) -> Iterator[str]:
    """The texts between <seg> and </seg> of an .sgm or .xml file, as plain text."""
    expected = "expected a test set in the WMT or IWSLT format"
    _, *pieces = _OPEN.split(" ".join(lines))
    if not pieces:
        raise ValueError(f"{name} has no <seg>, {expected}")
    for piece in pieces:
        text, *end = _CLOSE.split(piece, 1)
        if not end:
            raise ValueError(f"{name} has a <seg> without its </seg>, {expected}")
        yield unescape(text).strip()


def unescape(text: str) -> str:
    """Replaces the five entities of XML and numeric ones, once; anything else stays."""
    return _ENTITY.sub(_character, text)


def _character(match: re.Match[str]) -> str:
    name, decimal, hexadecimal = match.groups()
    code = _NAMED.get(name) or (int(decimal) if decimal else int(hexadecimal, 16))
    # Neither a surrogate nor NUL.
    valid = 0 < code <= 0x10FFFF and not 0xD800 <= code < 0xE000
    return chr(code) if valid else match[0]
