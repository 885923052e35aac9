"""The folder of a run: config.json, tokeniser, log.jsonl, checkpoints, and the model at the end."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from lightconv.config import differences, read, to_json
from lightconv.files import sync, write_file
from lightconv.models.folder import build_empty, save
from lightconv.models.tensors import fill
from lightconv.train.average import average
from lightconv.train.board import BOARD_FOLDER
from lightconv.train.checkpoint import Checkpoint
from lightconv.train.checkpoints import FOLDER, Checkpoints
from lightconv.train.config import TrainConfig
from lightconv.train.data import MODEL_FILES, TrainingData
from lightconv.train.log import LOG_FILE
from lightconv.train.loss import Model
from lightconv.train.plot import PLOT_FILE
from lightconv.train.trainer import Trainer

CONFIG_FILE = "config.json"
MODEL_FOLDER = "model"
OWN_NAMES = {
    CONFIG_FILE,
    LOG_FILE,
    FOLDER,
    MODEL_FOLDER,
    BOARD_FOLDER,
    PLOT_FILE,
    *MODEL_FILES,
}
# What describes a recipe without changing what it does.
WORDS = ("about", "sources")
# What may change in the middle of a run, if the user insists: not the model, not the order of the
# data, not what the optimiser and the averages hold.
CHANGEABLE = (
    "decode",
    "train.average_last",
    "train.clip_norm",
    "train.compile",
    "train.keep_best",
    "train.keep_last",
    "train.label_smoothing",
    "train.log_every",
    "train.max_steps",
    "train.patience",
    "train.precision",
    "train.save_every",
    "train.schedule",
    "train.tokens_per_update",
    "train.validate_every",
)

T = TypeVar("T")


def open_run(folder: Path, recipe: T, *, overwrite: bool, allow_changes: bool) -> bool:
    """Makes the folder of a new run, or finds that of an old one: True if there was one.

    An old one must have the same recipe; ValueError lists what differs.
    """
    path = folder / CONFIG_FILE
    if overwrite and folder.exists():
        remove_run(folder)
    if not path.exists():
        if folder.exists() and (not folder.is_dir() or set(_names(folder)) - set(MODEL_FILES)):
            raise ValueError(
                f"{folder} exists and is no run: it has no {CONFIG_FILE}. Choose another name"
            )
        folder.mkdir(parents=True, exist_ok=True)
        _write(path, to_json(recipe).encode())
        return False
    old = read(path, type(recipe))
    changed = [line for line in differences(old, recipe) if not line.startswith(WORDS)]
    fixed = [line for line in changed if not (allow_changes and line.startswith(CHANGEABLE))]
    if fixed:
        hint = "" if allow_changes else ". --allow-changes permits some changes of train and decode"
        raise ValueError(
            f"{folder} was begun with another configuration: {'; '.join(fixed)}. Set these back, "
            f"or choose another folder{hint}"
        )
    if changed:
        _write(path, to_json(recipe).encode())
    return True


def remove_run(folder: Path) -> None:
    """Removes a run, and nothing else: ValueError if there is something else in the folder."""
    strange = sorted(set(_names(folder)) - OWN_NAMES) if folder.is_dir() else [folder.name]
    if strange:
        raise ValueError(f"{folder} is not overwritten: {strange[0]} does not belong to a run")
    if (folder / FOLDER).is_dir():
        # Not while somebody is writing there.
        with Checkpoints(folder / FOLDER) as checkpoints:
            checkpoints.claim()
    # First what makes it a run: a half removed one is not taken for a whole one.
    (folder / CONFIG_FILE).unlink(missing_ok=True)
    shutil.rmtree(folder)


def keep_files(folder: Path, files: Mapping[str, bytes | Path]) -> None:
    """Copies vocabulary and tokeniser into the run, which needs the data no more at its end."""
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.read_bytes()
        path = folder / name
        if not path.exists() or path.read_bytes() != data:
            _write(path, data)


def check_data(folder: Path, checkpoint: Checkpoint, data: TrainingData) -> None:
    """Raises ValueError unless a checkpoint was made with this data."""
    old, new = checkpoint.values["data"], data.digests
    changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    if changed:
        lines = (f"{name}: {_short(old.get(name))} -> {_short(new.get(name))}" for name in changed)
        raise ValueError(
            f"{folder} was begun with other data: {'; '.join(lines)}. Give the data it was begun "
            "with, or choose another folder"
        )


def is_regular(step: int, config: TrainConfig) -> bool:
    """Whether a run that nobody interrupts has a checkpoint there."""
    return step > 0 and (step % config.save_every == 0 or step == config.max_steps)


def export(
    folder: Path,
    trainer: Trainer,
    checkpoints: Checkpoints,
    data: TrainingData,
    tables: Mapping[str, Mapping[str, Any]],
) -> list[int]:
    """Writes the model folder; the steps whose parameters are averaged in it.

    All ranks call this: where parameters are sharded they are gathered. The first one writes.
    """
    with trainer.averaged():
        whole = trainer.group.whole(trainer.model)
        if whole is None or trainer.group.rank != 0:
            return []
        return _export(folder, whole, trainer, checkpoints, data, tables)


def _export(
    folder: Path,
    model: Model,
    trainer: Trainer,
    checkpoints: Checkpoints,
    data: TrainingData,
    tables: Mapping[str, Mapping[str, Any]],
) -> list[int]:
    out, config = model_folder(folder), trainer.config
    folders = checkpoints.folders()
    regular = [step for step in sorted(folders) if is_regular(step, config)]
    steps = regular[-config.average_last :] if config.average_last > 0 else []
    if len(steps) > 1:
        model = build_empty(model.config)
        fill(model, average([folders[step] for step in steps]))
    save(model, out, files=data.files(), tables=tables, overwrite=True)
    return steps if len(steps) > 1 else [trainer.step]


def model_folder(folder: Path) -> Path:
    """Where a run leaves its model."""
    return folder / MODEL_FOLDER


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if not path.name.startswith(".")]


def _write(path: Path, data: bytes) -> None:
    """Replaces a file, in full or not at all."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    write_file(fresh, data)
    fresh.replace(path)
    sync(path.parent)


def _short(digest: str | None) -> str:
    return "absent" if digest is None else f"{digest[:12]}..."
