"""One checkpoint: a folder of safetensors files, state.json and a manifest of their digests.

Nothing in it is a pickle, and every file is verified before it is used. Tensors of model and
optimiser are stored by the names of parameters; a tied matrix has its first name.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightconv.files import (
    MANIFEST_FILE,
    MANIFEST_FORMAT,
    MANIFEST_VERSION,
    inside,
    read_manifest,
    verify_manifest,
    write_file,
)
from lightconv.models.tensors import compare, parameters, read_tensors, write_tensors
from lightconv.train.distributed import shard

STATE_FILE = "state.json"
SUFFIX = ".safetensors"
# Parts: the model, which every checkpoint has, its optimiser, moving averages of its parameters.
MODEL_PART = "model"
OPTIMIZER_PART = "optimizer"
EMA_PART = "ema"
PART = re.compile(r"[a-z][a-z0-9_]*")

Tensors = Mapping[str, Tensor]


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


@torch.no_grad()
def restore_tensors(own: Tensors, saved: Tensors) -> None:
    """Copies saved tensors into those of a model, once names, shapes and dtypes are compared."""
    compare("the checkpoint", "the model", own, saved)
    for name, tensor in own.items():
        if saved[name].dtype != tensor.dtype:
            raise ValueError(
                f"the checkpoint has {name} as {saved[name].dtype}, the model as {tensor.dtype}"
            )
    for name, tensor in own.items():
        tensor.copy_(shard(saved[name], tensor))


def flatten_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """State of an optimiser: tensors `state/PARAMETER/KEY`, and the rest as plain values."""
    names = _optimized(optimizer, model)
    packed = optimizer.state_dict()
    tensors = {
        f"state/{names[number]}/{key}": tensor
        for number, entries in packed["state"].items()
        for key, tensor in entries.items()
    }
    groups = [
        {
            "parameters": [names[number] for number in group["params"]],
            "options": {
                key: list(value) if isinstance(value, tuple) else value
                for key, value in group.items()
                if not key.startswith("param")
            },
        }
        for group in packed["param_groups"]
    ]
    state: dict[str, Any] = {names[number]: {} for number in packed["state"]}
    return tensors, {"kind": type(optimizer).__name__, "groups": groups, "state": state}


def restore_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Tensors, values: Mapping[str, Any]
) -> None:
    """Gives a new optimiser the state of `flatten_optimizer`; of its options only the rate."""
    kind, names = type(optimizer).__name__, _optimized(optimizer, model)
    if values["kind"] != kind:
        raise ValueError(f"the checkpoint has the state of {values['kind']}, expected {kind}")
    saved = {name for group in values["groups"] for name in group["parameters"]}
    if odd := sorted(saved.symmetric_difference(names)):
        where = "the checkpoint" if odd[0] in saved else "the optimiser"
        raise ValueError(f"optimiser state: {odd[0]} is only in {where}")
    numbers, own = {name: number for number, name in enumerate(names)}, parameters(model)
    state: dict[int, dict[str, Tensor]] = {}
    for full, tensor in tensors.items():
        name, _, key = full.removeprefix("state/").rpartition("/")
        # Copies: the checkpoint is mapped from its file.
        placed, like = tensor.clone(), own[name]
        if tensor.shape == like.shape:
            placed = torch.empty_like(like, dtype=tensor.dtype).copy_(shard(tensor, like))
        state.setdefault(numbers[name], {})[key] = placed
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
    for group, old in zip(optimizer.param_groups, values["groups"], strict=True):
        group["lr"] = old["options"]["lr"]


def _optimized(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[str]:
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    return [names[p] for group in optimizer.param_groups for p in group["params"]]
