"""Functions that run on every rank at once; they return plain values."""

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightconv.data import Batch
from lightconv.models import Seq2Seq
from lightconv.models.folder import build
from lightconv.models.tensors import parameters, read_tensors, write_tensors
from lightconv.train import (
    AdamConfig,
    DivergenceError,
    Group,
    NesterovConfig,
    PreparedData,
    RunMetric,
    Trainer,
    distributed,
    run,
)
from lightconv.train.distributed import Replicas, join
from lightconv.train.launch import Stop, find_place
from lightconv.train.sharded import Shards
from tests.harness.examples import DATA, lm_config, model_config, small_config, train_config

CPU = torch.device("cpu")
OPTIMIZERS = {"adam": AdamConfig(weight_decay=0.01), "nesterov": NesterovConfig(momentum=0.9)}
KEY_BIASES = "source.kv_proj.bias"


@contextmanager
def joined(*, shard: bool = False) -> Iterator[Group]:
    with join(find_place(os.environ), CPU, os.environ, kind=Shards if shard else Replicas) as group:
        yield group


def make_batches(count: int) -> list[Batch]:
    """Batches of different numbers of tokens: the mean of their means is not the mean."""
    data = replace(DATA, sentences=12)
    rows = [7, 12, 3, 9]
    return [
        Batch(tuple(part[: rows[i % 4]] for part in batch.inputs), batch.target[: rows[i % 4]])
        for i, batch in enumerate(islice(data, count))
    ]


def updates(
    folder: str,
    *,
    count: int,
    steps: int = 20,
    optimizer: str = "adam",
    shard: bool = False,
    text: bool = False,
    **changes: Any,
) -> list[float]:
    """Updates of `count` batches each, shared by the ranks; writes the parameters to `folder`.

    Returns loss and clipped gradient norm of each update, then a validation loss.
    """
    config = train_config(optimizer=OPTIMIZERS[optimizer], clip_norm=0.5, **changes)
    with joined(shard=shard) as group:
        torch.manual_seed(0)
        model = build(lm_config() if text else model_config())
        group.prepare(model)
        trainer = Trainer(model, config, group=group)
        data = make_batches(count * steps)
        if text:
            data = [Batch((batch.inputs[1],), batch.target) for batch in data]
        losses = []
        for step in range(steps):
            mine = data[count * step : count * (step + 1)][group.rank :: group.size]
            record = trainer.update(mine)
            losses += [record.loss, record.norm]
        losses.append(trainer.measure(data[:3][group.rank :: group.size]).loss)
        with trainer.averaged():
            leave(folder, group.whole(model), group)
        return losses


def leave(folder: str, model: nn.Module | None, group: Group) -> None:
    """Writes the parameters of a rank under its number."""
    if model is not None:
        Path(folder).mkdir(exist_ok=True)
        write_tensors(Path(folder) / f"{group.rank}.safetensors", parameters(model))


def difference(a: Path, b: Path, *, all_of_them: bool = False) -> float:
    """The largest difference between two files of parameters.

    The bias of keys adds the same to all scores of a row, which softmax cancels: its gradient is
    rounding alone, and Adam makes full steps of that. It is left out unless `all_of_them`.
    """
    one, two = read_tensors(a), read_tensors(b)
    assert one.keys() == two.keys()
    if not all_of_them:
        one, two = without_key_biases(one), without_key_biases(two)
    assert all(tensor.isfinite().all() for tensor in one.values())
    return max(float((one[name] - two[name]).abs().max()) for name in one)


def without_key_biases(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Keeps the values' half of the bias of a matrix for keys and values."""
    return {
        name: tensor.chunk(2)[1] if name.endswith(KEY_BIASES) else tensor
        for name, tensor in tensors.items()
    }


def exchange() -> dict[str, Any]:
    """Everything that ranks exchange, with values that depend on the rank."""
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


def out_of_memory(folder: str, *, limit: int | None, late: bool = False) -> dict[str, Any]:
    """Rank 1 has no memory for batches of more than `limit` sentences.

    late  it runs out near the end of the backward pass, when other gradients are being summed
    """
    sent: list[int] = []
    with joined() as group, ExitStack() as patches:
        torch.manual_seed(0)
        patches.callback(setattr, distributed, "PIECE", distributed.PIECE)
        distributed.PIECE = 1000
        model = build(small_config())
        real, sentences = model.features, 0

        def fail() -> None:
            if limit is not None and group.rank == 1 and sentences > limit:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

        def features(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            nonlocal sentences
            sentences = len(source)
            if not late:
                fail()
            return real(source, target)

        def backward(gradient: torch.Tensor) -> None:
            assert isinstance(group, Replicas)
            sent.append(0 if group._sums is None else len(group._sums.under_way))
            fail()

        model.features = features
        if late:
            first = next(p for p in model.encoder.parameters() if p.dim() > 1)
            first.register_hook(backward)
        trainer = Trainer(model, train_config(), group=group)
        data = make_batches(16)
        for step in range(4):
            trainer.update(data[4 * step : 4 * step + 4][group.rank :: group.size])
        own = trainer.largest
        trainer.agree_on_size()
        leave(folder, model, group)
        found = {"own": own, "agreed": trainer.largest, "digest": digest(model)}
        return {**found, "sent": sent}


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
