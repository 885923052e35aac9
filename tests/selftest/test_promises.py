"""Each promise holds, and its check notices if it does not."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lightconv.selftest import PROMISES, checks
from lightconv.selftest.checks import BrokenError
from lightconv.train import checkpoint

CHECKS = {promise.name: promise.check for promise in PROMISES}


# R1 has its own tests in tests/train/test_resume.py; its check starts processes.
@pytest.mark.parametrize("name", ["R1", "R5", "R10", "R12"])
def test_it_holds(name: str, tmp_path: Path) -> None:
    assert CHECKS[name](tmp_path, name != "R1")


def broken(name: str, folder: Path, message: str) -> None:
    with pytest.raises(BrokenError, match=message):
        CHECKS[name](folder, False)


def fake_run(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Instead of training: a log and weights; `changes` are in the log of the killed run."""

    def run(command: list[str], *, log: Path | None = None, lines: int = 0) -> bool:
        folder = Path(command[-1])
        (folder / "model").mkdir(parents=True, exist_ok=True)
        (folder / "model" / "model.safetensors").write_bytes(b"weights")
        entry = {"step": 1, "seconds": random.random(), "tokens_per_second": random.random()}
        entry |= changes if "parts" in folder.name else {}
        (folder / "log.jsonl").write_text(json.dumps(entry) + "\n")
        return log is not None

    monkeypatch.setattr(checks, "_run", run)


def test_another_run_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_run(monkeypatch)
    assert CHECKS["R1"](tmp_path / "same", False)["kills"] == 2
    fake_run(monkeypatch, loss=2.0)
    broken("R1", tmp_path / "other", r"adam-fp32 after 2 kills differs in log\.jsonl")


def test_a_run_that_fails_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(checks.SETTINGS, "max_tokens", 1)
    broken("R1", tmp_path, r"exit code 2: error: ")


def test_a_digest_that_nobody_compares_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = checkpoint.CheckpointFiles
    monkeypatch.setattr(files, "_verified", lambda self, name: self.folder / name)
    broken("R5", tmp_path, "not detected")


def test_a_damage_changes_something() -> None:
    chance = random.Random(1)
    data = bytes(range(1, 200)) * 20
    for change, _ in checks.DAMAGES.values():
        assert all(change(data, chance) != data for _ in range(100))


def test_a_kernel_that_is_a_little_wrong_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = checks.OPERATORS["lightconv"]

    def wrong(x: Tensor, weight: Tensor, left: int, backend: str = "auto") -> Tensor:
        out = real(x, weight, left, backend=backend)
        return out * 1.0001 if backend == "auto" else out

    monkeypatch.setitem(checks.OPERATORS, "lightconv", wrong)
    broken("R10", tmp_path, "lightconv, out: ")


def test_code_that_runs_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "read_pickle", lambda path: torch.load(path, weights_only=False))
    broken("R12", tmp_path, "os.system, archive was read")


def test_every_promise_is_documented() -> None:
    root = Path(__file__).parents[2]
    table = (root / "docs" / "reliability.md").read_text().partition("\n## ")[0]
    rows = re.findall(r"^\| (R\d+) \|.*\| (.*) \|$", table, re.M)
    assert [name for name, _ in rows] == [f"R{number}" for number in range(1, 13)]
    for name, places in rows:
        assert ("selftest" in places) == (name in CHECKS)
        for path in re.findall(r"`(tests/[^`]+)`", places):
            assert re.search(rf"\b{name}\b", (root / path).read_text()), f"{path}: {name}"
