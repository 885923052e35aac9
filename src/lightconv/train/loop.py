"""The training loop: updates, validation, checkpoints and log of a run, and where it stands."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast

import torch

from lightconv.console import Display
from lightconv.data import Batch, Loader, Position
from lightconv.models.tensors import parameters
from lightconv.ops.library import native
from lightconv.train.checkpoints import (
    EMA_PART,
    MODEL_PART,
    OPTIMIZER_PART,
    Checkpoint,
    Checkpoints,
    SaveError,
)
from lightconv.train.data import TrainingData
from lightconv.train.distributed import Group, gather
from lightconv.train.launch import Stop
from lightconv.train.log import Log, Pace, describe_validation, perplexity
from lightconv.train.memory import Allocator
from lightconv.train.optim import (
    DivergenceError,
    Model,
    flatten_optimizer,
    restore_optimizer,
    restore_tensors,
)
from lightconv.train.trainer import Record, Trainer


class RunMetric(NamedTuple):
    """A measure of the model besides its loss, such as BLEU on validation data.

    compute  called with the model in evaluation mode and a function: once it returns true, the
             result is thrown away, so any will do
    higher   True if more is better
    """

    name: str
    compute: Callable[[Model, Callable[[], bool]], float]
    higher: bool = True


@dataclass
class Window:
    """Sums over the updates since the last entry in the log."""

    loss: float = 0.0
    nll: float = 0.0
    tokens: int = 0
    seconds: float = 0.0

    def add(self, record: Record) -> None:
        if not record.skipped:
            self.loss += record.loss * record.tokens
            self.nll += record.nll * record.tokens
            self.tokens += record.tokens


@dataclass
class RunProgress:
    """State of a run besides model, optimiser and trainer; stored in checkpoints.

    position   in the data: (seed, epoch, batch)
    validated  step of the last validation, which gave `score`: more is better
    best       the highest score so far, of step `best_step`; `stale` validations were not better
    seconds    time spent, by kind of work
    """

    position: Position
    validated: int = 0
    score: float | None = None
    best: float | None = None
    best_step: int = 0
    stale: int = 0
    tokens: int = 0
    window: Window = field(default_factory=Window)
    seconds: dict[str, float] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        return asdict(self) | {"position": list(self.position)}

    @classmethod
    def of(cls, values: dict[str, Any]) -> "RunProgress":
        position, window = Position(*values["position"]), Window(**values["window"])
        return cls(**values | {"position": position, "window": window})


def describe_machine(device: torch.device, group: Group, **chosen: str) -> dict[str, Any]:
    """All that must stay the same for a resumed run to be the same, bit for bit.

    chosen  products and precision
    """
    return {
        "torch": torch.__version__,
        "device": device.type,
        "threads": torch.get_num_threads(),
        "kernels": native().isa,
        "processes": group.size,
        **chosen,
    }


@dataclass
class Loop:
    """Trains until `max_steps`, until validation no longer improves, or until a stop.

    log  None on ranks above 0
    """

    trainer: Trainer
    data: TrainingData
    checkpoints: Checkpoints
    log: Log | None
    display: Display
    stop: Stop
    metric: RunMetric | None = None
    allocator: Allocator = field(default_factory=lambda: Allocator(0))

    def __post_init__(self) -> None:
        self.config = self.trainer.config
        self.group = self.trainer.group
        self.machine = describe_machine(self.trainer.device, self.group, **self.trainer.chosen)
        self.pace = Pace(self.config.max_steps)
        self.progress = RunProgress(Position(self.config.seed))
        # Step whose state is on the disk as it is now.
        self.saved: int | None = None

    def run(self) -> int:
        """0 at the end of training, or the exit code of a stop; all is saved.

        An error names the last checkpoint.
        """
        try:
            return self._run()
        except DivergenceError as error:
            raise DivergenceError(f"{error}. {self.checkpoints.describe_last()}") from None
        except SaveError:
            raise
        except OSError as error:
            what = f"{error.filename or self.checkpoints.folder.parent}: {error.strerror or error}"
            raise SaveError(f"{what}. {self.checkpoints.describe_last()}") from error

    def _run(self) -> int:
        code, config = 0, self.config
        self.group.begin()
        with self.data.updates(self.progress.position, config, self.group) as updates:
            while True:
                step = self.trainer.step
                due = step % config.validate_every == 0 or step >= config.max_steps
                if due and step != self.progress.validated:
                    code = self._validate()
                ended = self.ended()
                best = config.keep_best > 0 and step == self.progress.best_step > 0
                due = ended or code > 0 or config.is_regular(step) or best
                if due and step != self.saved:
                    self._save()
                if ended and step < config.max_steps:
                    self.display.note(
                        f"training ends: {self.progress.stale} validations in a row without a "
                        "better one (train.patience)"
                    )
                if ended or code > 0:
                    return 0 if ended else code
                if self._update(updates).stop:
                    code = self.group.agree(self.stop.code)

    def ended(self) -> bool:
        """True if nothing is left to do."""
        impatient = 0 < self.config.patience <= self.progress.stale
        last = self.trainer.step >= self.config.max_steps or impatient
        return last and self.progress.validated == self.trainer.step

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continues from a checkpoint, and tells so."""
        trainer, values = self.trainer, checkpoint.values
        restore_tensors(parameters(trainer.model), checkpoint.tensors[MODEL_PART])
        state = checkpoint.tensors[OPTIMIZER_PART]
        restore_optimizer(trainer.optimizer, trainer.model, state, values["optimizer"])
        if trainer.ema is not None:
            restore_tensors(trainer.ema.tensors, checkpoint.tensors[EMA_PART])
        trainer.set_values(values["trainer"])
        self.progress = RunProgress.of(values["progress"])
        self.saved = checkpoint.step
        # Before there was a choice, products were torch's default.
        note = self.display.note
        old = trainer.chosen | {"products": "default"} | values["machine"]
        trainer.keep_choices(old["products"], old["precision"])
        self.machine |= trainer.chosen
        for step, reason in checkpoint.skipped.items():
            note(f"the checkpoint of step {step} is damaged: {reason}")
        note(f"resumed from step {checkpoint.step:,} ({checkpoint.path})")
        changed = [f"{k} {old.get(k)} -> {v}" for k, v in self.machine.items() if old.get(k) != v]
        if changed:
            note(f"other machine: {', '.join(changed)}. The run continues, but not bit for bit")
        if self.ended():
            note("it has ended; the model is written once more")

    def _update(self, updates: Loader) -> Record:
        progress, config = self.progress, self.config
        began = time.perf_counter()
        with self._timed("loading"):
            batches = next(updates)
        with self._timed("updates"):
            record = self.trainer.update(batches, stop=lambda: self.stop.code > 0)
            self.allocator.release()
        if not record.done:
            return record
        progress.position = updates.position
        progress.tokens += record.tokens
        progress.window.add(record)
        due = record.step % config.log_every == 0 or record.step == config.max_steps
        logged = due and record.step == self.trainer.step  # not if it is tried again
        with self._timed("logging"):
            progress.window.seconds += time.perf_counter() - began
            if record.skipped:
                self.display.note(f"step {record.step}: gradient not finite, update left out")
            if logged:
                record = self._log(record)
            self.pace.add(record.tokens)
            self.display.line(self.pace.describe(record), keep=logged)
        return record

    def _log(self, record: Record) -> Record:
        """Writes means since the last entry; returns the record with them."""
        window, self.progress.window = self.progress.window, Window()
        tokens = max(window.tokens, 1)
        record = record._replace(loss=window.loss / tokens, nll=window.nll / tokens)
        self._write(
            {
                "kind": "train",
                "step": record.step,
                "epoch": self.progress.position[1],
                "loss": record.loss,
                "nll": record.nll,
                "perplexity": perplexity(record.nll),
                "lr": record.lr,
                "norm": record.norm,
                "tokens": self.progress.tokens,
                "skipped": self.trainer.guard.skipped,
                "tokens_per_second": window.tokens / max(window.seconds, 1e-9),
                "seconds": sum(self.progress.seconds.values()),
            }
        )
        return record

    def _write(self, entry: dict[str, Any]) -> None:
        if self.log is not None:
            self.log.write(entry)

    def _validate(self) -> int:
        """0 when it is done; the exit code of a stop, and then it counts for nothing."""
        progress, trainer = self.progress, self.trainer
        with self._timed("validation"):
            batches = self.data.validation(self.config, self.group)
            measured = trainer.measure(self._until_stop(batches))
            score = -measured.nll
            entry: dict[str, Any] = {
                "kind": "valid",
                "step": trainer.step,
                "loss": measured.loss,
                "nll": measured.nll,
                "perplexity": perplexity(measured.nll),
            }
            if self.metric is not None and not self.group.agree(self.stop.code):
                found = self._compute(self.metric)
                score = found if self.metric.higher else -found
                entry["metric"] = {self.metric.name: found}
        if code := self.group.agree(self.stop.code):
            return code
        progress.validated, progress.score = trainer.step, score
        improved = not math.isnan(score) and (progress.best is None or score > progress.best)
        progress.stale = 0 if improved else progress.stale + 1
        if improved:
            progress.best, progress.best_step = score, trainer.step
        self._write(entry | {"best": progress.best_step})
        self.display.note(describe_validation(entry, improved=improved))
        self.saved = None
        return 0

    def _compute(self, metric: RunMetric) -> float:
        """The metric, which rank 0 computes while the others wait."""
        model = self.trainer.model.eval()
        with self.trainer.averaged():
            whole = cast(Model, self.group.whole(model))  # None above rank 0
            compute = partial(metric.compute, whole)
            return self.group.first(compute, lambda: self.stop.code > 0)

    def _until_stop(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """At least one batch, but no more after a stop."""
        for batch in batches:
            yield batch
            if self.stop.code:
                return

    def _save(self) -> None:
        trainer, step = self.trainer, self.trainer.step
        with self._timed("checkpoints"):
            # All ranks take part: sharded tensors are gathered.
            state, options = flatten_optimizer(trainer.optimizer, trainer.model)
            tensors = {MODEL_PART: parameters(trainer.model), OPTIMIZER_PART: state}
            if trainer.ema is not None:
                tensors[EMA_PART] = trainer.ema.tensors
            tensors = {part: gather(named) for part, named in tensors.items()}
            trainer.agree_on_size()
            values = {
                "trainer": trainer.values(),
                "progress": self.progress.values(),
                "optimizer": options,
                "data": self.data.digests,
                "machine": self.machine,
                "metric": "" if self.metric is None else self.metric.name,
            }
            score = self.progress.score if self.progress.validated == step else None
            if self.log is not None:
                self.log.sync()
            self.checkpoints.save(step, tensors, values, score=score)
        self.saved = step

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        seconds = self.progress.seconds
        seconds[what] = seconds.get(what, 0.0) + time.perf_counter() - began
