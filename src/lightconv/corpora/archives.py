"""The files of a corpus as its owners ship it: loose in a folder, in archives, or both.

What is asked for by name comes as a stream, wherever it lies. Nothing is written to the disk.
"""

import hashlib
import io
import itertools
import os
import secrets
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from lightconv.corpora import Progress
from lightconv.corpora.unpack import Contents, Found, Member, contents, is_archive
from lightconv.data.text import lines_of
from lightconv.files import inside, write_file

# The corpus with the most files has 312,085 of them.
MAX_MEMBERS = 1_000_000
# What is copied to the disk is small.
LARGEST_COPY = 64 << 20
# .00 is the first of several pieces; the others come with it.
_ARCHIVES = (".tar", ".tgz", ".gz", ".zip", ".00")


class Source:
    """What a folder or an archive holds; in a folder, also what the archives in it hold."""

    def __init__(self, path: Path, progress: Progress = lambda _: None) -> None:
        self.path = path
        # SHA-256 of archives, and of the loose files that were recorded.
        self.digests: dict[str, str] = {}
        self._named: dict[str, list[Member]] = {}
        self._links: set[str] = set()
        loose, archives = _listed(path)
        for file in loose:
            self._add(Member(file, _name(file, path), packed=False))
        for archive in archives:
            progress(f"looking through {archive.name}")
            digest = hashlib.sha256()
            for found in contents(archive, digest.update, self._links):
                self._add(found.member)
            self.digests[_name(archive, path)] = digest.hexdigest()
        if not self._named:
            raise ValueError(f"{path} holds no files, expected a corpus")

    def __iter__(self) -> Iterator[Member]:
        return itertools.chain.from_iterable(self._named.values())

    def named(self, base: str) -> list[Member]:
        """Every file of that name, loose ones first."""
        if base not in self._named and base in self._links:
            raise ValueError(
                f"{self.path}: {base} is a link in an archive, expected a file. Unpack the archive "
                "and give the folder"
            )
        return self._named.get(base, [])

    def find(self, *names: str) -> Member | None:
        """The first file that has one of these names; the first name before the others."""
        return next((member for name in names for member in self.named(name)), None)

    def record(self, members: Iterable[Member]) -> None:
        """Enters the digests of loose files; those of archives were taken when they were listed."""
        for member in members:
            if not member.packed and member.name not in self.digests:
                with self.open(member) as file:
                    self.digests[member.name] = hashlib.file_digest(file, "sha256").hexdigest()

    def digest(self, member: Member) -> str:
        """The SHA-256 of what the member lies in; loose files must have been recorded."""
        return self.digests[_name(member.container, self.path)]

    def walk(self, wanted: Callable[[str], bool]) -> Contents:
        """Files whose name without folders is wanted, in one pass over each archive.

        Of several files with one name it is the first.
        """
        chosen: dict[Path, list[Member]] = {}
        for base, members in self._named.items():
            if wanted(base):
                chosen.setdefault(members[0].container, []).append(members[0])
        for members in chosen.values():
            yield from self._read(members)

    @contextmanager
    def open(self, member: Member) -> Iterator[io.BufferedReader]:
        """The bytes of one file; in a .tgz this means to read over what stands before it."""
        with closing(self._read([member])) as found:
            yield next(found).stream

    def lines(self, member: Member, *, mend: bool = False) -> Iterator[str]:
        """The lines of one file, without CR; `mend` replaces bytes that are not UTF-8."""
        with self.open(member) as stream:
            mended = _Mended(stream)
            file: Any = mended if mend else stream
            for line in lines_of(file, str(member)):
                yield line.removesuffix("\r")
        if mended.count:
            warnings.warn(f"{member}: replaced broken bytes in {mended.count} lines", stacklevel=2)

    def on_disk(self, member: Member, folder: Path) -> Path:
        """A file that others open by its path; what is packed is written into the folder."""
        if not member.packed:
            return member.container
        folder.mkdir(parents=True, exist_ok=True)
        with self.open(member) as stream:
            content = stream.read(LARGEST_COPY + 1)
        if len(content) > LARGEST_COPY:
            raise ValueError(f"{member} is longer than {LARGEST_COPY >> 20} MB, which is no codes")
        # Named by what it holds, so that nothing else can be there under this name.
        path = folder / f"{hashlib.sha256(content).hexdigest()[:16]}.{member.base}"
        return replace_file(path, content)

    def _add(self, member: Member) -> None:
        self._named.setdefault(member.base, []).append(member)
        if len(self._named) > MAX_MEMBERS:
            raise ValueError(
                f"{self.path} holds more than {MAX_MEMBERS:,} files, expected one corpus. "
                "Give the folder or the archive of the corpus alone"
            )

    def _read(self, members: list[Member]) -> Contents:
        """Files of one container, in its order."""
        container = members[0].container
        if not members[0].packed:
            if container != self.path and not stat.S_ISREG(container.lstat().st_mode):
                inside(self.path, members[0].name)  # A link may point about, but not outside.
            with container.open("rb") as file:
                yield Found(members[0], file)
            return
        left = {member.name for member in members}
        with closing(contents(container)) as all_found:
            for found in all_found:
                if found.member.name in left:
                    left.discard(found.member.name)
                    yield found
                if not left:
                    return
        raise ValueError(f"{container} has changed: {min(left)} is gone. Start again")


def _name(file: Path, root: Path) -> str:
    return file.name if file == root else file.relative_to(root).as_posix()


def _listed(path: Path) -> tuple[list[Path], list[Path]]:
    """Loose files and archives, in the order of their names."""
    if path.is_file():
        return ([], [path]) if is_archive(path) else ([path], [])
    if not path.is_dir():
        kind = "is neither a file nor a folder" if path.exists() else "does not exist"
        raise ValueError(f"{path} {kind}, expected the archive or the folder of a corpus")
    loose: list[Path] = []
    archives: list[Path] = []
    for folder, folders, files in os.walk(path):
        folders.sort()
        for name in sorted(files):
            file = Path(folder, name)
            if name.endswith(_ARCHIVES) and file.is_file() and is_archive(file):
                archives.append(file)
            elif not (file.suffix[1:].isdecimal() and file.with_suffix(".00").exists()):
                loose.append(file)
        if len(loose) > MAX_MEMBERS:
            break  # Somebody gave their whole disk; the number is complained about later.
    return loose, archives


class _Mended:
    """Lines of a stream with what is not UTF-8 replaced."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self.stream = stream
        self.count = 0

    def readline(self, size: int) -> bytes:
        raw = self.stream.readline(size)
        if raw.isascii() and b"\0" not in raw:
            return raw
        mended = raw.decode(errors="replace").replace("\0", " ").encode()
        self.count += mended != raw
        return mended


def replace_file(path: Path, content: bytes) -> Path:
    """Writes a file that is there in full or not at all."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    write_file(temporary, content)
    return temporary.replace(path)
