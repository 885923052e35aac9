"""One checkpoint: a folder of safetensors files, state.json and a manifest of their digests.

Nothing in it is a pickle, and nothing is used before its digest has been compared.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from lightconv.files import (
    MANIFEST_FILE,
    MANIFEST_FORMAT,
    MANIFEST_VERSION,
    inside,
    read_manifest,
)
from lightconv.models.tensors import Entry, check_tensors, read_tensors, write_tensors, write_views

STATE_FILE = "state.json"
SUFFIX = ".safetensors"
# The part that every checkpoint has; its file is that of a model folder.
MODEL_PART = "model"
# Moving averages of parameters, where training keeps such.
EMA_PART = "ema"
PART = re.compile(r"[a-z][a-z0-9_]*")

Tensors = Mapping[str, Tensor]


class DamagedError(ValueError):
    """A checkpoint that is not what was written; the message names the file."""


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A checkpoint that could not be used, and why."""

    step: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What was saved, verified.

    score    how good the model was, more is better; None if nobody knew
    tensors  by part (`model`, `optimizer`), then by name; mapped from the files, so copy them
    values   what the trainer gave
    skipped  newer checkpoints that are damaged
    """

    path: Path
    step: int
    score: float | None
    tensors: dict[str, dict[str, Tensor]]
    values: dict[str, Any]
    skipped: tuple[Skipped, ...] = ()


def check_parts(tensors: Mapping[str, Tensors], values: Mapping[str, Any]) -> None:
    """Raises ValueError if something of this could not be read back as it is."""
    if MODEL_PART not in tensors:
        raise ValueError(f"a checkpoint needs the part {MODEL_PART!r}, got {sorted(tensors)}")
    for part, named in tensors.items():
        if not PART.fullmatch(part):
            raise ValueError(f"a part must not be called {part!r}, expected small letters")
        check_tensors(part, named)
    _check_plain(dict(values), "values")


def write_checkpoint(
    folder: Path,
    step: int,
    tensors: Mapping[str, Tensors],
    values: Mapping[str, Any],
    score: float | None,
) -> None:
    """Writes the files into an empty folder; each is on the disk when this returns."""
    files = {
        part + SUFFIX: write_tensors(folder / (part + SUFFIX), named)
        for part, named in tensors.items()
    }
    # NaN and infinity, which Python writes and reads, are not worth losing a checkpoint for.
    state = {"step": step, "score": score, "values": values}
    files[STATE_FILE] = _write_json(folder / STATE_FILE, state)
    _write_json(
        folder / MANIFEST_FILE,
        {"format": MANIFEST_FORMAT, "version": MANIFEST_VERSION, "files": files},
    )


def read_checkpoint(folder: Path) -> Checkpoint:
    """All of a checkpoint, verified; DamagedError says which file is not what it was."""
    files = _Files(folder)
    state = files.state()
    parts = [name.removesuffix(SUFFIX) for name in files.entries if name != STATE_FILE]
    return Checkpoint(
        path=folder,
        step=state["step"],
        score=state["score"],
        tensors={part: files.part(part) for part in parts},
        values=state["values"],
    )


def verify_checkpoint(folder: Path) -> None:
    """Raises DamagedError unless every file is what was written."""
    files = _Files(folder)
    for name in files.entries:
        files.verified(name)


def read_part(folder: Path, part: str) -> dict[str, Tensor]:
    """The tensors of one part, verified; the other files are not read."""
    return _Files(folder).part(part)


def read_state(folder: Path) -> dict[str, Any]:
    """`step`, `score` and `values`, verified; the tensors are not read."""
    return _Files(folder).state()


class _Files:
    """A checkpoint's files, each compared with the manifest when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.entries = read_manifest(folder)
        except (OSError, ValueError) as error:
            raise DamagedError(str(error)) from None
        manifest = folder / MANIFEST_FILE
        for name in self.entries:
            part = name.removesuffix(SUFFIX)
            if name != STATE_FILE and (part == name or not PART.fullmatch(part)):
                raise DamagedError(f"{manifest}: lists {name[:60]!r}, which is no file of ours")
        for name in (MODEL_PART + SUFFIX, STATE_FILE):
            if name not in self.entries:
                raise DamagedError(f"{manifest}: does not list {name}")

    def verified(self, name: str) -> Path:
        """The file, if its size and digest are those of the manifest."""
        if name not in self.entries:
            raise DamagedError(f"{self.folder} has no {name}")
        entry = self.entries[name]
        try:
            path = inside(self.folder, name)
            size = path.stat().st_size
            if size != entry["bytes"]:
                raise DamagedError(f"{path}: {size} bytes, expected {entry['bytes']}")
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except (OSError, ValueError) as error:
            raise DamagedError(str(error)) from None
        if digest != entry["sha256"]:
            raise DamagedError(f"{path}: the bytes are not those that were written (SHA-256)")
        return path

    def part(self, part: str) -> dict[str, Tensor]:
        path = self.verified(part + SUFFIX)
        try:
            return read_tensors(path)
        except (OSError, ValueError) as error:
            raise DamagedError(str(error)) from None

    def state(self) -> dict[str, Any]:
        path = self.verified(STATE_FILE)
        try:
            state = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise DamagedError(f"{path}: {error}") from None
        if (
            not isinstance(state, dict)
            or not isinstance(state.get("step"), int)
            or not isinstance(state.get("score", ...), float | None)
            or not isinstance(state.get("values"), dict)
        ):
            raise DamagedError(f"{path}: expected a table of step, score and values")
        return state


def _write_json(path: Path, data: Mapping[str, Any]) -> Entry:
    # No newline at the end: a manifest that lacks its last byte, whichever, can then not be read.
    return write_views(path, [memoryview(json.dumps(data, indent=1).encode())])


def _check_plain(value: Any, where: str) -> None:
    """Raises ValueError for what JSON would refuse or give back as something else."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{where} has the key {key!r}, expected text")
            _check_plain(item, f"{where}.{key}")
    elif isinstance(value, list):
        for place, item in enumerate(value):
            _check_plain(item, f"{where}.{place}")
    elif not isinstance(value, str | int | float | None):
        kind = type(value).__name__
        raise ValueError(f"{where} is a {kind}, expected text, numbers, lists and tables")
