"""The tables before and after a run."""

from pathlib import Path

import pytest
from lightconv.train.progress import Progress, Window

from lightconv.data import Position
from lightconv.train import Outcome
from lightconv.train.estimate import Memory, memory_rows, plan_rows, summary_rows
from lightconv.train.trainer import Record
from tests.train.examples import train_config

CONFIG = train_config(tokens_per_update=4000, max_tokens=2048)


def plan(effective: tuple[float, float] | None, recipe: int = 4000) -> dict[str, str]:
    rows = plan_rows(
        CONFIG, parameters=12345678, device="cpu", recipe_tokens=recipe, effective=effective
    )
    return dict(rows)


def test_the_plan() -> None:
    assert plan(None) == {
        "parameters": "12,345,678",
        "device": "cpu, fp32",
        "steps": "40",
        "batch": "at most 2,048 positions on 1 device",
        "effective batch": "4,000 target tokens by accumulation; the recipe has 4,000",
    }


def test_the_plan_says_what_memory_is_kept() -> None:
    rows = plan_rows(CONFIG, parameters=1, device="cpu", recipe_tokens=4000, kept=3 << 30)
    assert dict(rows)["freed memory"] == "is kept up to 3,072 MB (LIGHTCONV_TRAIN_KEEP_MB)"


@pytest.mark.parametrize(
    "effective, recipe, text",
    [
        (
            (4321.4, 2.52),
            4000,
            "4,321 target tokens in 2.5 batches on average; the recipe has 4,000",
        ),
        (
            (4321.4, 2.52),
            458752,
            "4,321 target tokens in 2.5 batches on average; the recipe has 458,752 "
            "(0.0094 times): consider another learning rate",
        ),
        (
            (6000.0, 1.0),
            4000,
            "6,000 target tokens in 1.0 batches on average, as one batch has more than "
            "train.tokens_per_update=4000: lower train.max_tokens=2048; the recipe has 4,000",
        ),
        (None, 1000, "4,000 target tokens by accumulation; the recipe has 1,000 (4 times): "),
    ],
)
def test_the_effective_batch_is_compared(
    effective: tuple[float, float] | None, recipe: int, text: str
) -> None:
    assert plan(effective, recipe)["effective batch"].startswith(text)


def test_memory() -> None:
    rows = dict(memory_rows(Memory(10**6, 2 * 10**6, 3 * 10**6, 4 * 10**9, 0)))
    assert rows["memory: activations"] == "4,000 MB"
    assert rows["memory: total"] == "4,006 MB"


def test_the_summary() -> None:
    progress = Progress(
        Position(1, 3, 2),
        validated=20,
        best=-2.5,
        best_step=10,
        tokens=50_000,
        seconds={"updates": 96.0, "validation": 2.0, "loading": 1.5, "checkpoints": 0.5},
    )
    entries = [
        {"kind": "valid", "step": 10, "loss": 2.5, "perplexity": 9.0, "metric": {"bleu": 20.5}},
        {"kind": "train", "step": 20, "loss": 2.345678},
        {"kind": "valid", "step": 20, "loss": None, "perplexity": None},
    ]
    outcome = Outcome(0, 20, Path("x"), [10, 15, 20], progress, 2, entries)
    assert dict(summary_rows(outcome, Path("run/model"))) == {
        "steps": "20",
        "target tokens": "50,000",
        "time": "1:40 (updates 96.0%, validation 2.0%, loading 1.5%, checkpoints 0.5%)",
        # 2 of 98 seconds.
        "overhead": "2.04% beside updates (loading 1.53%, logging 0.00%, checkpoints 0.51%)",
        "tokens/s": "500",
        "updates left out": "2 with a gradient that is not finite",
        "last loss": "2.346",
        "last validation": "loss not finite, perplexity not finite (step 20)",
        "best validation": "loss 2.5, perplexity 9, bleu 20.5 (step 10)",
        "averaged": "steps 10, 15, 20",
        "model": "run/model",
    }


def test_progress_comes_back() -> None:
    progress = Progress(Position(1, 2, 3), window=Window(1.0, 2.0, 3, 4.0), seconds={"a": 1.5})
    assert Progress.of(progress.values()) == progress
    assert isinstance(Progress.of(progress.values()).position, Position)


def test_a_window_leaves_out_what_was_skipped() -> None:
    window = Window()
    window.add(Record(1, 2.0, 10, 0.1, nll=1.0))
    window.add(Record(2, float("nan"), 10, 0.1, skipped=True))
    window.add(Record(3, 4.0, 30, 0.1, nll=3.0))
    assert (window.loss, window.nll, window.tokens) == (140.0, 100.0, 40)
