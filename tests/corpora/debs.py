"""Packages for tests: an `ar` archive of three members, written by hand."""

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Callable, Mapping

COMPRESSIONS: Mapping[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


def make_deb(files: Mapping[str, bytes], compression: str = ".xz", *odd: tarfile.TarInfo) -> bytes:
    """A package with these files, and with odd members that are no regular files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for info in odd:
            archive.addfile(info)
        for name, data in files.items():
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    data = COMPRESSIONS.get(compression, bytes)(buffer.getvalue())
    members = {"debian-binary": b"2.0\n", "control.tar": b"odd", f"data.tar{compression}": data}
    return b"!<arch>\n" + b"".join(_member(name, data) for name, data in members.items())


def _member(name: str, data: bytes) -> bytes:
    header = f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n"
    return header.encode() + data + b"\n" * (len(data) % 2)
