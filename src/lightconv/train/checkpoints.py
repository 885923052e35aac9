"""Checkpoints of a run: written by one process, pruned, found again, averaged."""

import errno
import math
import re
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from lightconv.files import lock, new_folder, sync
from lightconv.models.tensors import compare
from lightconv.train.checkpoint import (
    EMA_PART,
    MODEL_PART,
    Checkpoint,
    CheckpointFiles,
    DamagedError,
    Tensors,
    read_checkpoint,
    write_checkpoint,
)

LOCK_FILE = ".lock"
STEP = re.compile(r"step-(\d{8,})")
# Folders that are being written, replaced or removed.
PASSING = re.compile(r"\.step-(\d{8,})\.[0-9a-f]{8}\.(new|old|gone)")
# Checkpoints of any kind that are kept, so that there is one to fall back to.
FEWEST = 2

REMEDIES = dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "Make room")
REMEDIES |= dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "Make the folder writable")


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
        compare(folder, str(folders[0]), first, tensors)
        for name, tensor in tensors.items():
            if tensor.dtype != first[name].dtype:
                raise ValueError(
                    f"{folder}: {name} is {tensor.dtype}, but {first[name].dtype} in {folders[0]}"
                )
            if name in sums:
                sums[name] += tensor
            elif not torch.equal(tensor, kept[name]):
                raise ValueError(
                    f"{folder}: {name} ({tensor.dtype}) differs from that of {folders[0]}, and has "
                    "no mean"
                )
    means = {name: total.div_(len(folders)).to(first[name].dtype) for name, total in sums.items()}
    return {name: kept[name] if name in kept else means[name] for name in first}
