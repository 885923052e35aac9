"""Files and folders: replaced atomically, locked, verified by a manifest, found in the cache."""

import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MANIFEST_FILE = "manifest.json"
MANIFEST_FORMAT = "lightconv manifest"
MANIFEST_VERSION = 1
# Far more than any configuration or manifest needs.
LARGEST_TEXT = 256 << 10
# File systems without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def inside(folder: Path, name: str) -> Path:
    """The regular file `name` of an untrusted folder; a link that leaves the folder is refused."""
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
        raise ValueError(f"{path} is not a regular file")
    if not real.is_relative_to(root):
        raise ValueError(
            f"{path} is a link that leaves its folder. If you trust what it points to, make a copy "
            "of the folder with cp -rL"
        )
    return path


def write_file(path: Path, data: bytes) -> None:
    """Writes a new file and syncs it to disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


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
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def new_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """A temporary folder beside `path` that is renamed to `path` when the block succeeds.

    replace  an existing `path` is removed; the caller has checked that it may be
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


@contextmanager
def lock(
    path: Path,
    busy: str | None,
    *,
    wait: Callable[[], None] | None = None,
    inherited: bool = False,
) -> Iterator[int]:
    """Holds an exclusive lock on a file, created if missing; yields its descriptor.

    busy       error message if another process holds the lock; None waits for it
    wait       called once before waiting
    inherited  forked children share the lock and keep it beyond the end of their parent
    """
    import fcntl

    take = fcntl.flock if inherited else fcntl.lockf
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            take(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                if busy is not None:
                    raise ValueError(busy) from None
                if wait is not None:
                    wait()
                take(handle, fcntl.LOCK_EX)
            elif error.errno not in _NO_LOCKS:
                raise
        # The folder may have been removed, and the file with it, since it was opened.
        if busy is not None and not _is_at(path, handle):
            raise ValueError(busy)
        yield handle
    finally:
        os.close(handle)


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except OSError:
        return False


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, skip: Collection[str] = ()) -> None:
    """Writes manifest.json: size and SHA-256 of every file that is neither hidden nor skipped."""
    left_out = {MANIFEST_FILE, *skip}
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": digest(path)}
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.name.startswith(".") and path.name not in left_out
    }
    data = {"format": MANIFEST_FORMAT, "version": MANIFEST_VERSION, "files": files}
    replace_file(folder / MANIFEST_FILE, (json.dumps(data, indent=2) + "\n").encode())


def verify_manifest(folder: Path, *, quick: bool = False) -> None:
    """Raises ValueError naming the first file that is missing or changed.

    quick  compare sizes only
    """
    for name, entry in read_manifest(folder).items():
        path = inside(folder, name)
        size = path.stat().st_size
        if size != entry["bytes"]:
            raise ValueError(f"{path}: {size} bytes, expected {entry['bytes']} by {MANIFEST_FILE}")
        if not quick and (found := digest(path)) != entry["sha256"]:
            raise ValueError(
                f"{path}: SHA-256 {found[:12]}..., expected {entry['sha256'][:12]}... by "
                f"{MANIFEST_FILE}"
            )


def read_manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """Entries of an untrusted manifest.json by file name: bytes and sha256."""
    path = inside(folder, MANIFEST_FILE)
    if path.stat().st_size > LARGEST_TEXT:
        raise ValueError(f"{path} is longer than {LARGEST_TEXT} bytes, so it is not a manifest")
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
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "lightconv"
    try:
        return Path.home() / ".cache" / "lightconv"
    except RuntimeError as error:  # no $HOME and no entry in the system's list of users
        raise OSError(str(error)) from None
