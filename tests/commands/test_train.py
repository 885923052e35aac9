"""`lightconv train` as people call it: exit codes, one-line errors, signals."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import lightconv
from lightconv.commands.train import _warn, choose_device, read_duration
from lightconv.models import DynamicConvConfig, LanguageModel
from lightconv.models.folder import ModelFolder
from lightconv.train import CosineConfig
from lightconv.train.checkpoints import Checkpoints
from tests.harness.examples import (
    lm_config,
    model_config,
    prepare,
    small_config,
    write_recipe,
)
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
    assert {path.name for path in run.iterdir()} == {
        "checkpoints",
        "config.json",
        "log.jsonl",
        "model",
        "vocab.txt",
    }
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
    assert "memory: total" in out


def test_mistakes_are_one_line(server: Server, data: Path, tmp_path: Path) -> None:
    path, run = recipe(tmp_path), tmp_path / "run"
    ends = ("--data", data, "--out", run)
    assert refused(server.run("train", "iwslt-de-en-dynamicconf", *ends), "did you mean")
    assert refused(server.run("train", path), "--data DIR and --out RUN are needed")
    assert refused(server.run("train", path, *ends, "--set", "train.max_step=1"), "max_steps")
    assert refused(server.run("train", path, *ends, "--max-time", "soon"), "--max-time 'soon'")
    assert refused(server.run("train", path, "--data", tmp_path / "x", "--out", run), "no folder")
    other = ("--set", "model.share_embeddings=decoder", "--set", "model.source_vocab=9")
    wrong = server.run("train", path, *ends, *other)
    assert refused(wrong, "12 and 12 ids, expected 9 and 12", "--set model.source_vocab=12")
    bands = ("--set", "model.adaptive.cutoffs=[6]")
    smooth = server.run("train", path, *ends, *bands)
    assert refused(smooth, "train.label_smoothing=0.1 must be 0 with model.adaptive")
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
    assert choose_device("auto").type == "cpu"
    with pytest.raises(ValueError, match="no CUDA device"):
        choose_device("cuda")


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


@pytest.mark.parametrize(
    "text, seconds", [("90s", 90), ("90", 90), ("1.5h", 5400), ("30m", 1800), ("2d", 172800)]
)
def test_durations(text: str, seconds: float) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "-5s", "5 weeks", "0", "nan", "1e9", "9" * 99])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"^--max-time "):
        read_duration(text)


def test_what_takes_long_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    cpu = torch.device("cpu")
    _warn(make_recipe(), cpu)
    assert capfd.readouterr().err == ""
    _warn(make_recipe(precision="fp16"), cpu)
    assert capfd.readouterr().err.startswith("note: processors compute fp16 very slowly")
    _warn(make_recipe(precision="fp16"), torch.device("cuda"))
    assert capfd.readouterr().err == ""
    _warn(make_recipe(compile=True), cpu)
    assert "first updates, which take minutes" in capfd.readouterr().err
