"""R4: ranks that share the batches of an update compute what one does that accumulates them."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightconv.data import Batch
from lightconv.models.folder import build
from lightconv.models.tensors import parameters, read_tensors, write_tensors
from lightconv.selftest.examples import DATA, lm_config, model_config, train_config
from lightconv.selftest.promise import Figures, expect
from lightconv.selftest.ranks import RankServer, shared_ranks
from lightconv.train import AdamConfig, Group, NesterovConfig, Trainer
from lightconv.train.distributed import join
from lightconv.train.launch import find_place
from lightconv.train.sharded import Shards

CPU = torch.device("cpu")
OPTIMIZERS = {"adam": AdamConfig(weight_decay=0.01), "nesterov": NesterovConfig(momentum=0.9)}
STEPS = 20
KEY_BIASES = "source.kv_proj.bias"


class Case(NamedTuple):
    """So many ranks with so many batches in each update; how far from one rank they may be.

    changes  what is other than Adam with fp32
    """

    size: int
    batches: int
    most: float
    changes: dict[str, Any]


QUICK = {"2 ranks, 2 batches": Case(2, 2, 0.0, {}), "2 ranks, 4 batches": Case(2, 4, 1e-6, {})}
CASES = QUICK | {
    "2 ranks, 2 batches, nesterov bf16": Case(
        2, 2, 0.0, {"optimizer": "nesterov", "precision": "bf16", "ema": 0.9}
    ),
    "2 ranks, 2 batches, fp16": Case(2, 2, 0.0, {"precision": "fp16"}),
    "3 ranks, 2 batches": Case(3, 2, 0.0, {}),  # the third has nothing to do
    "4 ranks, 4 batches": Case(4, 4, 1e-6, {}),
}


def check_together(folder: Path, full: bool) -> Figures:
    """R4."""
    server, cases = shared_ranks(), CASES if full else QUICK
    found = {name: compare(server, folder / name, case) for name, case in cases.items()}
    return {"updates": STEPS, "differences": found}


def compare(server: RankServer, folder: Path, case: Case) -> float:
    """Trains both; the largest difference of a parameter, which must not be more than allowed."""
    folder.mkdir()
    alone = server.call(updates, size=1, folder=f"{folder}/one", count=case.batches, **case.changes)
    losses = server.call(
        updates, size=case.size, folder=f"{folder}/all", count=case.batches, **case.changes
    )
    where = f"{case.size} ranks, {case.batches} batches"
    expect(all(found == losses[0] for found in losses), f"{where}: ranks have other losses")
    # The sums of validation are in another order even where those of updates are not.
    allowed = [1e-5 if case.most else 0.0] * (2 * STEPS) + [1e-6]
    for mine, other, most in zip(losses[0], alone[0], allowed, strict=True):
        same = math.isclose(mine, other, rel_tol=most)
        expect(same, f"{where}: a loss or norm of {mine}, not {other}")
    first = folder / "all" / "0.safetensors"
    for rank in range(1, case.size):
        apart = difference(first, folder / "all" / f"{rank}.safetensors", all_of_them=True)
        expect(apart == 0.0, f"{where}: rank {rank} has other parameters than rank 0, by {apart}")
    apart = difference(folder / "one" / "0.safetensors", first, all_of_them=case.most == 0.0)
    expect(apart <= case.most, f"{where}: {apart} from one rank, at most {case.most} allowed")
    return apart


def difference(a: Path, b: Path, *, all_of_them: bool = False) -> float:
    """The largest between two sets of parameters.

    The bias of keys adds the same to all scores of a row, which softmax does not see: its gradient
    is rounding alone, and Adam makes steps of full length out of that. It is left out unless all
    are asked for.
    """
    one, two = read_tensors(a), read_tensors(b)
    expect(one.keys() == two.keys(), f"{a} and {b} have other parameters")
    if not all_of_them:
        one, two = without_key_biases(one), without_key_biases(two)
    expect(all(tensor.isfinite().all() for tensor in one.values()), f"{a} is not finite")
    return max(float((one[name] - two[name]).abs().max()) for name in one)


def without_key_biases(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """By names of parameters: of a matrix for keys and values, the bias of the values."""
    return {
        name: tensor.chunk(2)[1] if name.endswith(KEY_BIASES) else tensor
        for name, tensor in tensors.items()
    }


# --- On every rank at once


@contextmanager
def joined(*, shard: bool = False) -> Iterator[Group]:
    """The group of this process."""
    with join(find_place(os.environ), CPU, os.environ, kind=Shards if shard else None) as group:
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
    steps: int = STEPS,
    optimizer: str = "adam",
    shard: bool = False,
    text: bool = False,
    **changes: Any,
) -> list[float]:
    """Updates of `count` batches each, which the ranks share; leaves the parameters in `folder`.

    Returns the loss and the norm of the gradient, which is cut, of each, and a loss of validation.
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
    """Writes what a rank has, under its number."""
    if model is not None:
        Path(folder).mkdir(exist_ok=True)
        write_tensors(Path(folder) / f"{group.rank}.safetensors", parameters(model))
