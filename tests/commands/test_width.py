"""On a terminal of 80 columns no line of a result is longer; tests/test_cli.py has the help."""

import json
import sys
from pathlib import Path

import pytest

from tests.commands.conftest import Run

GOLDEN = Path(__file__).parent.parent / "golden"
COLUMNS = 80
RESULTS = {
    "list": ("list",),
    "params": ("list", "iwslt", "--params"),
    "show": ("show", "iwslt-de-en-dynamicconv", "--params"),
    "corpora": ("prepare", "--list"),
    "tables": ("table",),
    "decoders": ("table", "decoders", "--results", "results"),
    "plan": ("train", "pairs.toml", "--dry-run"),
    "evaluate": ("evaluate", "end/pairs", "--data", "data/pairs", "--floor", "--limit", "4"),
    "tune": ("tune", "end/pairs", "--data", "data/pairs", "--dry-run", "--limit", "2"),
    "speed": ("speed", "end/pairs", "--data", "data/pairs", "--rounds", "1", "--limit", "2"),
    "verify": ("verify-data", "data/pairs"),
    "doctor": ("doctor",),
    "bench": ("bench",),
    "bench models": ("bench", "end/pairs"),
}


def too_long(text: str) -> list[str]:
    return [line for line in text.splitlines() if len(line) > COLUMNS]


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


@pytest.mark.parametrize("name", RESULTS)
def test_results_fit(run: Run, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.chdir(GOLDEN)
    done = run(*RESULTS[name])
    assert done.out and not too_long(done.out)


@pytest.mark.parametrize("name", [name for name in RESULTS if name != "verify"])
def test_results_are_json_if_asked_for(
    run: Run, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(GOLDEN)
    done = run(*RESULTS[name], "--format", "json")
    found = [json.loads(line) for line in done.out.splitlines()]
    assert found and all(isinstance(each, dict) and each for each in found)
    assert not any("" in each for each in found)


def test_numbers_are_numbers_in_json(run: Run) -> None:
    done = run("show", "iwslt-de-en-dynamicconv", "--params", "--format", "json")
    first = json.loads(done.out.splitlines()[0])
    assert isinstance(first["parameters"], int)
