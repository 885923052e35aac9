"""What a rank does in a test: each function runs on every rank at once and returns plain values."""

import hashlib
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lightconv.models import Seq2Seq
from lightconv.models.folder import build
from lightconv.selftest.together import CPU, joined, leave, make_batches
from lightconv.train import DivergenceError, PreparedData, RunMetric, Trainer, run
from lightconv.train.signals import Stop
from tests.train.examples import model_config, small_config, train_config


def exchange() -> dict[str, Any]:
    """Everything that ranks tell each other, with values that say whose they are."""
    with joined() as group:
        rank = group.rank
        model = nn.Linear(3, 2)
        model.weight.grad = None if rank == 1 else torch.full((2, 3), float(rank + 1))
        model.bias.grad = torch.tensor([rank, 10.0 * rank])
        group.sum_gradients(model)
        seen: list[bool] = []
        found = {
            "rank": [group.rank, group.size],
            "sum": group.sum(torch.tensor([rank, 0.5], dtype=torch.float64)).tolist(),
            "agree": group.agree([3, 75, 0][rank]),
            "tell": group.tell([None, "one", "two"][rank]),
            "silence": group.tell(None),
            "first": group.first(lambda hurry: 0.1 + rank, lambda: False),
            "weight": model.weight.grad.tolist(),
            "bias": model.bias.grad.tolist(),
            "norm": float(group.norm(model)),
        }

        def slow(hurry: Any) -> float:
            end = time.monotonic() + 20.0
            while not hurry() and time.monotonic() < end:
                time.sleep(0.01)
            seen.append(hurry())
            return float("nan")

        # The last rank wants to stop while the first is computing.
        found["hurried"] = [str(group.first(slow, lambda: rank == 2)), seen]
        return found


def digest(model: nn.Module) -> str:
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().numpy().tobytes())
    return found.hexdigest()


class Spoiled(Seq2Seq):
    """Gives infinities from now on, on one rank."""

    spoiled = False

    def features(self, *inputs: torch.Tensor) -> torch.Tensor:
        x = super().features(*inputs)
        return x * float("inf") if self.spoiled else x


def overflow() -> dict[str, Any]:
    """The gradients of rank 1 alone are not finite, once and then for good."""
    with joined() as group:
        torch.manual_seed(0)
        model = Spoiled(model_config())
        trainer = Trainer(model, train_config(), group=group)
        mine = make_batches(4)[group.rank :: group.size]
        trainer.update(mine)
        before = digest(model)
        model.spoiled = group.rank == 1
        skipped = trainer.update(mine)
        kept = digest(model) == before
        model.spoiled = False
        good = trainer.update(mine)
        model.spoiled = group.rank == 1
        text = ""
        try:
            for _ in range(10):
                trainer.update([b._replace(rows=torch.tensor([5, 6])) for b in mine])
        except DivergenceError as error:
            text = str(error)
        return {
            "skipped": [skipped.skipped, good.skipped],
            "kept": kept,
            "step": trainer.step,
            "count": trainer.guard.skipped,
            "text": text,
        }


def out_of_memory(folder: str, *, limit: int | None) -> dict[str, Any]:
    """Rank 1 has no memory for batches of more than `limit` sentences."""
    with joined() as group:
        torch.manual_seed(0)
        model = build(small_config())
        real = model.features

        def features(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            if limit is not None and group.rank == 1 and len(source) > limit:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
            return real(source, target)

        model.features = features
        trainer = Trainer(model, train_config(), group=group)
        data = make_batches(16)
        for step in range(4):
            trainer.update(data[4 * step : 4 * step + 4][group.rank :: group.size])
        own = trainer.largest
        trainer.agree_on_size()
        leave(folder, model, group)
        return {"own": own, "agreed": trainer.largest, "digest": digest(model)}


class Asked(Stop):
    """A rank that wants to stop once `when` is there."""

    def __init__(self, when: Path | None) -> None:
        super().__init__()
        self.when = when

    @property
    def code(self) -> int:
        return 75 if self.when is not None and self.when.exists() else 0


def whole_run(
    folder: str,
    data: str,
    *,
    shard: bool = False,
    scores: list[float] | None = None,
    stop_rank: int | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """A run with a metric that has these values, one after the other.

    stop_rank  this rank alone wants to stop once rank 0 is computing the second score
    """
    mark = Path(folder + ".stop")
    calls: list[bool] = []

    def compute(model: Any, hurry: Any) -> float:
        assert not model.training
        assert not hasattr(next(model.parameters()), "full_tensor")
        calls.append(True)
        if len(calls) == 2 and stop_rank is not None:
            mark.touch()
            end = time.monotonic() + 20.0
            while not hurry() and time.monotonic() < end:
                time.sleep(0.01)
            assert hurry()
        return (scores or [])[len(calls) - 1]

    with joined(shard=shard) as group:
        outcome = run(
            Path(folder),
            PreparedData(data),
            model_config(),
            train_config(**changes),
            device=CPU,
            stop=Asked(mark if group.rank == stop_rank else None),
            metric=None if scores is None else RunMetric("score", compute),
            group=group,
        )
    return {
        "code": outcome.code,
        "step": outcome.step,
        "calls": len(calls),
        "best": outcome.progress.best_step,
        "stale": outcome.progress.stale,
        "averaged": outcome.averaged,
    }
