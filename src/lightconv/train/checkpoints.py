"""Checkpoints of a run: written by one process, pruned, found again, averaged."""

import errno
import math
import re
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
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
    DamagedError,
    Skipped,
    Tensors,
    check_parts,
    read_checkpoint,
    read_part,
    read_state,
    verify_checkpoint,
    write_checkpoint,
)

LOCK_FILE = ".lock"
STEP = re.compile(r"step-(\d{8,})")
# Folders that are being written, replaced or removed.
PASSING = re.compile(r"\.step-(\d{8,})\.[0-9a-f]{8}\.(new|old|gone)")
# Checkpoints of any kind that are kept, so that there is one to fall back to.
FEWEST = 2

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM)


class SaveError(OSError):
    """A checkpoint that could not be written: one line that names the last good one."""


class Checkpoints:
    """Folders `step-00000500`, each of which is complete or absent.

    keep_last   number of the newest regular checkpoints that are kept
    keep_best   number of those with the highest score that are kept besides
    is_regular  False for a step that only a stop or a best validation saves: such a checkpoint
                goes when it is old, so that an interrupted run averages the same ones in the end
    writer      False on all ranks but one: `save` and `claim` then do nothing
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        keep_last: int = 10,
        keep_best: int = 1,
        is_regular: Callable[[int], bool] = lambda step: True,
        writer: bool = True,
    ) -> None:
        if keep_last < FEWEST:
            raise ValueError(f"keep_last={keep_last} must be at least {FEWEST}")
        if keep_best < 0:
            raise ValueError(f"keep_best={keep_best} must be at least 0")
        self.folder = Path(folder).absolute()
        self.keep_last = keep_last
        self.keep_best = keep_best
        self.is_regular = is_regular
        self.writer = writer
        # Steps written or verified here (True), or found damaged (False).
        self._good: dict[int, bool] = {}
        self._scores: dict[int, float | None] = {}
        self._held = ExitStack()
        self._claimed = False

    def folders(self) -> dict[int, Path]:
        """Folders by step. One that was about to be replaced when its writer died still counts."""
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
        """The steps of all checkpoints that are there, damaged ones among them, oldest first."""
        return sorted(self.folders())

    def path(self, step: int) -> Path:
        """The folder of a step, whether it is there or not."""
        return self.folder / f"step-{step:08d}"

    def load(self, step: int) -> Checkpoint:
        """That checkpoint, verified; DamagedError if it is not what was written."""
        folders = self.folders()
        if step not in folders:
            known = ", ".join(map(str, sorted(folders))) or "none"
            raise ValueError(f"{self.folder} has no checkpoint of step {step}; there are: {known}")
        self._good[step] = False
        checkpoint = read_checkpoint(folders[step])
        if checkpoint.step != step:
            raise DamagedError(f"{folders[step]} is that of step {checkpoint.step}")
        self._good[step] = True
        return checkpoint

    def latest(self) -> Checkpoint | None:
        """The newest good checkpoint, which lists the damaged ones that were skipped.

        None if there is none at all. If there are only damaged ones, this is a DamagedError: a run
        must not begin anew for that.
        """
        return self._first_good(list(reversed(self.steps())))

    def best(self) -> Checkpoint | None:
        """The good checkpoint with the highest score, the older of equals; None if none has one."""
        return self._first_good(self.ranking())

    def ranking(self) -> list[int]:
        """The steps that have a score, best first."""
        scores = {step: self._score(step, path) for step, path in self.folders().items()}
        ranked = [(-score, step) for step, score in scores.items() if score is not None]
        return [step for _, step in sorted(ranked)]

    def claim(self) -> None:
        """Makes this process the one that writes here, until `close` or its end.

        `save` does it too; at the start of a run it shows mistakes before work is lost. ValueError
        if another process is writing. What dead ones have left is cleared away.
        """
        if self._claimed or not self.writer:
            return
        busy = (
            f"another process is writing checkpoints to {self.folder}. Wait for its end, or choose "
            "another folder"
        )
        try:
            if not self.folder.is_dir():
                self.folder.mkdir(parents=True)
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
        """Writes a checkpoint, which is there in full when this returns; then old ones go.

        tensors  by part, then by name; there must be a part `model`, as of `parameters(model)`
        values   anything that JSON holds: position in the data, state of the loss scale, ...
        score    how good the model is, more is better
        """
        path = self.path(step)
        if not self.writer:
            return path
        if step < 0:
            raise ValueError(f"step={step} must be at least 0")
        check_parts(tensors, values)
        score = None if score is None or math.isnan(score) else float(score)
        self.claim()
        self._check_newest(step)
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

    def remove(self, step: int) -> None:
        """Takes a checkpoint away, if it is there; ValueError if there is no other good one."""
        folders = self.folders()
        if not self.writer or step not in folders:
            return
        self.claim()
        if not any(self._good.get(other, True) for other in folders if other != step):
            raise ValueError(f"{folders[step]} is not removed: there is no other good checkpoint")
        # First the name, then the files: half a checkpoint is never seen.
        gone = self.folder / f".step-{step:08d}.{secrets.token_hex(4)}.gone"
        try:
            folders[step].rename(gone)
        except OSError:
            return  # then it stays; the one that was saved matters more
        shutil.rmtree(gone, ignore_errors=True)
        self._good.pop(step, None)
        self._scores.pop(step, None)

    def close(self) -> None:
        """Releases the folder for other processes."""
        self._held.close()
        self._claimed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def describe_last(self) -> str:
        """A sentence that names the last checkpoint."""
        steps = self.steps()
        if not steps:
            return "There is no checkpoint yet"
        return f"The last checkpoint is {self.path(steps[-1])}"

    def _first_good(self, steps: list[int]) -> Checkpoint | None:
        skipped: list[Skipped] = []
        for step in steps:
            try:
                return replace(self.load(step), skipped=tuple(skipped))
            except DamagedError as error:
                skipped.append(Skipped(step=step, reason=str(error)))
        if not skipped:
            return None
        raise DamagedError(
            f"{self.folder} has no checkpoint that can be used, but {len(skipped)} damaged: "
            f"{skipped[0].reason}. Move the folder away to begin anew"
        )

    def _is_good(self, step: int, path: Path) -> bool:
        """Whether a checkpoint can be used; each is verified once."""
        if step not in self._good:
            try:
                verify_checkpoint(path)
                self._good[step] = True
            except DamagedError:
                self._good[step] = False
        return self._good[step]

    def _score(self, step: int, path: Path) -> float | None:
        if step not in self._scores:
            try:
                self._scores[step] = read_state(path)["score"]
            except DamagedError:
                self._scores[step] = None
        return self._scores[step]

    def _check_newest(self, step: int) -> None:
        """A run that was not resumed from its newest checkpoint must not mix with the other."""
        for other, path in self.folders().items():
            if other > step and self._is_good(other, path):
                raise ValueError(
                    f"{path} is newer than step {step}, which is to be saved. Resume from it, or "
                    "move it away"
                )

    def _explain(self, error: OSError) -> str:
        """`(folder): reason. The last good checkpoint is ... What to do`."""
        good = [
            path
            for step, path in sorted(self.folders().items(), reverse=True)
            if self._is_good(step, path)
        ]
        last = f"The last good checkpoint is {good[0]}" if good else "There is no earlier one"
        remedy = ""
        if error.errno in FULL:
            remedy = ". Make room and start again"
        elif error.errno in CLOSED:
            remedy = ". Make the folder writable and start again"
        return f"({self.folder}): {error.strerror or error}. {last}{remedy}"

    def _prune(self, newest: int) -> None:
        """Keeps the last regular checkpoints, the best, and two of any kind to fall back to."""
        steps = self.steps()
        usable = [step for step in steps if self._good.get(step, True)]
        regular = [step for step in usable if self.is_regular(step)]
        best = self.ranking()[: self.keep_best]
        keep = {*regular[-self.keep_last :], *best, *usable[-FEWEST:]}
        for step in steps:
            if step < newest and step not in keep:
                self.remove(step)

    def _clear(self) -> None:
        """What a dead process has left: the lock says that no other is alive."""
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

    Sums are float64 and the mean is rounded once, to the type of the parameters, so that neither
    the order nor the number of checkpoints costs anything: equal ones have themselves as mean. (The
    original adds in float32.) Whole numbers and truth values must be equal in all.

    ema  takes the moving averages that training kept instead of the parameters
    """
    if not folders:
        raise ValueError("an average needs at least one checkpoint, got none")
    first = _read(folders[0], ema=ema)
    # Copies: what was read is a map of the file.
    sums = {n: t.to(torch.float64, copy=True) for n, t in first.items() if t.is_floating_point()}
    kept = {name: tensor.clone() for name, tensor in first.items() if name not in sums}
    for folder in folders[1:]:
        tensors = _read(folder, ema=ema)
        compare(folder, str(folders[0]), _shapes(first), _shapes(tensors))
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


def _read(folder: Path, *, ema: bool) -> dict[str, Tensor]:
    """The parameters; with `ema` those that have a moving average are replaced by it."""
    tensors = read_part(folder, MODEL_PART)
    return tensors | read_part(folder, EMA_PART) if ema else tensors


def _shapes(tensors: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}
