"""Checkpoints of a run: written by one process, pruned, found again, averaged.

Each is a folder of safetensors files, state.json and a manifest of their digests. Nothing in it is
a pickle, and every file is verified before it is used. Tensors of model and optimiser are stored by
the names of parameters; a tied matrix has its first name.
"""

import errno
import json
import math
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from lightconv.files import (
    MANIFEST_FILE,
    MANIFEST_FORMAT,
    MANIFEST_VERSION,
    inside,
    lock,
    new_folder,
    read_manifest,
    sync,
    verify_manifest,
    write_file,
)
from lightconv.models.tensors import Tensors, compare, read_tensors, write_tensors

STATE_FILE = "state.json"
SUFFIX = ".safetensors"
# Parts: the model, which every checkpoint has, its optimiser, moving averages of its parameters.
MODEL_PART = "model"
OPTIMIZER_PART = "optimizer"
EMA_PART = "ema"
PART = re.compile(r"[a-z][a-z0-9_]*")
LOCK_FILE = ".lock"
STEP = re.compile(r"step-(\d{8,})")
# Folders that are being written, replaced or removed.
PASSING = re.compile(r"\.step-(\d{8,})\.[0-9a-f]{8}\.(new|old|gone)")
# Checkpoints of any kind that are kept, so that there is one to fall back to.
FEWEST = 2

REMEDIES = dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "Make room")
REMEDIES |= dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "Make the folder writable")


class DamagedError(ValueError):
    """A checkpoint that is not what was written; the message names the file."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A verified checkpoint.

    score    quality of the model, more is better; None if unknown
    tensors  by part, then by name; memory-mapped, so copy them
    values   plain values of trainer, progress, optimiser, data and machine
    skipped  newer checkpoints that are damaged: reasons by step, newest first
    """

    path: Path
    step: int
    score: float | None
    tensors: dict[str, dict[str, Tensor]]
    values: dict[str, Any]
    skipped: dict[int, str] = field(default_factory=dict)


def write_checkpoint(
    folder: Path,
    step: int,
    tensors: Mapping[str, Tensors],
    values: Mapping[str, Any],
    score: float | None,
) -> None:
    """Writes the files into an empty folder and syncs each to disk."""
    _check_plain("values", values)
    names = {part + SUFFIX: named for part, named in tensors.items()}
    files = {name: write_tensors(folder / name, named) for name, named in names.items()}
    state = {"step": step, "score": score, "values": values}
    files[STATE_FILE] = _write_json(folder / STATE_FILE, state)
    manifest = {"format": MANIFEST_FORMAT, "version": MANIFEST_VERSION, "files": files}
    _write_json(folder / MANIFEST_FILE, manifest)


def read_checkpoint(folder: Path) -> Checkpoint:
    """A checkpoint, verified; DamagedError names the file that is not what was written."""
    files = CheckpointFiles(folder)
    state = files.state()
    parts = [name.removesuffix(SUFFIX) for name in files.entries if name != STATE_FILE]
    return Checkpoint(path=folder, tensors={part: files.part(part) for part in parts}, **state)


class CheckpointFiles:
    """Files of a checkpoint, each verified when it is read; DamagedError names a damaged one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with _damage():
            self.entries = read_manifest(folder)
        manifest = folder / MANIFEST_FILE
        for name in self.entries:
            part = name.removesuffix(SUFFIX)
            if name != STATE_FILE and (part == name or not PART.fullmatch(part)):
                raise DamagedError(f"{manifest}: lists the unknown file {name[:60]!r}")
        for name in (MODEL_PART + SUFFIX, STATE_FILE):
            if name not in self.entries:
                raise DamagedError(f"{manifest}: does not list {name}")

    def verify(self) -> None:
        for name in self.entries:
            self._verified(name)

    def _verified(self, name: str) -> Path:
        if name not in self.entries:
            raise DamagedError(f"{self.folder} has no {name}")
        with _damage():
            verify_manifest(self.folder, [name])
            return inside(self.folder, name)

    def part(self, part: str) -> dict[str, Tensor]:
        with _damage():
            return read_tensors(self._verified(part + SUFFIX))

    def state(self) -> dict[str, Any]:
        """`step`, `score` and `values`."""
        path = self._verified(STATE_FILE)
        try:
            state = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise DamagedError(f"{path}: {error}") from None
        kinds = {"step": int, "score": float | None, "values": dict}
        if not isinstance(state, dict) or not all(
            isinstance(state.get(name, ...), kind) for name, kind in kinds.items()
        ):
            raise DamagedError(f"{path}: expected a table of step, score and values")
        return {name: state[name] for name in kinds}


@contextmanager
def _damage() -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise DamagedError(str(error)) from None


def _check_plain(where: str, value: object) -> None:
    """Raises TypeError for a value that would not be read as it was."""
    keys = value if isinstance(value, dict) else ()
    if isinstance(value, tuple) or not all(isinstance(key, str) for key in keys):
        raise TypeError(f"{where}={value!r:.60}, expected lists, and tables with names as keys")
    items: Iterable[tuple[object, object]] = enumerate(value if isinstance(value, list) else ())
    for key, item in value.items() if isinstance(value, dict) else items:
        _check_plain(f"{where}.{key}", item)


def _write_json(path: Path, data: Mapping[str, Any]) -> dict[str, Any]:
    # No newline at the end: a manifest that lacks its last byte can then not be read.
    return write_file(path, json.dumps(data, indent=1).encode())


class SaveError(OSError):
    """A checkpoint that could not be written: one line that names the last good one."""


@dataclass
class Checkpoints:
    """Folders `step-00000500`, each of which is complete or absent.

    keep_last   number of the newest regular checkpoints that are kept
    keep_best   number of those with the highest score that are kept besides
    is_regular  False for a step that only a stop or a best validation saves: such a checkpoint
                goes when it is old, so that an interrupted run averages the same ones in the end
    writer      False on all ranks but one: `save` and `claim` then do nothing
    """

    folder: Path
    keep_last: int = 10
    keep_best: int = 1
    is_regular: Callable[[int], bool] = lambda step: True
    writer: bool = True

    def __post_init__(self) -> None:
        self.folder = Path(self.folder).absolute()
        # Steps written or verified here (True), or found damaged (False).
        self._good: dict[int, bool] = {}
        self._scores: dict[int, float | None] = {}
        self._held, self._claimed = ExitStack(), False

    def folders(self) -> dict[int, Path]:
        """Folders by step; one that was being replaced when its writer died still counts."""
        if not self.folder.is_dir():
            return {}
        named, aside = {}, {}
        for path in self.folder.iterdir():
            if match := STEP.fullmatch(path.name):
                named[int(match[1])] = path
            elif (match := PASSING.fullmatch(path.name)) and match[2] == "old":
                aside[int(match[1])] = path
        return aside | named

    def steps(self) -> list[int]:
        """Steps of all checkpoints, oldest first; some may be damaged."""
        return sorted(self.folders())

    def path(self, step: int) -> Path:
        """Folder of a step, which need not exist."""
        return self.folder / f"step-{step:08d}"

    def find(self, step: int) -> Path:
        """Folder of an existing checkpoint; ValueError lists the steps there are."""
        folders = self.folders()
        if step not in folders:
            known = ", ".join(map(str, sorted(folders))) or "none"
            raise ValueError(f"{self.folder} has no checkpoint of step {step}; there are: {known}")
        return folders[step]

    def load(self, step: int) -> Checkpoint:
        path = self.find(step)
        self._good[step] = False
        checkpoint = read_checkpoint(path)
        if checkpoint.step != step:
            raise DamagedError(f"{path} is that of step {checkpoint.step}")
        self._good[step] = True
        return checkpoint

    def latest(self) -> Checkpoint | None:
        """The newest good checkpoint, with the damaged ones that were skipped; None without any.

        DamagedError if all are damaged: a run must not begin anew for that.
        """
        skipped: dict[int, str] = {}
        for step in reversed(self.steps()):
            try:
                return replace(self.load(step), skipped=skipped)
            except DamagedError as error:
                skipped[step] = str(error)
        if not skipped:
            return None
        raise DamagedError(
            f"{self.folder} has no checkpoint that can be used, but {len(skipped)} damaged: "
            f"{next(iter(skipped.values()))}. Move the folder away to begin anew"
        )

    def ranking(self) -> list[int]:
        """Steps with a score, best first, the older of equals first."""
        scores = {step: self._score(step, path) for step, path in self.folders().items()}
        ranked = [(-score, step) for step, score in scores.items() if score is not None]
        return [step for _, step in sorted(ranked)]

    def claim(self) -> None:
        """Makes this process the only writer until the end of `with`; ValueError if another one is.

        `save` does it too; at the start of a run it shows mistakes before work is lost.
        """
        if self._claimed or not self.writer:
            return
        busy = f"another process is writing checkpoints to {self.folder}. Wait for its end"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            sync(self.folder.parent)
            self._held.enter_context(lock(self.folder / LOCK_FILE, busy))
            self._claimed = True
            self._clear()
        except OSError as error:
            raise SaveError(f"checkpoints cannot be written {self._explain(error)}") from error

    def save(
        self,
        step: int,
        tensors: Mapping[str, Tensors],
        values: Mapping[str, Any],
        *,
        score: float | None = None,
    ) -> Path:
        """Writes a checkpoint atomically, then removes old ones.

        tensors  by part, then by name; the part `model` is that of `parameters(model)`
        values   tables, lists, texts, numbers, booleans and None
        """
        path = self.path(step)
        if not self.writer:
            return path
        score = None if score is None or math.isnan(score) else float(score)
        self.claim()
        for other, folder in self.folders().items():
            if other > step and self._is_good(other, folder):
                raise ValueError(
                    f"{folder} is newer than step {step}, which is to be saved. Resume from it, or "
                    "move it away"
                )
        try:
            with new_folder(path, replace=True) as fresh:
                write_checkpoint(fresh, step, tensors, values, score)
        except OSError as error:
            raise SaveError(
                f"the checkpoint of step {step} was not written {self._explain(error)}"
            ) from error
        self._good[step], self._scores[step] = True, score
        self._prune(step)
        return path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()
        self._claimed = False

    def describe_last(self) -> str:
        last = "".join(f"The last checkpoint is {self.path(step)}" for step in self.steps()[-1:])
        return last or "There is no checkpoint yet"

    def _is_good(self, step: int, path: Path) -> bool:
        if step not in self._good:
            self._good[step] = False
            with suppress(DamagedError):
                CheckpointFiles(path).verify()
                self._good[step] = True
        return self._good[step]

    def _score(self, step: int, path: Path) -> float | None:
        if step not in self._scores:
            self._scores[step] = None
            with suppress(DamagedError):
                self._scores[step] = CheckpointFiles(path).state()["score"]
        return self._scores[step]

    def _explain(self, error: OSError) -> str:
        """`(folder): reason. The last good checkpoint is ... What to do`."""
        good = [path for step, path in sorted(self.folders().items()) if self._is_good(step, path)]
        last = f"The last good checkpoint is {good[-1]}" if good else "There is no earlier one"
        remedy = REMEDIES.get(error.errno or 0)
        then = f". {remedy} and start again" if remedy else ""
        return f"({self.folder}): {error.strerror or error}. {last}{then}"

    def _prune(self, newest: int) -> None:
        """Keeps the last regular checkpoints, the best, and two of any kind to fall back to."""
        steps = self.steps()
        usable = [step for step in steps if self._good.get(step, True)]
        regular = [step for step in usable if self.is_regular(step)]
        best = self.ranking()[: self.keep_best]
        keep = {*regular[-self.keep_last :], *best, *usable[-FEWEST:]}
        for step in steps:
            if step < newest and step not in keep:
                # First the name, then the files: half a checkpoint is never seen.
                gone = self.folder / f".step-{step:08d}.{secrets.token_hex(4)}.gone"
                with suppress(OSError):
                    self.folders()[step].rename(gone)
                    shutil.rmtree(gone, ignore_errors=True)

    def _clear(self) -> None:
        for path in sorted(self.folder.iterdir()):
            match = PASSING.fullmatch(path.name)
            if not match:
                continue
            home = self.path(int(match[1]))
            if match[2] == "old" and not home.exists():
                path.rename(home)
            else:
                shutil.rmtree(path, ignore_errors=True)


def average(folders: Sequence[Path], *, ema: bool = False) -> dict[str, Tensor]:
    """The mean of each parameter over checkpoints, which are verified as they are read.

    Sums are float64 and the mean is rounded once, so equal checkpoints have themselves as mean (the
    original adds in float32). Integers and booleans must be equal in all.

    ema  takes the moving averages instead of the parameters
    """
    if not folders:
        raise ValueError("an average needs at least one checkpoint, got none")

    def read(folder: Path) -> dict[str, Tensor]:
        files = CheckpointFiles(folder)
        return files.part(MODEL_PART) | (files.part(EMA_PART) if ema else {})

    first = read(folders[0])
    # Copies: tensors are mapped from the file.
    sums = {n: t.to(torch.float64, copy=True) for n, t in first.items() if t.is_floating_point()}
    kept = {name: tensor.clone() for name, tensor in first.items() if name not in sums}
    for folder in folders[1:]:
        tensors = read(folder)
        compare(folder, str(folders[0]), first, tensors, dtypes=True)
        for name, tensor in tensors.items():
            if name in sums:
                sums[name] += tensor
            elif not torch.equal(tensor, kept[name]):
                raise ValueError(
                    f"{folder}: {name} ({tensor.dtype}) differs from that of {folders[0]}, and has "
                    "no mean"
                )
    means = {name: total.div_(len(folders)).to(first[name].dtype) for name, total in sums.items()}
    return {name: kept[name] if name in kept else means[name] for name in first}
