"""Guards of an update: gradients that are not finite, and batches that do not fit into memory."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lightconv.data import PAD, Batch
from lightconv.processes import EXIT_DIVERGED
from lightconv.train.optim import Loss

MOST_IN_A_ROW = 10
# Number of examples of a batch that an error lists.
LISTED = 8
# Messages of torch on a processor, where the error has no class of its own.
OUT_OF_MEMORY = (
    "DefaultCPUAllocator",
    "can't allocate memory",
    "not enough memory",
    "out of memory",
)


class DivergenceError(RuntimeError):
    """Training cannot continue: the message names the step, the module and the batch."""

    exit_code = EXIT_DIVERGED


class Guard:
    """Counts the updates whose gradient was not finite."""

    def __init__(self) -> None:
        self.skipped = 0
        self.in_a_row = 0

    def count(self, *, finite: bool) -> bool:
        """Called after each update; True if too many in a row were not finite."""
        self.in_a_row = 0 if finite else self.in_a_row + 1
        self.skipped += not finite
        return self.in_a_row >= MOST_IN_A_ROW


def describe(step: int, culprit: tuple[str, int] | None, batches: Sequence[Batch]) -> str:
    """The message of `DivergenceError`; without batches nobody has looked for a culprit."""
    text = f"diverged at step {step}: {MOST_IN_A_ROW} gradients in a row were not finite"
    advice = "Lower train.schedule.peak, clip with train.clip_norm, or choose another normalisation"
    if culprit is None:
        return f"{text}, though that of each batch alone is" if batches else f"{text}. {advice}"
    module, place = culprit
    batch = batches[place]
    where = f"batch {place + 1} of {len(batches)}"
    if batch.rows is not None:
        rows = [*map(str, batch.rows[:LISTED].tolist()), *["..."] * (len(batch.rows) > LISTED)]
        where += f", examples {', '.join(rows)}"
    return f"{text}, the last one from {module} ({where}). {advice}"


def find_culprit(
    model: nn.Module, runs: Sequence[Callable[[], Loss]], scale: float = 1.0
) -> tuple[str, int] | None:
    """The module that made the first number that is not finite, and the place of the batch.

    runs   each returns the loss of one batch
    scale  factor of losses before the backward pass
    """
    for place, run in enumerate(runs):
        model.zero_grad(set_to_none=True)
        loss, ran, wrong = _trace(model, run)
        if wrong or not _is_finite(loss):
            return (wrong or ["output"])[0], place
        torch.autograd.backward(loss * scale)
        wrong = [
            name.rpartition(".")[0]
            for name, parameter in model.named_parameters()
            if not _is_finite(parameter.grad)
        ]
        if wrong:
            # The one that ran last had its gradient computed first. A module may not run itself,
            # but have its parameters read by the one around it.
            known = [name for name in wrong if name in ran]
            return max(known, key=ran.index, default=wrong[-1]), place
    return None


def _trace(model: nn.Module, run: Callable[[], Loss]) -> tuple[Tensor, list[str], list[str]]:
    """The loss; modules by the ends of their runs; those whose output is not finite."""
    ran: list[str] = []
    wrong: list[str] = []

    def look(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        ran.append(name)
        if isinstance(output, Tensor) and not _is_finite(output):
            wrong.append(name)

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.callback(module.register_forward_hook(partial(look, name)).remove)
        return run().loss, ran, wrong


def _is_finite(tensor: Tensor | None) -> bool:
    return tensor is None or bool(tensor.isfinite().all())


def is_out_of_memory(error: BaseException) -> bool:
    """True for an error of exhausted memory on any device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)


def positions(batch: Batch) -> int:
    """Positions of the largest part of a batch, padding included."""
    return max(part.numel() for part in (*batch.inputs, batch.target))


def halve(batch: Batch) -> tuple[Batch, Batch]:
    """The first and the second half of the rows, each without columns of padding only."""

    def cut(rows: slice) -> Batch:
        inputs = tuple(trim(part[rows]) for part in batch.inputs)
        numbers = None if batch.rows is None else batch.rows[rows]
        return Batch(inputs, trim(batch.target[rows]), numbers)

    def trim(part: Tensor) -> Tensor:
        return part[:, : int((part != PAD).sum(1).max())]

    middle = len(batch.target) // 2
    return cut(slice(middle)), cut(slice(middle, None))
