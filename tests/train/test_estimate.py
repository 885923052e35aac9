"""The estimate of memory against what a forward pass keeps; the tables before and after a run."""

from pathlib import Path

import pytest
import torch

from lightconv.data import Position
from lightconv.models import LanguageModel, Seq2Seq
from lightconv.train import NesterovConfig, Outcome
from lightconv.train.estimate import (
    LENGTH,
    MemoryEstimate,
    estimate,
    memory_rows,
    plan_rows,
    summary_rows,
)
from lightconv.train.loop import RunProgress, Window
from lightconv.train.trainer import Record
from tests.harness.examples import lm_config, model_config, train_config


def kept(model: Seq2Seq | LanguageModel, *inputs: torch.Tensor) -> int:
    """Bytes of all tensors that the graph of a forward pass holds on to, parameters left out."""
    storages = {}
    own = {parameter.data_ptr() for parameter in model.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model.features(*inputs)
    assert output.requires_grad
    return sum(storages.values())


def test_activations_are_what_a_forward_pass_keeps() -> None:
    tokens = torch.randint(4, 12, (4, LENGTH))
    config = train_config(max_tokens=4 * LENGTH)
    for model_of, inputs in ((model_config(), (tokens, tokens)), (lm_config(), (tokens,))):
        model = (Seq2Seq if len(inputs) == 2 else LanguageModel)(model_of)  # type: ignore[arg-type]
        found = estimate(model_of, config)
        # Beside them: a chunk of logits, its gradient, those of vocabulary and features.
        loss = (2 * 128 * 12 + 12 * 16 + 128 * 16) * 4
        real = kept(model, *inputs)
        assert abs(found.activations - loss - real) <= 0.02 * real
        count = sum(p.numel() for p in model.parameters())
        assert found.parameters == found.gradients == 4 * count
        assert found.optimizer == 8 * count
        assert found.total == sum(found)


def test_what_changes_it() -> None:
    plain = estimate(model_config(), train_config())
    assert estimate(model_config(), train_config(ema=0.9)).optimizer == 1.5 * plain.optimizer
    nesterov = train_config(optimizer=NesterovConfig())
    assert estimate(model_config(), nesterov).optimizer == plain.optimizer / 2
    assert estimate(model_config(), train_config(precision="bf16")).activations < plain.activations
    larger = estimate(model_config(), train_config(max_tokens=2048)).activations
    assert larger > 20 * plain.activations
    assert estimate(model_config(), train_config(max_tokens=3)).activations > 0


# --- Tables

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
    rows = dict(memory_rows(MemoryEstimate(10**6, 2 * 10**6, 3 * 10**6, 4 * 10**9, 0)))
    assert rows["memory: activations"] == "4,000 MB"
    assert rows["memory: total"] == "4,006 MB"


def test_the_summary() -> None:
    progress = RunProgress(
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
    progress = RunProgress(Position(1, 2, 3), window=Window(1.0, 2.0, 3, 4.0), seconds={"a": 1.5})
    assert RunProgress.of(progress.values()) == progress
    assert isinstance(RunProgress.of(progress.values()).position, Position)


def test_a_window_leaves_out_what_was_skipped() -> None:
    window = Window()
    window.add(Record(1, 2.0, 10, 0.1, nll=1.0))
    window.add(Record(2, float("nan"), 10, 0.1, skipped=True))
    window.add(Record(3, 4.0, 30, 0.1, nll=3.0))
    assert (window.loss, window.nll, window.tokens) == (140.0, 100.0, 40)
