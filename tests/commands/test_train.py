"""`lightconv train` as people call it: exit codes, one-line errors, signals."""

import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import lightconv
from lightconv.commands.train import _warn, plan_rows, summary_rows
from lightconv.data import Position
from lightconv.models import DynamicConvConfig, LanguageModel
from lightconv.models.folder import ModelFolder, build
from lightconv.recipe import Recipe
from lightconv.train import CosineConfig, Outcome
from lightconv.train.checkpoints import Checkpoints
from lightconv.train.loop import RunProgress
from tests.harness.examples import lm_config, model_config, prepare, small_config, write_recipe
from tests.harness.examples import recipe as make_recipe
from tests.harness.server import Answer, Server, shared


@pytest.fixture(scope="module")
def server() -> Server:
    return shared()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("data"))


def recipe(folder: Path, model: Any = None, **changes: Any) -> Path:
    return write_recipe(folder / "recipe.json", model or small_config(), **changes)


def refused(answer: Answer, *words: str, code: int = 2) -> bool:
    """One line on stderr with these words, and nothing else."""
    err = answer["err"]
    assert answer["code"] == code, err
    assert err.startswith("error: ") and err.count("\n") == 1, err
    return all(word in err for word in words)


def test_a_run_from_beginning_to_end(server: Server, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = ("train", recipe(tmp_path, max_steps=12), "--data", data, "--out", run)
    answer = server.run(*command)
    assert answer["code"] == 0, answer["err"]
    files = sorted(path.name for path in run.iterdir())
    assert files == ["checkpoints", "config.json", "log.jsonl", "model", "vocab.txt"]
    for words in ("parameters", "effective batch  102 target tokens", "the recipe has 120", "time"):
        assert words in answer["out"]
    assert "step 12/12  loss " in answer["err"]
    assert "step 10  validation  loss " in answer["err"]
    tables = ModelFolder(run / "model").tables
    assert tables["task"]["corpus"] == "synthetic"
    assert tables["decode"]["beam"] >= 1
    # Once more: there is nothing left to do.
    again = server.run(*command)
    assert again["code"] == 0
    assert "resumed from step 12" in again["err"] and "it has ended" in again["err"]
    # Another configuration, other data, another model.
    other = server.run(*command, "--set", "train.max_steps=20", "--set", "model.dim=16")
    assert refused(other, "train.max_steps: 12 -> 20", "model.dim: 8 -> 16")
    kept = server.run(*command, "--allow-changes", "--set", "model.dim=16")
    assert refused(kept, "model.dim: 8 -> 16")
    more = server.run(*command, "--allow-changes", "--set", "train.max_steps=14")
    assert more["code"] == 0 and "step 14/14" in more["err"]
    assert Checkpoints(run / "checkpoints").steps()[-1] == 14
    changed = prepare(tmp_path / "other", batches=6)
    moved = server.run(*command, "--set", "train.max_steps=14", "--data", changed)
    assert refused(moved, "was begun with other data", "train: ")
    anew = server.run(*command, "--overwrite")
    assert anew["code"] == 0 and "resumed" not in anew["err"]
    assert Checkpoints(run / "checkpoints").steps()[-1] == 12


def test_a_language_model_is_trained_too(server: Server, tmp_path: Path) -> None:
    text = prepare(tmp_path / "data", text=True)
    path = recipe(tmp_path, lm_config(), max_steps=3, precision="bf16")
    answer = server.run("train", path, "--data", text, "--out", tmp_path / "run")
    assert answer["code"] == 0, answer["err"]
    assert isinstance(lightconv.load(tmp_path / "run" / "model").model, LanguageModel)


def test_dry_run_reads_nothing(server: Server, tmp_path: Path) -> None:
    answer = server.run(
        "train", "iwslt-de-en-dynamicconv", "--dry-run", "--set", "train.tokens_per_update=1000"
    )
    assert answer["code"] == 0, answer["err"]
    out = answer["out"]
    assert "38,685,184" in out and "50,000" in out
    assert "1,000 target tokens by accumulation; the recipe has 4,000 (0.25 times)" in out
    sizes = dict(re.findall(r"^memory: (\w+) +([\d,]+) MB$", out, re.MULTILINE))
    assert sizes["parameters"] == sizes["gradients"] == "155"  # four bytes each
    numbers = [int(size.replace(",", "")) for size in sizes.values()]
    assert abs(sum(numbers[:-1]) - numbers[-1]) <= 3


def test_mistakes_are_one_line(server: Server, data: Path, tmp_path: Path) -> None:
    path, run = recipe(tmp_path), tmp_path / "run"
    ends = ("--data", data, "--out", run)
    other = ("--set", "model.share_embeddings=decoder", "--set", "model.source_vocab=9")
    for options, *words in (
        (("iwslt-de-en-dynamicconf", *ends), "did you mean"),
        ((path,), "--data DIR and --out RUN are needed"),
        ((path, "--data", "x"), "--data DIR and --out RUN are needed"),
        ((path, "--out", "x"), "--data DIR and --out RUN are needed"),
        ((path, *ends, "--set", "train.max_step=1"), "max_steps"),
        ((path, *ends, "--max-time", "soon"), "--max-time 'soon'"),
        ((path, "--data", tmp_path / "x", "--out", run), "no folder"),
        ((path, *ends, *other), "12 and 12 ids, expected 9 and 12", "--set model.source_vocab=12"),
        ((path, *ends, "--set", "model.adaptive.cutoffs=[6]"), "label_smoothing=0.1 must be 0"),
        ((path, *ends, "--shard"), "--shard needs several processes"),
    ):
        assert refused(server.run("train", *options), *words)
    texts = recipe(tmp_path, lm_config())
    assert refused(server.run("train", texts, *ends), "holds pairs of source and target")
    # None of these has left anything.
    assert not run.exists()
    run.mkdir()
    (run / "letter.txt").touch()
    assert refused(server.run("train", recipe(tmp_path), *ends), "exists and is not a run folder")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there(server: Server, data: Path, tmp_path: Path) -> None:
    ends = ("--data", data, "--out", tmp_path / "run", "--device", "cuda")
    assert refused(server.run("train", recipe(tmp_path), *ends), "no CUDA device is available")


def test_divergence_is_exit_3(server: Server, data: Path, tmp_path: Path) -> None:
    """R8: DynamicConv without softmax, and a rate that nothing survives."""
    layers = (DynamicConvConfig(kernel=3, heads=2, normalize="none"),) * 2
    path = recipe(
        tmp_path,
        model_config(encoder=layers, decoder=layers, pre_norm=True, final_norm=False),
        schedule=CosineConfig(peak=1e12, warmup=4, period=30),
    )
    answer = server.run("train", path, "--data", data, "--out", tmp_path / "run")
    assert answer["code"] == 3, answer["err"]
    line = answer["err"].splitlines()[-1]
    assert line.startswith("error: diverged at step ")
    assert "batch " in line and "examples " in line and "The last checkpoint is " in line
    assert "Traceback" not in answer["err"]


# --- Being stopped


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_saves_first(
    number: signal.Signals, code: int, server: Server, data: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    path = recipe(tmp_path, max_steps=100_000, save_every=100_000, validate_every=100_000)
    command = ("train", path, "--data", data, "--out", run)
    begun = str(run / "checkpoints" / ".lock")
    answer = server.run(*command, signal=number, when=begun, after=0.5)
    assert answer["code"] == code, answer["err"]
    (step,) = Checkpoints(run / "checkpoints").steps()
    line = answer["err"].splitlines()[-1]
    assert line.startswith(f"stopped at step {step:,}, saved as {run}/checkpoints/step-0")
    assert not (run / "model").exists()
    again = server.run(*command, "--max-time", "0.5s")
    assert again["code"] == 75
    assert f"resumed from step {step:,}" in again["err"]
    # A busy machine may not get far in that time.
    assert Checkpoints(run / "checkpoints").steps()[-1] >= step


def test_ctrl_c_does_not_wait_for_a_long_update(server: Server, tmp_path: Path) -> None:
    """An update of minutes is given up; a second Ctrl-C is for whatever else takes long."""
    path = recipe(
        tmp_path, max_steps=100_000, validate_every=100_000, tokens_per_update=10**9, max_tokens=9
    )
    folder = prepare(tmp_path / "data", batches=400)
    command = ("train", path, "--data", folder, "--out", tmp_path / "run")
    begun = str(tmp_path / "run" / "checkpoints" / ".lock")
    answer = server.run(*command, signal=signal.SIGINT, when=begun, after=0.5, again=0.5)
    assert answer["code"] == 130
    assert answer["seconds"] < 20.0
    assert "Ctrl-C once more quits at once" in answer["err"]
    assert "Traceback" not in answer["err"]


def test_a_run_has_one_process_at_a_time(server: Server, data: Path, tmp_path: Path) -> None:
    command = ("train", recipe(tmp_path), "--data", data, "--out", tmp_path / "run")
    with Checkpoints(tmp_path / "run" / "checkpoints") as checkpoints:
        checkpoints.claim()
        (tmp_path / "run" / "config.json").write_bytes((tmp_path / "recipe.json").read_bytes())
        assert refused(server.run(*command), "another process is writing checkpoints")
        assert refused(server.run(*command, "--overwrite"), "another process is writing")
        assert (tmp_path / "run" / "config.json").exists()


CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    "recipe, place, told",
    [
        (make_recipe(), (CPU,), ""),
        (make_recipe(precision="fp16"), (CPU,), "processors compute fp16 very slowly"),
        (make_recipe(precision="fp16"), (GPU,), ""),
        (make_recipe(compile=True), (CPU,), "torch.compile works during the first updates, which"),
        (make_recipe(), (CPU, 1.0, 1), ""),
        (make_recipe(), (CPU, 3.7, 4), ""),
        (make_recipe(max_tokens=4000), (CPU, 1.0, 4), "an update has 1.0 batches for 4 processes"),
        (make_recipe(max_tokens=4000), (CPU, 1.0, 4), "--set train.max_tokens=1000 makes"),
    ],
)
def test_what_takes_long_is_told(
    recipe: Recipe, place: tuple[Any, ...], told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    _warn(recipe, *place)
    err = capfd.readouterr().err
    assert told in err and err.startswith("note: ") == bool(told) and err.count("\n") == bool(told)


# --- Tables

PLAN = make_recipe(tokens_per_update=4000, max_tokens=2048)
BATCHES = "4,321 target tokens in 2.5 batches on average; the recipe has "


def test_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTCONV_TRAIN_KEEP_MB", "6144")
    assert dict(plan_rows(PLAN, 4000, CPU, 2)) == {
        "parameters": f"{sum(p.numel() for p in build(PLAN.model).parameters()):,}",
        "device": "cpu, fp32",
        "steps": "40",
        "batch": "at most 2,048 positions on 2 devices",
        "effective batch": "4,000 target tokens by accumulation; the recipe has 4,000",
        "freed memory": "is kept up to 3,072 MB (LIGHTCONV_TRAIN_KEEP_MB)",
    }
    monkeypatch.setenv("LIGHTCONV_TRAIN_KEEP_MB", "0")
    rows = dict(plan_rows(PLAN, 4000, CPU, 1))
    assert rows["batch"] == "at most 2,048 positions on 1 device" and "freed memory" not in rows


@pytest.mark.parametrize(
    "effective, recipe_tokens, text",
    [
        ((4321.4, 2.52), 4000, BATCHES + "4,000"),
        ((4321.4, 2.52), 458752, BATCHES + "458,752 (0.0094 times): consider another"),
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
    effective: tuple[float, float] | None, recipe_tokens: int, text: str
) -> None:
    rows = dict(plan_rows(PLAN, recipe_tokens, CPU, 1, effective))
    assert rows["effective batch"].startswith(text)


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
