"""`lightconv score`: texts and pairs, from files and pipes."""

import json
from pathlib import Path

import lightconv
from tests.trained import Trained

from .conftest import Run


def test_scores_of_texts(run: Run, texts: Trained) -> None:
    lines = (texts.data / "test.text.txt").read_text()
    expected = lightconv.load(texts.model).score(lines.splitlines())
    done = run("score", texts.model, stdin=lines)
    assert done.out.splitlines() == [f"{scored.logprob:.6f}" for scored in expected]
    assert done.err.startswith("perplexity|unit:word|base:e|eos:counted|lines:30|")
    total = run("score", texts.model, "--total", "--input", texts.data / "test.text.txt")
    assert total == (0, done.err, "")
    one = run("score", texts.model, "--format", "jsonl", stdin="the\n")
    found = json.loads(one.out.splitlines()[0])
    assert found["tokens"] == ["the", "</s>"] and len(found["logprobs"]) == 2
    assert run("score", texts.model, stdin="") == (0, "", "")


def test_scores_of_pairs(run: Run, copies: Trained, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("w1 w2\nw3\n")
    (tmp_path / "out").write_text("w1 w2\nw4\n")
    two = run("score", copies.model, "--source", tmp_path / "in", "--target", tmp_path / "out")
    one = run("score", copies.model, stdin="w1 w2\tw1 w2\nw3\tw4\n")
    assert two == one and two.code == 0
    good, bad = map(float, two.out.split())
    assert bad < good < 0.0


def test_wrong_pairs(run: Run, copies: Trained, texts: Trained, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("w1\nw2\n")
    (tmp_path / "out").write_text("w1\n")
    both = ("--source", tmp_path / "in", "--target", tmp_path / "out")
    for model, arguments, words in (
        (copies, both, ("2 lines", "has 1")),
        (copies, both[:2], ("belong together",)),
        (copies, (*both, "--input", tmp_path / "in"), ("--input and --source",)),
        (texts, both, ("is a language model",)),
        (texts, ("--input", tmp_path / "no"), ("does not exist",)),
    ):
        assert run("score", model.model, *arguments).refused(*words)
    alone = run("score", copies.model, stdin="w1\tw1\nw1\n")
    assert alone.code == 2 and "standard input, line 2: 0 tabs" in alone.err
