"""log.jsonl: one JSON object for each logged update and each validation, in order of steps."""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

LOG_FILE = "log.jsonl"

Entry = dict[str, Any]


class Log:
    """Appends to a log; what a crash tore, or what will be done again, is cut off first.

    keep  whether an entry of before is still true
    """

    def __init__(self, path: Path, keep: Callable[[Entry], bool] = lambda entry: True) -> None:
        self.path = path
        self._file = path.open("ab", buffering=0)
        entries, size = _read(path, keep)
        if size < path.stat().st_size:
            self._file.truncate(size)
        self.entries = entries

    def write(self, entry: Mapping[str, Any]) -> None:
        """Appends one line; a number that is not finite becomes null, as JSON has it."""
        plain = {name: _finite(value) for name, value in entry.items()}
        self.entries.append(plain)
        rest = json.dumps(plain, allow_nan=False).encode() + b"\n"
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None

    def sync(self) -> None:
        """Waits until all of it is on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Ends writing."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_log(path: str | Path) -> list[Entry]:
    """The entries of a log that may still be written to: a torn last line is left out."""
    return _read(Path(path), lambda entry: True)[0]


def _read(path: Path, keep: Callable[[Entry], bool]) -> tuple[list[Entry], int]:
    """The entries up to the first that is torn or not to be kept, and the bytes they take."""
    entries: list[Entry] = []
    size = 0
    for line in path.read_bytes().splitlines(keepends=True):
        entry = _parse(line)
        if entry is None or not keep(entry):
            break
        entries.append(entry)
        size += len(line)
    return entries, size


def _parse(line: bytes) -> Entry | None:
    if not line.endswith(b"\n"):
        return None
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) and type(entry.get("step")) is int else None


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
