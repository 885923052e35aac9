"""Folders, archives and packages in the formats that owners of corpora ship."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

Files = Mapping[str, str | bytes]

COMPRESSIONS: Mapping[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


def lines(*texts: str) -> str:
    return "".join(f"{text}\n" for text in texts)


def to_bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def write_folder(folder: Path, files: Files) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(to_bytes(content))
    return folder


def pack(path: Path, files: Files, *odd: tarfile.TarInfo) -> Path:
    """An archive by its name: .zip, .tar, or a .tgz; `odd` members of a tar have no content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
            for name, content in files.items():
                zipped.writestr(name, to_bytes(content))
    else:
        data = _tar(files, odd)
        path.write_bytes(data if path.suffix == ".tar" else gzip.compress(data, mtime=0))
    return path


def odd_member(name: str, kind: bytes, target: str = "/etc/passwd") -> tarfile.TarInfo:
    """A link, a device or another member of a tar that is not a regular file."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def _tar(files: Files, odd: tuple[tarfile.TarInfo, ...]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for info in odd:
            tar.addfile(info)
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(to_bytes(content))
            tar.addfile(info, io.BytesIO(to_bytes(content)))
    return buffer.getvalue()


def make_deb(files: Files, compression: str = ".xz", *odd: tarfile.TarInfo) -> bytes:
    """A package: an `ar` archive of three members."""
    tar = _tar({f"./{name}": data for name, data in files.items()}, odd)
    data = COMPRESSIONS.get(compression, bytes)(tar)
    members = {"debian-binary": b"2.0\n", "control.tar": b"odd", f"data.tar{compression}": data}
    return b"!<arch>\n" + b"".join(_ar_member(name, data) for name, data in members.items())


def _ar_member(name: str, data: bytes) -> bytes:
    header = f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n"
    return header.encode() + data + b"\n" * (len(data) % 2)
