"""Folders that are written whole or not at all, and files that are what they seem to be."""

import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def inside(folder: Path, name: str) -> Path:
    """The regular file `name` of a folder that may come from a stranger.

    A link that leaves the folder is refused, and so is what one cannot read like a file.
    """
    path = folder / name
    try:
        mode = path.stat().st_mode
        real, root = path.resolve(strict=True), folder.resolve(strict=True)
    except FileNotFoundError:
        raise ValueError(f"{folder} has no file {name}") from None
    except (OSError, RuntimeError) as error:  # a link to itself is a RuntimeError in older Pythons
        reason = getattr(error, "strerror", None) or "a link that leads nowhere"
        raise ValueError(f"{path} cannot be read: {reason}") from None
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path} is no regular file")
    if not real.is_relative_to(root):
        raise ValueError(
            f"{path} is a link that leaves its folder. If you trust what it points to, make a copy "
            "of the folder with cp -rL"
        )
    return path


def write_file(path: Path, data: bytes) -> None:
    """Writes a file that is on the disk when this returns."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Waits until a file, or the list of names in a folder, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def new_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """A temporary folder beside `path`, which becomes `path` when the block has ended well.

    Whatever happens in the block, `path` is what it was before or what was written in full. The
    caller answers for what `replace` removes.
    """
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    mark = secrets.token_hex(4)
    fresh = path.with_name(f".{path.name}.{mark}.new")
    fresh.mkdir()
    try:
        yield fresh
        sync(fresh)
        if replace and path.exists():
            _swap(fresh, path, path.with_name(f".{path.name}.{mark}.old"))
        else:
            # An empty folder at `path` would be replaced; any other is an OSError.
            fresh.rename(path)
        sync(path.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _swap(fresh: Path, path: Path, old: Path) -> None:
    path.rename(old)
    try:
        fresh.rename(path)
    except BaseException:
        old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)
