"""Each promise holds, and its check notices if it does not."""

import json
import random
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lightconv import selftest
from lightconv.selftest import PROMISES, BrokenError
from lightconv.train import checkpoints

CHECKS = {promise.name: promise.check for promise in PROMISES}


# R1 has its own tests in tests/train/test_resume.py; its check starts processes.
@pytest.mark.parametrize("name", ["R1", "R5", "R10", "R12"])
def test_it_holds(name: str, tmp_path: Path) -> None:
    figures = CHECKS[name](tmp_path, name != "R1")
    known = {"R1": ("kills", 2), "R5": ("pages zeroed", 500), "R10": ("shapes", 800)}
    counted, count = known.get(name, ("files", 24))
    assert figures[counted] == count


def broken(name: str, folder: Path, message: str) -> None:
    with pytest.raises(BrokenError, match=message):
        CHECKS[name](folder, False)


# --- R1


def fake_run(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Instead of training: a log and weights; `changes` are in the log of the killed run."""

    def run(command: list[str], *, log: Path | None = None, lines: int = 0) -> bool:
        folder = Path(command[-1])
        (folder / "model").mkdir(parents=True, exist_ok=True)
        weights = changes.get("weights", "") if "parts" in folder.name else ""
        (folder / "model" / "model.safetensors").write_text(f"weights{weights}")
        entry = {"step": 1, "seconds": random.random(), "tokens_per_second": random.random()}
        entry |= {"loss": changes.get("loss", 1.0) if "parts" in folder.name else 1.0}
        (folder / "log.jsonl").write_text(json.dumps(entry) + "\n")
        return log is not None

    monkeypatch.setattr(selftest, "_run", run)


def test_another_run_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_run(monkeypatch)
    assert CHECKS["R1"](tmp_path / "same", False)["kills"] == 2
    fake_run(monkeypatch, loss=2.0)
    broken("R1", tmp_path / "log", r"adam-fp32 after 2 kills differs in log\.jsonl")
    fake_run(monkeypatch, weights="!")
    broken("R1", tmp_path / "weights", r"differs in model/model\.safetensors")


def test_a_run_that_fails_or_hangs_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(selftest.SETTINGS, "max_tokens", 1)
    broken("R1", tmp_path / "fails", r"exit code 2: error: ")
    times = iter([0.0, 301.0])
    monkeypatch.setattr(selftest.time, "monotonic", lambda: next(times, 301.0))
    with pytest.raises(BrokenError, match="did not end within 300 s"):
        selftest._run(["list"])


# --- R5, R10, R12: faults planted in the code that is checked


def no_digest(patch: pytest.MonkeyPatch) -> None:
    files = checkpoints.CheckpointFiles
    patch.setattr(files, "_verified", lambda self, name: self.folder / name)


def no_newest(patch: pytest.MonkeyPatch) -> None:
    real = selftest.Checkpoints.latest

    def latest(self: Any) -> Any:
        found = real(self)
        if found is None or found.step != selftest.DAMAGED:
            return found
        older = self.load(selftest.GOOD)
        return replace(older, skipped={selftest.DAMAGED: "distrusted"})

    patch.setattr(selftest.Checkpoints, "latest", latest)


def wrong(change: Callable[[Tensor, Tensor, int], Tensor]) -> Callable[[pytest.MonkeyPatch], None]:
    """A LightConv whose kernels, not its formula, are changed; the number counts the calls."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        real, calls = selftest.OPERATORS["lightconv"], count()

        def operator(x: Tensor, weight: Tensor, left: int, backend: str = "auto") -> Tensor:
            out = real(x, weight, left, backend=backend)
            return change(out, weight, next(calls)) if backend == "auto" else out

        patch.setitem(selftest.OPERATORS, "lightconv", operator)

    return plant


def runs_code(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(selftest, "read_pickle", lambda path: torch.load(path, weights_only=False))


def runs_and_refuses(patch: pytest.MonkeyPatch) -> None:
    def read(path: Path) -> None:
        with suppress(Exception):
            torch.load(path, weights_only=False)
        raise ValueError

    patch.setattr(selftest, "read_pickle", read)


def loads_anything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(selftest.ModelFolder, "load", lambda folder: None)


@pytest.mark.parametrize(
    "name, plant, message",
    [
        ("R5", no_digest, "not detected"),
        ("R5", no_newest, "an intact checkpoint is not used"),
        ("R10", wrong(lambda out, w, n: out * 1.0001), "lightconv, out: "),
        ("R10", wrong(lambda out, w, n: out + (w - w.detach()).sum()), "lightconv, grad weight: "),
        ("R10", wrong(lambda out, w, n: out + 1e-6 * (n % 2)), "lightconv: the second call"),
        ("R12", runs_code, "os.system, archive was read"),
        ("R12", runs_and_refuses, "os.system, archive was read"),
        ("R12", loads_anything, "pickled weights were loaded"),
    ],
)
def test_a_planted_fault_is_noticed(
    name: str,
    plant: Callable[[pytest.MonkeyPatch], None],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    broken(name, tmp_path, message)


def test_a_damage_changes_something() -> None:
    chance = random.Random(1)
    data = bytes(range(1, 200)) * 20
    for change, _ in selftest.DAMAGES.values():
        assert all(change(data, chance) != data for _ in range(100))


def test_every_promise_is_documented() -> None:
    root = Path(__file__).parents[1]
    table = (root / "docs" / "reliability.md").read_text().partition("\n## ")[0]
    rows = re.findall(r"^\| (R\d+) \|.*\| (.*) \|$", table, re.M)
    assert [name for name, _ in rows] == [f"R{n}" for n in range(1, 21)]
    for name, places in rows:
        assert ("selftest" in places) == (name in CHECKS)
        for path in re.findall(r"`(tests/[^`]+)`", places):
            assert re.search(rf"\b{name}\b", (root / path).read_text()), f"{path}: {name}"
