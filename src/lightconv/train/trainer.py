"""The training loop. It never decodes: validation is a callable given to it."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import nn

from lightconv.data import PAD, Batch
from lightconv.train.loss import label_smoothed


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How to train; `accumulate` micro-batches make one update."""

    steps: int
    lr: float = 5e-4
    warmup: int = 4000
    warmup_from: float = 1e-7
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    weight_decay: float = 0.0
    label_smoothing: float = 0.1
    accumulate: int = 1
    validate_every: int = 1000

    def __post_init__(self) -> None:
        for name in ("steps", "warmup", "accumulate", "validate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0.0 <= self.label_smoothing < 1.0:
            raise ValueError(f"label_smoothing must be in [0, 1), got {self.label_smoothing}")


class Record(NamedTuple):
    """One update: its number from 1 on, loss per target token, those tokens, the rate used.

    `validation` is what the given callable returned, None between validations.
    """

    step: int
    loss: float
    tokens: int
    lr: float
    validation: float | None = None


def inverse_sqrt(step: int, *, peak: float, warmup: int, start: float = 1e-7) -> float:
    """The rate after `step` updates: a line to `peak`, then peak * sqrt(warmup / step)."""
    if step < warmup:
        return start + (peak - start) * step / warmup
    return peak * math.sqrt(warmup / step)


class Trainer:
    """A model and its optimiser, one update at a time (`update`) or to the end (`fit`)."""

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        self.model = model
        self.config = config
        self.step = 0
        # AdamW's weight decay is the decoupled one; at zero it is Adam.
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
        )

    def update(self, batches: Iterable[Batch]) -> Record:
        """One optimiser step on the gradient of the loss per target token over all `batches`."""
        config = self.config
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss, tokens = 0.0, 0
        for batch in batches:
            logits = self.model(batch.source, batch.target_in)
            total, count = label_smoothed(
                logits, batch.target, smoothing=config.label_smoothing, pad=PAD
            )
            torch.autograd.backward(total)
            loss += total.item()
            tokens += int(count)
        if tokens == 0:
            raise ValueError("an update needs at least one target token, got none")
        # Micro-batches differ in size: dividing once by all tokens, rather than each by its own,
        # makes accumulation equal to one large batch.
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(tokens)
        lr = inverse_sqrt(self.step, peak=config.lr, warmup=config.warmup, start=config.warmup_from)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.step += 1
        return Record(self.step, loss / tokens, tokens, lr)

    def fit(
        self,
        batches: Iterable[Batch],
        *,
        validate: Callable[[nn.Module], float] | None = None,
        report: Callable[[Record], None] | None = None,
    ) -> list[Record]:
        """Updates until `config.steps` or the last batch, and their history.

        `validate` gets the model in evaluation mode, every `validate_every` updates and after the
        last one; `report` gets each record as it comes.
        """
        config = self.config
        stream = iter(batches)
        history: list[Record] = []
        while self.step < config.steps:
            group = list(islice(stream, config.accumulate))
            if not group:
                break
            record = self.update(group)
            due = self.step % config.validate_every == 0 or self.step == config.steps
            if validate is not None and due:
                self.model.eval()
                record = record._replace(validation=validate(self.model))
            history.append(record)
            if report is not None:
                report(record)
        return history
