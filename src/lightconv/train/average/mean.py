"""The mean of checkpoints, one of them in memory at a time."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from lightconv.models.tensors import compare
from lightconv.train.checkpoint import EMA_PART, MODEL_PART, read_part


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
