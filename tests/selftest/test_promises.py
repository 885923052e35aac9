"""Each promise holds, and its check would notice if it did not."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from lightconv.data import Batch, Loader, Position, Vocabulary
from lightconv.selftest import (
    damage,
    forks,
    garbage,
    guards,
    kernels,
    kills,
    order,
    restarts,
    strangers,
    together,
)
from lightconv.selftest.forks import Server
from lightconv.selftest.points import worth_it
from lightconv.selftest.promise import BrokenError, scratch
from lightconv.train import checkpoint, trainer

# R1, R4, R5 and R7 are in tests/train, with more of each.
CHECKS = {
    "R2": kills.check_twice,
    "R3": order.check_order,
    "R6": kills.check_stops,
    "R8": guards.check_divergence,
    "R9": guards.check_memory,
    "R10": kernels.check_kernels,
    "R11": garbage.check_garbage,
    "R12": strangers.check_strangers,
}


@pytest.mark.parametrize("name", CHECKS)
def test_it_holds(name: str) -> None:
    with scratch() as folder:
        assert CHECKS[name](folder, False)


def broken(check: Callable[[Path, bool], Any], folder: Path, message: str) -> None:
    with pytest.raises(BrokenError, match=message):
        check(folder, False)


def test_another_result_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = kills.undisturbed

    def changed(server: Server, folder: Path, name: str, steps: int) -> kills.Undisturbed:
        whole = real(server, folder, name, steps)
        return whole._replace(left=whole.left | {f"{kills.STEPS} model": "other"})

    monkeypatch.setattr(kills, "undisturbed", changed)
    broken(kills.check_twice, tmp_path, "run a second time: other than undisturbed in 15 model")


def test_an_order_of_each_rank_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class OwnOrder(Loader):
        def __init__(self, batches: Any, position: Position, **options: Any) -> None:
            rank = options.get("rank", 0)
            super().__init__(batches, position._replace(seed=position.seed + rank), **options)

    monkeypatch.setattr(order, "Loader", OwnOrder)
    broken(order.check_order, tmp_path, "another order with 2 ranks")


class SomeRanks:
    """Instead of a server: every rank has this loss and this parameter, in turn."""

    def __init__(self, *found: tuple[float, float]) -> None:
        self.found = list(found)

    def call(self, case: object, *, size: int, folder: str, **_: Any) -> list[list[float]]:
        Path(folder).mkdir()
        losses = []
        for rank in range(size):
            loss, parameter = self.found.pop(0)
            save_file({"p": torch.tensor([parameter])}, f"{folder}/{rank}.safetensors")
            losses.append([loss] * (2 * together.STEPS + 1))
        return losses


@pytest.mark.parametrize(
    "found, most, message",
    [
        ([(1.0, 2.0), (1.0, 2.0), (1.1, 2.0)], 0.0, "ranks have other losses"),
        ([(1.0, 2.0), (1.1, 2.0), (1.1, 2.0)], 1e-6, "a loss or norm of 1.1, not 1.0"),
        ([(1.0, 2.0), (1.0, 2.0), (1.0, 2.1)], 0.0, "rank 1 has other parameters than rank 0"),
        ([(1.0, 2.0), (1.0, 2.5), (1.0, 2.5)], 1e-6, "0.5 from one rank, at most 1e-06 allowed"),
        ([(1.0, math.nan)] * 3, 1e-6, "is not finite"),
    ],
)
def test_ranks_that_differ_are_noticed(
    found: list[tuple[float, float]], most: float, message: str, tmp_path: Path
) -> None:
    case = together.Case(2, 2, most, {})
    with pytest.raises(BrokenError, match=message):
        together.compare(SomeRanks(*found), tmp_path / "both", case)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"code": 1}, "torchrun ended with 1: resumed from step 2"),
        ({"workers": 5}, "5 workers for 2 kills, not 6"),
        ({"said": "resumed from step 2"}, "resumed 1 times after 2 kills"),
        ({"same": False}, "other than undisturbed"),
    ],
)
def test_a_bad_restart_is_noticed(changes: dict[str, Any], message: str) -> None:
    good = restarts.Attempts(0, "resumed from step 2\nresumed from step 6\n", 6, True)
    assert restarts.judge(good, 2) == 2
    with pytest.raises(BrokenError, match=message):
        restarts.judge(good._replace(**changes), 2)


def test_a_digest_that_nobody_compares_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = checkpoint.CheckpointFiles
    monkeypatch.setattr(files, "_verified", lambda self, name: self.folder / name)
    broken(damage.check_damage, tmp_path, "of 100 bits flipped went unnoticed")


def test_a_guard_that_sleeps_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    awake = type("Math", (), {**vars(math), "isfinite": staticmethod(lambda value: True)})
    monkeypatch.setattr(trainer, "math", awake)
    broken(guards.check_divergence, tmp_path, "nan of encoder.0.ffn changed the parameters")


def test_rows_that_are_lost_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = trainer.halve

    def first_twice(batch: Batch) -> tuple[Batch, Batch]:
        first, _ = real(batch)
        return first, first

    monkeypatch.setattr(trainer, "halve", first_twice)
    broken(guards.check_memory, tmp_path, "tokens are lost|differs by")


def test_a_kernel_that_is_a_little_wrong_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = kernels.OPERATORS["lightconv"]

    def wrong(x: Tensor, weight: Tensor, left: int, backend: str = "auto") -> Tensor:
        out = real(x, weight, left, backend=backend)
        return out * 1.0001 if backend == "auto" else out

    monkeypatch.setitem(kernels.OPERATORS, "lightconv", wrong)
    broken(kernels.check_kernels, tmp_path, "lightconv, out: ")


def test_a_reader_that_crashes_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: Path) -> Vocabulary:
        if len(path.read_bytes()) < 20:
            raise KeyError("x")
        return Vocabulary.of([])

    monkeypatch.setattr(Vocabulary, "load", load)
    broken(garbage.check_garbage, tmp_path, "vocabulary: KeyError")


def test_code_that_runs_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "read_pickle", lambda path: torch.load(path, weights_only=False))
    broken(strangers.check_strangers, tmp_path, "os.system, archive was read")


def test_a_clock_stands_still_with_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(forks.time, "monotonic", lambda: now[0])
    clock = forks.Clock()
    for passed in (0.05, 70.0, 0.03):  # someone has stopped everything for 70 s
        now[0] += passed
        clock.tick()
    assert clock.seconds == pytest.approx(0.05 + forks.LONGEST_PAUSE + 0.03)


def test_which_operations_are_worth_a_kill() -> None:
    names = ["open", *["write"] * 6, "fsync", "open", "write", "fsync"]
    assert worth_it(names) == [0, 1, 2, 6, 7, 8, 9, 10]


def test_damage_of_garbage_keeps_no_bounds() -> None:
    chance = random.Random(0)
    found = {garbage.damage(b"some text", chance) for _ in range(200)}
    assert len(found) > 150 and any(len(data) > 300 for data in found)
