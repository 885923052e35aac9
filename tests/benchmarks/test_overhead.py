"""What a run costs beside its updates, as benchmarks/overhead.py puts it together."""

from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.overhead import measure, overhead, put_together, render

from lightconv.paper.recipes import RECIPES
from lightconv.train.log import read_log
from tests.harness.examples import small_config

FOUND = {"update": 2.0, "loading": 0.004, "logging": 0.002, "checkpoint": 3.0}


def test_500_updates_by_hand() -> None:
    whole = put_together(FOUND)
    assert whole == pytest.approx(
        {"update": 1000.0, "loading": 2.0, "logging": 1.0, "checkpoint": 3.0}
    )
    assert overhead(FOUND) == pytest.approx(6.0 / 1006.0)
    assert "| a checkpoint | 3,000.0 | 3.00 | 0.298% |" in render(FOUND)


def test_a_small_run_is_measured(tmp_path: Path) -> None:
    recipe = RECIPES["iwslt-de-en-dynamicconv-small"]
    train = replace(recipe.train, max_tokens=300, tokens_per_update=300)
    found = measure(replace(recipe, model=small_config(), train=train), tmp_path, 6, pairs=300)
    assert all(seconds > 0.0 for seconds in found.values())
    assert found.keys() == FOUND.keys()
    assert [entry["kind"] for entry in read_log(tmp_path / "log.jsonl")] == ["train"] * 6 + [
        "valid"
    ]
    lines = (tmp_path / "lines").read_text().splitlines()
    assert len(lines) == 7
    # Saved after 2, 4 and 6 updates; the first is no longer kept.
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    assert kept == ["step-00000004", "step-00000006"]
