"""Rows of a table that are really trained, in a few updates of very small models; measurement."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import lightconv
from lightconv import cli
from lightconv.corpora.synthetic import Settings, make
from lightconv.data.prepare import prepare
from lightconv.evaluate.metrics import Score, Signature
from lightconv.paper.experiment import find_commit, keep, measure
from lightconv.train.log import read_log
from tests.harness.server import environment
from tests.trained import TRAIN, Trained

SMALL = ("model.dim=32", "model.ffn_dim=32", "decode.beam=1", "decode.max_len_plus=5")
OFTEN = ("train.tokens_per_update=100", "train.max_tokens=200")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    settings = Settings(train=200, valid=10, test=5, symbols=10, min_len=2, max_len=6)
    prepare(make("synthetic-copy", settings), tmp_path / "data" / "copy", processes=1)
    return tmp_path


def finish(process: "subprocess.Popen[str]") -> str:
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0, out
    return out


def start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    words = [*("table", "decoders", "--scale", "cpu", "--data", "data/copy", "--run"), *arguments]
    for setting in (*SMALL, *OFTEN):
        words += ["--set", setting]
    return subprocess.Popen(
        [sys.executable, "-m", "lightconv", *words],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def read(folder: Path) -> dict[str, dict[str, object]]:
    found = sorted((folder / "results" / "decoders" / "copy").glob("*.seed*.json"))
    return {path.stem: json.loads(path.read_text()) for path in found}


def test_a_row_is_trained_and_measured(folder: Path) -> None:
    out = finish(start(folder, "--rows", "decoder-1", "--seeds", "1", "--steps", "3"))
    ((name, result),) = read(folder).items()
    assert name == "wmt-en-de-decoder-1-small.seed1"
    assert result["status"] == "done"
    measured = result["measured"]
    assert isinstance(measured, dict)
    assert measured["training"]["steps"] == 3
    # Sentences were decoded one by one, greedily, in rounds.
    speed = measured["speed"]
    assert (speed["lines"], speed["sentences"], speed["beam"]) == (5, 1, 1)
    assert len(speed["rounds"]) == 7 and sorted(speed["rounds"])[3] == speed["seconds"]
    (score, *_) = measured["scores"]["test"]
    assert score["metric"] == "sacrebleu" and "|beam:1|" in score["signature"]
    row = next(line for line in out.splitlines() if line.startswith("DynamicConv, width 32, "))
    assert f"{measured['parameters']:,}" in row and f"{score['value']:.2f}" in row


def test_the_commit_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "src" / "lightconv" / "__init__.py"
    source.parent.mkdir(parents=True)
    source.write_text("")
    monkeypatch.setattr(lightconv, "__file__", str(source))
    assert find_commit() is None  # installed

    def git(*words: str) -> str:
        who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        done = subprocess.run(["git", *who, *words], cwd=tmp_path, capture_output=True, check=True)
        return done.stdout.decode().strip()

    git("init", "-q")
    assert find_commit() is None  # nothing was committed
    git("add", ".")
    git("commit", "-qm", "first")
    (tmp_path / "results.md").write_text("not code")
    assert find_commit() == git("rev-parse", "HEAD")[:12]
    source.write_text("changed = 1")
    assert find_commit() == git("rev-parse", "HEAD")[:12] + "+"


@pytest.mark.slow
def test_killed_and_resumed(folder: Path) -> None:
    """Two rows, two seeds, killed outright in the second row: as if nothing had happened."""
    options = ("--rows", "decoder-1", "--rows", "decoder-3", "--seeds", "2", "--steps", "30")
    process = start(folder, *options)
    log = folder / "runs/decoders/copy/wmt-en-de-decoder-3-small.seed1/log.jsonl"
    deadline = time.monotonic() + 300
    while not (log.exists() and log.read_text().count("\n") > 8):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert list(read(folder)) == ["wmt-en-de-decoder-1-small.seed1"]
    finish(start(folder, *options))
    killed = read(folder)
    assert len(killed) == 4
    finish(start(folder, *options, "--results", "other", "--out", "others"))
    (folder / "results").rename(folder / "first")
    (folder / "other").rename(folder / "results")
    for name, result in read(folder).items():
        mine, other = killed[name]["measured"], result["measured"]
        assert isinstance(mine, dict) and isinstance(other, dict)
        assert mine["scores"] == other["scores"]
        assert mine["training"]["tokens"] == other["training"]["tokens"]


# --- Measurement, against `lightconv evaluate` and the run's own log

CPU = torch.device("cpu")


def evaluated(
    trained: Trained, split: str, capfd: pytest.CaptureFixture[str]
) -> list[dict[str, object]]:
    options = ["--data", str(trained.data), "--split", split, "--format", "jsonl"]
    assert cli.main(["evaluate", str(trained.run), *options]) == 0
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    return [{k: v for k, v in line.items() if k not in ("system", "about")} for line in lines]


def test_translations(copies: Trained, capfd: pytest.CaptureFixture[str]) -> None:
    found = measure(copies.run, copies.data, ["valid", "test"], device=CPU)
    for split in ("valid", "test"):
        scores = [vars(each) for each in found.scores[split]]
        assert scores == evaluated(copies, split, capfd)
    size = sum(p.numel() for p in load_file(copies.model / "model.safetensors").values())
    assert found.parameters == size
    assert found.training is not None
    log = [entry for entry in read_log(copies.run / "log.jsonl") if entry["kind"] == "train"]
    assert found.training.steps == log[-1]["step"] == TRAIN.max_steps
    assert found.training.tokens > 0.8 * TRAIN.max_steps * TRAIN.tokens_per_update
    assert found.training.seconds["updates"] > 0
    assert found.speed is None  # measured apart
    assert found.machine["torch"] == torch.__version__


def test_the_first_lines(copies: Trained) -> None:
    found = measure(copies.run, copies.data, ["valid"], device=CPU, limit=7)
    assert "lines:7|" in found.scores["valid"][0].signature


def test_language_models(texts: Trained, capfd: pytest.CaptureFixture[str]) -> None:
    found = measure(texts.run, texts.data, ["valid", "test"], device=CPU)
    assert found.speed is None
    for split in ("valid", "test"):
        (score,) = found.scores[split]
        assert [vars(score)] == evaluated(texts, split, capfd)


def test_what_diverged_has_no_scores(copies: Trained) -> None:
    found = measure(copies.run, copies.data, ["valid"], device=CPU, ended=False)
    assert found.scores == {} and found.speed is None
    assert found.training is not None and found.parameters > 0


def test_what_is_not_finite_can_be_written() -> None:
    score = Score(float("inf"), {"bits": float("inf")}, Signature("perplexity", {}))
    assert keep(score).value == keep(score).parts["bits"] == 1e308
