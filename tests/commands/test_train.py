"""`lightconv train` as people call it: exit codes, one-line errors, signals."""

import json
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import lightconv
from lightconv.commands.train import _warn, plan_rows, summary_rows
from lightconv.data import Position
from lightconv.models import DynamicConvConfig, LanguageModel
from lightconv.models.folder import ModelFolder, build
from lightconv.paper.recipes import RECIPES
from lightconv.recipe import Recipe, find_recipe
from lightconv.recipe import count_parameters as count
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


GOLDEN = Path(__file__).parent.parent / "golden" / "data"
SHORT = (
    "train.max_steps=1",
    "train.save_every=1",
    "train.validate_every=1",
    "train.precision=fp32",
)
TINY = ("model.dim=16", "model.ffn_dim=16", "model.source_heads=2")


@pytest.mark.parametrize("name", ["iwslt-de-en-lightconv", "debian-en-de-dynamicconv-small"])
def test_a_model_is_of_its_data(name: str, server: Server, tmp_path: Path) -> None:
    """Of any recipe, at full size or small: vocabulary, corpus, languages and measure."""
    data, run = GOLDEN / "pairs", tmp_path / "run"
    stacks = [f"model.{stack}.*.heads=2" for stack in ("encoder", "decoder")]
    settings = [word for s in (*SHORT, *TINY, *stacks) for word in ("--set", s)]
    answer = server.run("train", name, "--data", data, "--out", run, *settings)
    assert answer["code"] == 0, answer["err"]
    asked = find_recipe(name, settings[1::2], RECIPES).model
    found = replace(asked, source_vocab=62, target_vocab=62)
    sizes = "8,848 and 6,632" if name.startswith("iwslt") else "8,000"
    row = (
        f"62 from {data}: {count(found):,} parameters ({count(asked):,} with the recipe's {sizes})"
    )
    assert re.search(rf"^vocabulary +{re.escape(row)}$", answer["out"], re.MULTILINE)
    task = json.loads((data / "prepared.json").read_text())["origin"]["task"]
    assert (task["corpus"], task["target_lang"]) == ("own", "eo")
    for folder in (run, run / "model"):
        assert json.loads((folder / "config.json").read_text())["task"] == task
    assert ModelFolder(run / "model").config == found
    card = (run / "model" / "README.md").read_text()
    assert "| corpus | own |" in card and "| target lang | eo |" in card and "debian" not in card
    assert "| metric | sacrebleu |" in card
    again = server.run("train", name, "--data", data, "--out", run, *settings)
    assert again["code"] == 0 and "it has ended" in again["err"]


def test_a_text_has_a_vocabulary_of_its_own(server: Server, tmp_path: Path) -> None:
    sets = [*SHORT, *TINY[:2], "model.layers.*.heads=2"]
    words = [word for s in sets for word in ("--set", s)]
    ends = ("--data", GOLDEN / "text", "--out", tmp_path / "run")
    answer = server.run("train", "billion-word-dynamicconv-small", *ends, *words)
    assert answer["code"] == 0, answer["err"]
    assert "; adaptive.cutoffs: [60000, 160000] -> [" in answer["out"]
    config = ModelFolder(tmp_path / "run" / "model").config
    size = json.loads((GOLDEN / "text" / "prepared.json").read_text())["vocabulary"]["text"]
    assert config.vocab_sizes == (size, size)
    assert config.adaptive.cutoffs == (60_000 * size // 793_471, 160_000 * size // 793_471)


def test_dry_run_reads_nothing(server: Server, tmp_path: Path) -> None:
    answer = server.run(
        "train", "iwslt-de-en-dynamicconv", "--dry-run", "--set", "train.tokens_per_update=1000"
    )
    assert answer["code"] == 0, answer["err"]
    out = answer["out"]
    assert "38,685,184" in out and "50,000" in out
    assert "1,000 target tokens by accumulation; the recipe has 1 batch (0.25 times)" in out
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
        ((path, *ends, "--max-time", "soon"), "--max-time: 'soon' is not a time"),
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
        (
            make_recipe(max_tokens=4000, tokens_per_update=0, batches_per_update=1),
            (CPU, 1.0, 4),
            "--set train.max_tokens=1000 --set train.batches_per_update=4 makes",
        ),
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
    assert dict(plan_rows(PLAN, PLAN.train, CPU, 2)) == {
        "parameters": f"{sum(p.numel() for p in build(PLAN.model).parameters()):,}",
        "device": "cpu, fp32",
        "steps": "40",
        "batch": "at most 2,048 positions on 2 devices",
        "effective batch": "4,000 target tokens by accumulation; the recipe has 4,000",
        "freed memory": "is kept up to 3,072 MB (LIGHTCONV_TRAIN_KEEP_MB)",
    }
    monkeypatch.setenv("LIGHTCONV_TRAIN_KEEP_MB", "0")
    rows = dict(plan_rows(PLAN, PLAN.train, CPU, 1))
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
    usual = replace(PLAN.train, tokens_per_update=recipe_tokens)
    rows = dict(plan_rows(PLAN, usual, CPU, 1, effective))
    assert rows["effective batch"].startswith(text)


@pytest.mark.parametrize(
    "name, processes, changes, mean, text",
    [
        ("wmt-en-de", 8, {}, None, "128 batches: 16 on each of 8 devices; the recipe has 128 batc"),
        ("wmt-en-de", 1, {}, None, "128 batches: 128 on 1 device; the recipe has 128 batches"),
        ("wmt-en-de", 3, {}, None, "128 batches: up to 43 on each of 3 devices; the recipe"),
        (
            *("wmt-en-de", 8, {}, (401234.4, 127.9)),
            "128 batches: 16 on each of 8 devices, 401,234 target tokens on average; the recipe",
        ),
        ("iwslt-de-en", 1, {}, None, "1 batch: 1 on 1 device; the recipe has 1 batch"),
        (
            *("iwslt-de-en", 1, {"max_tokens": 1000}, None),
            "1 batch: 1 on 1 device; the recipe has 1 batch (0.25 times): consider another learni",
        ),
        (
            *("iwslt-de-en", 1, {"max_tokens": 1000, "batches_per_update": 4}, None),
            "4 batches: 4 on 1 device; the recipe has 1 batch",
        ),
    ],
)
def test_batches_of_an_update_are_shared_out(
    name: str, processes: int, changes: dict[str, int], mean: tuple[float, float] | None, text: str
) -> None:
    recipe = RECIPES[f"{name}-dynamicconv"]
    changed = replace(recipe, train=replace(recipe.train, **changes))
    row = dict(plan_rows(changed, recipe.train, CPU, processes, mean))["effective batch"]
    assert row.startswith(text) and ("times" in row) == ("times" in text)


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
