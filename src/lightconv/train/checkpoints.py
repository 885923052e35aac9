"""The checkpoints of a run: one process writes, the newest good one is found, old ones go."""

import errno
import math
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from lightconv.files import new_folder, sync
from lightconv.train.checkpoint import (
    Checkpoint,
    DamagedError,
    Skipped,
    Tensors,
    check_parts,
    read_checkpoint,
    read_state,
    verify_checkpoint,
    write_checkpoint,
)

# Where a run folder has them.
FOLDER = "checkpoints"
LOCK_FILE = ".lock"
STEP = re.compile(r"step-(\d{8,})")
# What lies there while it is written, while it is replaced, and while it is removed.
PASSING = re.compile(r"\.step-(\d{8,})\.[0-9a-f]{8}\.(new|old|gone)")
# With one alone there would be nothing to fall back to.
FEWEST = 2

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM)
# A file system without locks; there, two runs in one folder go unnoticed.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class SaveError(OSError):
    """A checkpoint that could not be written: one line that names the last good one."""


class Checkpoints:
    """Folders `step-00000500`, each of which is whole or not there.

    keep_last   how many of the newest are kept
    keep_best   how many of those with the highest score are kept besides
    writer      False on all ranks but one: `save` and `claim` then do nothing
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        keep_last: int = 10,
        keep_best: int = 1,
        writer: bool = True,
    ) -> None:
        if keep_last < FEWEST:
            raise ValueError(f"keep_last={keep_last} must be at least {FEWEST}")
        if keep_best < 0:
            raise ValueError(f"keep_best={keep_best} must be at least 0")
        self.folder = Path(folder).absolute()
        self.keep_last = keep_last
        self.keep_best = keep_best
        self.writer = writer
        # What is known of steps: written or verified here (True), or found damaged (False).
        self._good: dict[int, bool] = {}
        self._scores: dict[int, float | None] = {}
        self._lock: int | None = None

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
        if self._lock is not None or not self.writer:
            return
        try:
            if not self.folder.is_dir():
                self.folder.mkdir(parents=True)
                sync(self.folder.parent)
            self._lock = _lock(self.folder / LOCK_FILE)
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
        """Lets another process write here."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
        """Removes what is neither among the last nor among the best; the newest is good."""
        steps = self.steps()
        usable = [step for step in steps if self._good.get(step, True)]
        keep = {*usable[-self.keep_last :], *self.ranking()[: self.keep_best]}
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


def _lock(path: Path) -> int:
    """An open file that is locked until it is closed, or the process ends."""
    import fcntl

    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        # Of the two kinds of locks the one that a forked process, such as a worker that outlives
        # its parent, does not inherit.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in NO_LOCKS:
            return file
        os.close(file)
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise ValueError(
                f"another process is writing checkpoints to {path.parent}. Wait for its end, or "
                "choose another folder"
            ) from None
        raise
    return file
