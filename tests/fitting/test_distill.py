"""Distillation: targets are the teacher's outputs, a student learns from them, and calls resume."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import lightconv
from lightconv import cli
from lightconv.console import Display
from lightconv.data.prepared import Prepared
from lightconv.fitting.distill import distill
from tests.trained import Trained

STUDENT = """
about = "a student"
[task]
kind = "translation"
corpus = "synthetic-copy"
metric = "tokenized_bleu"
[model]
kind = "seq2seq"
dim = 16
ffn_dim = 16
source_heads = 2
encoder = [{ kind = "lightconv", kernel = 3, heads = 2 }]
decoder = [{ kind = "lightconv", kernel = 3, heads = 2 }]
source_vocab = 100
target_vocab = 100
[train]
max_steps = 3
tokens_per_update = 200
max_tokens = 300
schedule = { kind = "inverse_sqrt", peak = 1e-2, warmup = 10 }
[decode]
"""


def sentences(data: Prepared, split: str, side: str) -> list[list[int]]:
    column = data.store(split).column(side)
    tokens, sizes = column.take(np.arange(len(data.store(split))))
    return [each.tolist() for each in np.split(tokens, np.cumsum(sizes)[:-1])]


@pytest.fixture(scope="module")
def made(copies: Trained, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    out = tmp_path_factory.mktemp("distilled") / "data"
    with Display(quiet=True) as display:
        return distill(copies.model, copies.prepared, out, display=display)


def test_targets_are_what_translate_answers(copies: Trained, made: Prepared) -> None:
    old = copies.prepared
    sources, targets = (sentences(made, "train", side) for side in ("source", "target"))
    assert sources == sentences(old, "train", "source")
    assert targets != sentences(old, "train", "target")  # the teacher is not perfect
    pipeline = made.pipeline
    model = lightconv.load(copies.model)
    texts = [pipeline.decode(0, ids) for ids in sources[:40]]
    assert [pipeline.decode(1, ids) for ids in targets[:40]] == model.translate(texts)


def test_the_folder_is_a_prepared_one(copies: Trained, made: Prepared) -> None:
    made.verify()
    old = copies.prepared
    for split in ("valid", "test"):
        assert sentences(made, split, "target") == sentences(old, split, "target")
        assert made.references(split) == old.references(split)
    side = made.statistics()["splits"]["train"]["sides"]["target"]
    assert side["tokens"] == sum(map(len, sentences(made, "train", "target")))
    assert made.files().keys() == old.files().keys()
    assert set(made.origin.inputs) == {"sources", "teacher", "search"}


def test_a_folder_is_used_again_for_the_same_outputs_only(copies: Trained, made: Prepared) -> None:
    with Display(quiet=True) as display:
        before = made.folder.stat().st_mtime_ns
        assert distill(copies.model, copies.prepared, made.folder, display=display).folder
        assert made.folder.stat().st_mtime_ns == before
        with pytest.raises(ValueError, match="exists, expected no folder, or outputs of this"):
            distill(copies.model, copies.prepared, made.folder, beam=1, display=display)


def test_command(
    copies: Trained, made: Prepared, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "student.toml"
    recipe.write_text(STUDENT)
    shutil.copytree(made.folder, tmp_path / "run.data")
    words = ["distill", str(copies.run), "--student", str(recipe), "--data", str(copies.data)]
    assert cli.main([*words, "--out", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert str(Path("run") / "model") in out and "steps" in out
    assert lightconv.load(tmp_path / "run").translate(["a"])
    assert cli.main([*words, "--out", str(tmp_path / "run"), "--beam", "1"]) == 2
    assert "expected no folder" in capsys.readouterr().err


def test_a_language_model_is_no_teacher(texts: Trained, tmp_path: Path) -> None:
    with Display(quiet=True) as display, pytest.raises(ValueError, match="language model"):
        distill(texts.model, texts.prepared, tmp_path / "x", display=display)
