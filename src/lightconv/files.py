"""Files and folders: replaced atomically, locked, verified by a manifest, found in the cache."""

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MANIFEST_FILE = "manifest.json"
MANIFEST_FORMAT = "lightconv manifest"
MANIFEST_VERSION = 1
# Far more bytes than any manifest needs.
LARGEST_MANIFEST = 256 << 10
# File systems without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def inside(folder: Path, name: str) -> Path:
    """The regular file `name` of an untrusted folder; a link that leaves the folder is refused."""
    path = folder / name
    try:
        path.stat()
    except FileNotFoundError:
        raise ValueError(f"{folder} has no file {name}") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if not path.is_file():
        raise ValueError(f"{path} is not a regular file")
    if not path.resolve().is_relative_to(folder.resolve()) and not _is_blob(path, folder):
        raise ValueError(
            f"{path} is a link that leaves its folder. If you trust what it points to, make a copy "
            "of the folder with cp -rL"
        )
    return path


def _is_blob(path: Path, folder: Path) -> bool:
    """True for a link of a hub's cache: models--USER--NAME/snapshots/REVISION/NAME to blobs/ID."""
    snapshots = folder.resolve().parent
    is_cache = snapshots.name == "snapshots" and snapshots.parent.name.startswith("models--")
    return is_cache and path.resolve().parent == snapshots.parent / "blobs"


@contextmanager
def named(place: object) -> Iterator[None]:
    """A ValueError in the block begins with the name of what is wrong: `PLACE: ...`."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    handle = os.open(path, flags, 0o666)
    try:
        yield handle
    finally:
        os.close(handle)


def write_file(path: Path, *parts: bytes | memoryview) -> dict[str, Any]:
    """Writes a new file and syncs it to disk; returns its entry of a manifest."""
    found = hashlib.sha256()
    # A second thread computes the digest while this one waits for the disk.
    with _opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as handle, ThreadPoolExecutor(1) as it:
        updates = it.map(found.update, parts)
        for part in parts:
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(handle, rest) :]
        os.fsync(handle)
        list(updates)
    return {"bytes": sum(map(len, parts)), "sha256": found.hexdigest()}


def replace_file(path: Path, data: bytes) -> None:
    """Replaces a file atomically: a reader or a crash sees the old content or the new one."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        write_file(fresh, data)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Syncs a file, or the names in a folder, to disk."""
    with _opened(path, os.O_RDONLY) as handle:
        os.fsync(handle)


@contextmanager
def new_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """A temporary folder beside `path` that is renamed to `path` when the block succeeds.

    replace  an existing `path` is removed; the caller has checked that it may be
    """
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    mark = secrets.token_hex(4)
    fresh, old = (path.with_name(f".{path.name}.{mark}.{state}") for state in ("new", "old"))
    fresh.mkdir()
    try:
        yield fresh
        sync(fresh)
        if replace and path.exists():
            path.rename(old)
        # An empty folder at `path` would be replaced; any other is an OSError.
        fresh.rename(path)
        shutil.rmtree(old, ignore_errors=True)
        sync(path.parent)
    except BaseException:
        if old.exists() and not path.exists():
            old.rename(path)
        raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


@contextmanager
def lock(
    path: Path, busy: str | None, *, wait: Callable[[], None] | None = None, inherited: bool = False
) -> Iterator[int]:
    """Holds an exclusive lock on a file, created if missing; yields its descriptor.

    busy       error message if another process holds the lock; None waits for it
    wait       called once before waiting
    inherited  forked children share the lock and keep it beyond the end of their parent
    """
    import fcntl

    take = fcntl.flock if inherited else fcntl.lockf
    path.parent.mkdir(parents=True, exist_ok=True)
    with _opened(path, os.O_RDWR | os.O_CREAT) as handle:
        try:
            take(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The folder may have been removed, and the file with it, since it was opened.
            if busy is not None and not os.path.samestat(os.fstat(handle), path.stat()):
                raise ValueError(busy)
        except (BlockingIOError, PermissionError, FileNotFoundError):
            if busy is not None:
                raise ValueError(busy) from None
            if wait is not None:
                wait()
            take(handle, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield handle


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, skip: Collection[str] = ()) -> None:
    """Writes manifest.json: size and SHA-256 of every file that is neither hidden nor skipped."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": digest(path)}
        for path in sorted(folder.glob("[!.]*"))
        if path.is_file() and path.name not in (MANIFEST_FILE, *skip)
    }
    data = {"format": MANIFEST_FORMAT, "version": MANIFEST_VERSION, "files": files}
    replace_file(folder / MANIFEST_FILE, (json.dumps(data, indent=2) + "\n").encode())


def verify_manifest(folder: Path, names: Collection[str] = (), *, quick: bool = False) -> None:
    """Raises ValueError naming the first file that is missing or changed.

    names  the files to compare, all of which must be listed; default: those listed
    quick  compare sizes only
    """
    listed = read_manifest(folder)
    for name in names or listed:
        if name not in listed:
            raise ValueError(f"{folder / name} is not listed in {MANIFEST_FILE}")
        path, size, wanted = inside(folder, name), listed[name]["bytes"], listed[name]["sha256"]
        if (found := path.stat().st_size) != size:
            raise ValueError(f"{path}: {found} bytes, expected {size} by {MANIFEST_FILE}")
        if not quick and (got := digest(path)) != wanted:
            marks = f"{got[:12]}..., expected {wanted[:12]}..."
            raise ValueError(f"{path}: SHA-256 {marks} by {MANIFEST_FILE}")


def read_manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """Entries of an untrusted manifest.json by file name: bytes and sha256."""
    path = inside(folder, MANIFEST_FILE)
    if path.stat().st_size > LARGEST_MANIFEST:
        raise ValueError(f"{path} is longer than {LARGEST_MANIFEST} bytes, so it is not a manifest")
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a manifest: {error}") from None
    if not isinstance(data, dict) or data.get("format") != MANIFEST_FORMAT:
        raise ValueError(f'{path} is not a manifest, expected "format": "{MANIFEST_FORMAT}"')
    if data.get("version") != MANIFEST_VERSION or isinstance(data["version"], bool):
        got = str(data.get("version"))[:20]
        raise ValueError(f"{path}: version {got}, expected {MANIFEST_VERSION}")
    files = data.get("files")
    if not isinstance(files, dict) or not all(_is_entry(*item) for item in files.items()):
        raise ValueError(f"{path}: files must be a table of names with bytes and sha256")
    return files


def _is_entry(name: str, entry: Any) -> bool:
    return (
        Path(name).name == name
        and name.isprintable()
        and isinstance(entry, dict)
        and type(entry.get("bytes")) is int
        and isinstance(entry.get("sha256"), str)
    )


def cache_folder() -> Path:
    """Folder for what is fetched or compiled once: $LIGHTCONV_CACHE, else the user's cache."""
    if chosen := os.environ.get("LIGHTCONV_CACHE"):
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "lightconv")
    except RuntimeError as error:  # no $HOME and no entry in the system's list of users
        raise OSError(str(error)) from None
