"""Files in a .deb package, read as a stream: nothing is ever written where the package says."""

import lzma
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

# Larger members are no texts.
_MAX_BYTES = 8 << 20
_MAGIC = b"!<arch>\n"
_HEADER = 60


def read_members(package: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """The names and contents of the regular files whose names are wanted."""
    try:
        with _data(package) as stream, tarfile.open(fileobj=stream, mode="r|*") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if member.isreg() and member.size <= _MAX_BYTES and wanted(name):
                    file = archive.extractfile(member)
                    if file is not None:
                        yield name, file.read()
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError) as error:
        raise ValueError(
            f"{package} cannot be read as a package: {error}. Remove its folder to fetch it anew"
        ) from None


@contextmanager
def _data(package: Path) -> Iterator[IO[bytes]]:
    """The package's data.tar, perhaps compressed in a way that tarfile knows."""
    tool = shutil.which("dpkg-deb")
    if tool is None:
        with package.open("rb") as file:
            _seek_data(file, package)
            yield file
        return
    command = [tool, "--fsys-tarfile", str(package)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            yield process.stdout
            while process.stdout.read(1 << 16):
                pass
        except BaseException:
            process.kill()
            raise
        if process.wait() != 0:
            reason = process.stderr.read().decode("utf-8", "replace")
            raise OSError(" ".join(reason.split()))


def _seek_data(file: IO[bytes], package: Path) -> None:
    """Moves to the member data.tar.* of the `ar` archive that a package is."""
    if file.read(len(_MAGIC)) != _MAGIC:
        raise ValueError(f"{package} is no Debian package. Remove its folder to fetch it anew")
    # name 16, date 12, owner 6, group 6, mode 8, size 10, end 2
    while len(header := file.read(_HEADER)) == _HEADER:
        name = header[:16].decode("ascii", "replace").strip().rstrip("/")
        size = header[48:58].strip()
        if header[58:] != b"`\n" or not size.isdigit():
            break
        if name.startswith("data.tar"):
            if name.endswith(".zst"):
                raise ValueError(f"{package} is compressed with zstd: reading it needs dpkg-deb")
            if file.tell() + int(size) > package.stat().st_size:
                break
            return
        file.seek(int(size) + int(size) % 2, 1)
    raise ValueError(f"{package} is cut or damaged. Remove its folder to fetch it anew")
