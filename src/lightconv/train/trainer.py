"""One update after another, and what makes each of them safe and repeatable."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightconv.data import Batch
from lightconv.ops.products import choose, choose_precision, using
from lightconv.train.config import TrainConfig, find_rate
from lightconv.train.distributed import Group, gradients
from lightconv.train.optim import (
    EMA,
    DivergenceError,
    Guard,
    Loss,
    Model,
    autocast,
    batch_loss,
    build_optimizer,
    derive,
    describe,
    empty_batch,
    find_culprit,
    is_out_of_memory,
    set_seed,
)


class Record(NamedTuple):
    """One update: its number from 1 on, loss per target token, those tokens, the rate used.

    nll      loss per token without label smoothing
    norm     norm of the gradient before clipping
    skipped  the gradient was not finite, so nothing was changed; in fp16 the next update has the
             same number
    stop     a rank wants to stop
    done     False if the update was given up for that, and nothing has changed
    """

    step: int
    loss: float
    tokens: int
    lr: float
    nll: float = math.nan
    norm: float = math.nan
    skipped: bool = False
    stop: bool = False
    done: bool = True


class MeanLoss(NamedTuple):
    """Means over the target tokens of validation data, and their number."""

    loss: float
    nll: float
    tokens: int


class _Part(NamedTuple):
    """A batch and the source of its randomness: its place in the update of all ranks."""

    key: tuple[int, ...]
    batch: Batch


class Trainer:
    """A model and its optimiser, trained one update at a time.

    Randomness comes from (config.seed, step, place of the batch): torch's generator is seeded
    before every batch. The model stays on its device; batches are moved there.
    """

    def __init__(self, model: Model, config: TrainConfig, *, group: Group | None = None) -> None:
        self.model = model
        self.config = config
        self.group = group or Group()
        self.device = next(model.parameters()).device
        self.step = 0
        # torch.compile has its own products.
        self.chooses = self.device.type == "cpu" and not config.compile
        shape = model.config.ffn_dim, model.config.dim
        own = choose(config.products, shape) if self.chooses else "default"
        self.products = self.group.tell(own) or own
        own = choose_precision(config.precision, self.device, shape)
        self.precision = self.group.tell(own) or own
        # An estimate where tokens are counted.
        batches = config.batches_per_update or -(-config.tokens_per_update // config.max_tokens)
        ranks = self.group.size
        self.guard = Guard(self.precision, ranks * -(-batches // ranks))
        # Batches of more positions did not fit into memory.
        self.largest: int | None = None
        self.ema = EMA(model, config.ema) if config.ema > 0.0 else None
        self.optimizer = build_optimizer(
            model.parameters(), find_rate(0, config.schedule), config.optimizer
        )
        self.features: Callable[..., Tensor] = model.features
        if config.compile:
            self.features = torch.compile(model.features, dynamic=True)

    def update(
        self, batches: Iterable[Batch], *, stop: Callable[[], bool] = lambda: False
    ) -> Record:
        """One optimiser step on the gradient of the loss per target token over all `batches`.

        With several ranks these are the batches of this one. The tenth gradient in a row that is
        not finite is a DivergenceError.

        stop  true once this rank wants to stop: asked between batches, of which an update may have
              many. Before the last one, this and all other ranks then give the update up
        """
        parts = [
            _Part((self.group.rank + self.group.size * place,), batch)
            for place, batch in enumerate(batches)
        ]
        self.model.train()
        # One cast of a weight serves all batches: autocast keeps it until its outermost end.
        own = not self.group.lockstep  # sharded weights come and go
        with autocast(self.precision, self.device) if own else nullcontext():
            parts, losses, tokens, complete = self._accumulate(parts, stop)
        counts = losses.new_tensor([tokens, stop(), not complete])
        self.group.sum_gradients(self.model)
        totals = self.group.sum(torch.cat([losses, counts]))
        norm = self.group.norm(self.model).to(totals)
        # The one place where the device is waited for.
        loss, nll, tokens, stops, broken, size = torch.cat([totals, norm[None]]).tolist()
        lr = find_rate(self.step, self.config.schedule)
        if broken > 0.0:
            return Record(self.step, math.nan, 0, lr, stop=True, done=False)
        if tokens == 0.0:
            raise ValueError("an update needs at least one target token, got none")
        scale = self.guard.scale
        size /= tokens * scale
        finite = math.isfinite(size)
        if finite:
            self._apply(lr, tokens, size)
        if self.guard.count(finite=finite):
            raise DivergenceError(self._explain(parts, scale))
        number = self.step + 1
        self.step += finite or self.guard.steps
        return Record(
            number, loss / tokens, int(tokens), lr, nll / tokens, size, not finite, stops > 0.0
        )

    @torch.no_grad()
    def measure(self, batches: Iterable[Batch]) -> MeanLoss:
        """The loss on this rank's validation batches, with averaged parameters if there are any."""
        self.model.eval()
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        tokens = 0
        with self.averaged():
            for batch in self.group.together(batches):
                found = self._loss(batch or empty_batch(self.model))
                sums += torch.stack([found.loss, found.nll])
                tokens += found.tokens
        totals = torch.cat([sums, sums.new_tensor([tokens])])
        loss, nll, count = self.group.sum(totals).tolist()
        if count == 0.0:
            raise ValueError("validation data must have at least one target token, got none")
        return MeanLoss(loss / count, nll / count, int(count))

    def averaged(self) -> AbstractContextManager[None]:
        """The model has its averaged parameters, if any, while this is open."""
        return nullcontext() if self.ema is None else self.ema.applied()

    @property
    def chosen(self) -> dict[str, str]:
        return {"products": self.products, "precision": self.precision}

    def keep_choices(self, products: str, precision: str) -> None:
        """A resumed run keeps what was chosen for it: a probe may decide otherwise today."""
        if self.chooses and self.config.products == "auto":
            with suppress(ValueError):  # it rounds on this machine
                self.products = choose(products)
        if self.config.precision == "auto":
            self.precision = precision

    def agree_on_size(self) -> None:
        """Takes the largest batch that fits of all ranks: a checkpoint holds one number."""
        unknown = 1 << 62
        least = -self.group.agree(-(unknown if self.largest is None else self.largest))
        self.largest = None if least == unknown else least

    def values(self) -> dict[str, Any]:
        kept = ("skipped", "in_a_row", "scale", "good", "steps", "window")
        guard = {name: getattr(self.guard, name) for name in kept}
        return {"step": self.step, **guard, "largest": self.largest}

    def set_values(self, values: dict[str, Any]) -> None:
        self.step, self.largest, guard = values["step"], values["largest"], self.guard
        guard.skipped, guard.in_a_row = values["skipped"], values["in_a_row"]
        if not guard.fixed:
            guard.scale, guard.good = values["scale"], values["good"]
            # 0.1.0 counted every update as a step and waited for 2,000 good ones.
            guard.steps, guard.window = values.get("steps", True), values.get("window", 2000)

    def _apply(self, lr: float, tokens: float, norm: float) -> None:
        """One optimiser step; gradients are sums, `norm` is the norm of their mean."""
        factor = 1.0 / (tokens * self.guard.scale)
        limit = self.config.clip_norm
        if limit > 0.0:
            factor *= min(1.0, limit / (norm + 1e-6))
        torch._foreach_mul_(gradients(self.model), factor)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        if self.ema is not None:
            self.ema.update(self.step + 1)

    def _accumulate(
        self, parts: list[_Part], stop: Callable[[], bool]
    ) -> tuple[list[_Part], Tensor, int, bool]:
        """Computes the gradient of the summed loss, in smaller parts if memory does not suffice.

        Returns the parts, their loss and nll [2] float64, tokens, and False if broken off.
        """
        while True:
            parts = list(self._split(parts))
            self.optimizer.zero_grad(set_to_none=True)
            losses = torch.zeros(2, dtype=torch.float64, device=self.device)
            tokens = 0
            failed: _Part | None = None
            for place, own in enumerate(self.group.together(parts)):
                if place > 0 and not self.group.lockstep and stop():
                    return parts, losses, tokens, False
                part = own or _Part((), empty_batch(self.model))
                try:
                    with using(self.products):
                        found = self._run(part)
                        last = place + 1 == len(parts) and not self.group.lockstep
                        sums = self.group.last_pass(self.model) if last else nullcontext()
                        with sums, torch.autocast(self.device.type, enabled=False):
                            torch.autograd.backward(found.loss * self.guard.scale)
                except (RuntimeError, MemoryError) as error:
                    if not is_out_of_memory(error):
                        raise
                    if self.group.lockstep:
                        raise RuntimeError(
                            f"out of memory at step {self.step + 1}. Processes that share the "
                            "model cannot retry one by one: lower train.max_tokens, or use more of "
                            "them"
                        ) from None
                    failed = part
                    break
                losses += torch.stack([found.loss.detach(), found.nll])
                tokens += found.tokens
            if failed is None:
                return parts, losses, tokens, True
            # Part of a backward pass may have been added to the gradients, so all begins anew, once
            # the error is gone with the tensors of its traceback.
            self._remember(failed.batch)

    def _remember(self, batch: Batch) -> None:
        """Batches of this size will be halved."""
        self.largest = batch.positions - 1
        if len(batch.target) == 1:
            raise RuntimeError(
                f"out of memory at step {self.step + 1} with one example of {batch.positions} "
                "positions alone. Leave out longer examples, or train a smaller model"
            )
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _split(self, parts: Iterable[_Part]) -> Iterator[_Part]:
        """The parts, halved until each fits or has one row."""
        for part in parts:
            fits = self.largest is None or part.batch.positions <= self.largest
            if fits or len(part.batch.target) == 1:
                yield part
            else:
                middle = len(part.batch.target) // 2
                halves = map(part.batch.cut, (slice(middle), slice(middle, None)))
                yield from self._split(_Part((*part.key, i), half) for i, half in enumerate(halves))

    def _run(self, part: _Part) -> Loss:
        set_seed(derive(self.config.seed, self.step, *part.key), self.device)
        return self._loss(part.batch)

    def _loss(self, batch: Batch) -> Loss:
        with using(self.products), autocast(self.precision, self.device):
            return batch_loss(
                self.model,
                batch,
                self.config.label_smoothing,
                device=self.device,
                features=self.features,
            )

    def _explain(self, parts: Sequence[_Part], scale: float) -> str:
        """The message of a divergence; computes the update once more to find its source."""
        if self.group.lockstep:  # one rank cannot look for itself
            return describe(self.step + 1, None, [])
        self.features = self.model.features
        runs = [partial(self._run, part) for part in parts]
        culprit = find_culprit(self.model, runs, scale)
        text = describe(self.step + 1, culprit, [part.batch for part in parts])
        # It may be the batch of another rank.
        return self.group.tell(None if culprit is None else text) or text
