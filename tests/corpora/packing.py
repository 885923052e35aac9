"""Small archives in the formats that owners of corpora ship."""

import gzip
import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

Files = Mapping[str, str | bytes]


def to_bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def write_folder(folder: Path, files: Files) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(to_bytes(content))
    return folder


def write_tar(path: Path, files: Files, *, links: Mapping[str, str] | None = None) -> Path:
    """A .tar, or a .tgz by its name."""
    mode = "w" if path.suffix == ".tar" else "w:gz"
    with tarfile.open(path, mode) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(to_bytes(content))
            tar.addfile(info, io.BytesIO(to_bytes(content)))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return path


def write_zip(path: Path, files: Files) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in files.items():
            zipped.writestr(name, to_bytes(content))
    return path


def write_gzip(path: Path, content: str | bytes) -> Path:
    path.write_bytes(gzip.compress(to_bytes(content)))
    return path


def lines(*texts: str) -> str:
    return "".join(f"{text}\n" for text in texts)
