"""A whole run: begun or resumed in its folder, trained, exported."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lightconv.models.config import ModelConfig
from lightconv.models.folder import build
from lightconv.ops.library import native
from lightconv.train.allocator import Allocator, most_kept
from lightconv.train.board import BOARD_FOLDER, Board
from lightconv.train.checkpoint import Checkpoint
from lightconv.train.checkpoints import FOLDER, Checkpoints, SaveError
from lightconv.train.config import TrainConfig
from lightconv.train.data import TrainingData
from lightconv.train.folder import check_data, export, keep_files
from lightconv.train.group import Group
from lightconv.train.guard import DivergenceError
from lightconv.train.live import Display, open_display
from lightconv.train.log import LOG_FILE, Entry, Log
from lightconv.train.loop import Loop, Metric
from lightconv.train.progress import Progress
from lightconv.train.seeds import derive, set_seed
from lightconv.train.signals import Stop
from lightconv.train.trainer import Trainer


class Outcome(NamedTuple):
    """How a run ended.

    code        0 at its end, else the exit code of who stopped it
    checkpoint  the last one
    averaged    the steps that are in the exported model; none if it was stopped
    """

    code: int
    step: int
    checkpoint: Path
    averaged: list[int]
    progress: Progress
    skipped: int
    entries: list[Entry]


def run(
    folder: Path,
    data: TrainingData,
    model: ModelConfig,
    config: TrainConfig,
    *,
    device: torch.device,
    stop: Stop,
    group: Group | None = None,
    metric: Metric | None = None,
    tables: Mapping[str, Mapping[str, Any]] | None = None,
    tensorboard: bool = False,
) -> Outcome:
    """Trains in `folder` from its newest checkpoint, if there is one, and writes the model.

    tables  what the model folder's config.json holds besides the model
    """
    group = group or Group()
    first = group.rank == 0
    with ExitStack() as stack:
        checkpoints = stack.enter_context(open_checkpoints(folder, config, writer=first))
        checkpoints.claim()
        found = find_checkpoint(checkpoints, group)
        if found is not None:
            check_data(folder, found, data)
        set_seed(derive(config.seed), device)
        allocator = stack.enter_context(Allocator(most_kept(device.type, group.size)))
        built = build(model)
        group.prepare(built)  # which may be too large for one device
        built.to(device)
        trainer = Trainer(built, config, group=group)
        log = stack.enter_context(open_log(folder, found)) if first else None
        step = 0 if found is None else found.step
        board = Board(folder / BOARD_FOLDER, step) if tensorboard and first else None
        if board is not None:
            stack.callback(board.close)
        display = open_display(config.max_steps, quiet=not first)
        stack.callback(display.close)
        loop = Loop(
            trainer,
            data,
            checkpoints=checkpoints,
            log=log,
            display=display,
            stop=stop,
            metric=metric,
            board=board,
            allocator=allocator,
            machine=describe_machine(device, group),
        )
        if found is not None:
            loop.resume(found)
            tell_resumed(display, found, loop.machine)
            if loop.ended():
                display.note("it has ended; the model is written once more")
        if first:
            keep_files(folder, data.files())
        try:
            code = loop.run()
        except DivergenceError as error:
            raise DivergenceError(f"{error}. {describe_last(checkpoints)}") from None
        except SaveError:
            raise
        except OSError as error:
            what = f"{error.filename or folder}: {error.strerror or error}"
            raise SaveError(f"{what}. {describe_last(checkpoints)}") from error
        averaged: list[int] = []
        if code == 0:
            averaged = export(folder, trainer, checkpoints, data, tables or {})
        return Outcome(
            code,
            trainer.step,
            checkpoints.path(trainer.step),
            averaged,
            loop.progress,
            trainer.guard.skipped,
            [] if log is None else log.entries,
        )


def open_checkpoints(folder: Path, config: TrainConfig, *, writer: bool = True) -> Checkpoints:
    """Those of a run. Besides the regular ones there may be the best, and one of a stop."""
    return Checkpoints(
        folder / FOLDER,
        keep_last=config.keep_last + config.keep_best + 1,
        keep_best=config.keep_best,
        writer=writer,
    )


def find_checkpoint(checkpoints: Checkpoints, group: Group) -> Checkpoint | None:
    """The newest good checkpoint, as the first rank finds it: all others take the same."""
    found = checkpoints.latest() if group.rank == 0 else None
    chosen = group.tell(None if found is None else str(found.step))
    if chosen is None or found is not None:
        return found
    return checkpoints.load(int(chosen))


def open_log(folder: Path, found: Checkpoint | None) -> Log:
    """The log, cut back to what the checkpoint knows of."""
    step = validated = 0
    if found is not None:
        step, validated = found.step, found.values["progress"]["validated"]

    def keep(entry: Entry) -> bool:
        known: int = validated if entry.get("kind") == "valid" else step
        return bool(entry["step"] <= known)

    return Log(folder / LOG_FILE, keep)


def describe_machine(device: torch.device, group: Group) -> dict[str, Any]:
    """What must be the same for a resumed run to be the same, bit for bit."""
    return {
        "torch": torch.__version__,
        "device": device.type,
        "threads": torch.get_num_threads(),
        "kernels": native().isa,
        "processes": group.size,
    }


def tell_resumed(display: Display, found: Checkpoint, machine: Mapping[str, Any]) -> None:
    """Says from where, and what is not as it was."""
    for damaged in found.skipped:
        display.note(f"the checkpoint of step {damaged.step} is damaged: {damaged.reason}")
    display.note(f"resumed from step {found.step:,} ({found.path})")
    old = found.values["machine"]
    changed = [f"{k} {old.get(k)} -> {v}" for k, v in machine.items() if old.get(k) != v]
    if changed:
        display.note(
            f"other machine: {', '.join(changed)}. The run goes on, but not bit for bit as it would"
        )


def describe_last(checkpoints: Checkpoints) -> str:
    """Where the run can go on from."""
    steps = checkpoints.steps()
    if not steps:
        return "There is no checkpoint yet"
    return f"The last checkpoint is {checkpoints.path(steps[-1])}"
