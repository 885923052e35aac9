"""What a run is worth, against what `lightconv evaluate` and the run's own log say."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from lightconv import cli
from lightconv.evaluate.signature import Score, Signature
from lightconv.paper.experiment import keep, measure
from lightconv.train.log import read_log
from tests.trained import TRAIN, Trained

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
    assert found.speed is not None
    assert (found.speed.split, found.speed.lines, found.speed.sentences) == ("test", 30, 64)
    assert found.machine["torch"] == torch.__version__


def test_sentences_one_by_one(copies: Trained) -> None:
    together = measure(copies.run, copies.data, ["valid"], device=CPU, limit=7)
    alone = measure(copies.run, copies.data, ["valid"], device=CPU, limit=7, one_by_one=True)
    assert together.scores == alone.scores
    assert "lines:7|" in alone.scores["valid"][0].signature
    assert alone.speed is not None and together.speed is not None
    assert replace(alone.speed, seconds=0.0) == replace(together.speed, seconds=0.0, sentences=1)


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
