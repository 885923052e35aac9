"""The run folder: begun, found again, changed, removed; its model is made of its own files."""

import json
import shutil
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import lightconv
from lightconv.config import read, to_json
from lightconv.data import load_vocabularies
from lightconv.models.folder import ModelFolder
from lightconv.recipe import CHANGED, Recipe
from lightconv.train import Group, PreparedData, Run, Trainer
from lightconv.train.checkpoints import Checkpoints
from lightconv.train.launch import Stop
from lightconv.train.loop import Loop, RunMetric
from lightconv.train.run import _find_checkpoint, is_run
from tests.harness.examples import model_config, prepare, recipe, small_config
from tests.train.formula import observe

WHOLE = {"max_steps": 10, "validate_every": 5}


def begin(
    folder: Path, model: Any = None, overwrite: bool = False, insist: bool = False, **changes: Any
) -> Run:
    new = recipe(model, **changes)
    return Run.start(folder, new, overwrite=overwrite, allow_changes=insist)


def test_a_new_run_has_its_recipe(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run"
    run = begin(path)
    assert read(path / "config.json", Recipe) == recipe()
    for found in (run, begin(path), Run.open(path)):
        assert (found.path, found.model_path) == (path, path / "model")
        assert (found.model_config, found.train_config) == (recipe().model, recipe().train)
        assert found.recipe_tables["task"]["corpus"] == "synthetic"
        assert found.regular_steps() == []
    assert not is_run(path)


def test_an_empty_folder_may_be_there_and_words_may_change(tmp_path: Path) -> None:
    begin(tmp_path)
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace("a small run", "another name"))
    assert "another name" in (tmp_path / "config.json").read_text()
    begin(tmp_path)


def test_every_difference_is_listed(tmp_path: Path) -> None:
    begin(tmp_path)
    before = (tmp_path / "config.json").read_bytes()
    with pytest.raises(ValueError) as caught:
        begin(tmp_path, max_steps=50, clip_norm=0.5, model=model_config(dim=32))
    message = str(caught.value)
    for line in ("model.dim: 16 -> 32", "train.max_steps: 40 -> 50", "train.clip_norm: 0.0 -> 0.5"):
        assert line in message
    assert "--allow-changes" in message
    assert (tmp_path / "config.json").read_bytes() == before


def test_what_may_change_if_one_insists(tmp_path: Path) -> None:
    begin(tmp_path)
    begin(tmp_path, insist=True, max_steps=50)
    assert read(tmp_path / "config.json", Recipe).train.max_steps == 50
    fixed = {"model": model_config(dim=32), "max_tokens": 100, "seed": 2, "ema": 0.9}
    for name, value in fixed.items():
        with pytest.raises(ValueError, match="was begun with another configuration") as caught:
            begin(tmp_path, insist=True, max_steps=60, **{name: value})
        assert "max_steps" not in str(caught.value)
    assert read(tmp_path / "config.json", Recipe).train.max_steps == 50


def old_recipe(folder: Path, new: Recipe, **tables: Any) -> None:
    """What 0.1.0 wrote into config.json: tokens instead of batches."""
    data = json.loads(to_json(new))
    del data["train"]["batches_per_update"]
    data["train"]["tokens_per_update"] = 120
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(data | tables))


def test_a_run_of_old_defaults_keeps_them(tmp_path: Path) -> None:
    """The same command, whose recipe has batches now, and the task of the data."""
    new = recipe(tokens_per_update=0, batches_per_update=2)
    task = {"kind": "translation", "corpus": "debian-en-de", "metric": "none"}
    apart = replace(new, model=replace(new.model, share_embeddings="decoder"))
    for each in (new, apart):
        old_recipe(tmp_path, new, task=task)
        before = (tmp_path / "config.json").read_bytes()
        run = Run.start(tmp_path, each)
        assert (tmp_path / "config.json").read_bytes() == before
        assert run.train_config == replace(new.train, batches_per_update=0, tokens_per_update=120)
        assert run.model_config == new.model
        assert run.recipe_tables["task"]["corpus"] == "debian-en-de"
    # After a change too.
    longer = replace(new, train=replace(new.train, max_steps=50))
    for allow_changes in (True, False):
        run = Run.start(tmp_path, longer, allow_changes=allow_changes)
        assert (run.train_config.max_steps, run.train_config.tokens_per_update) == (50, 120)


@pytest.mark.parametrize(
    "path, changes",
    [
        ("train.tokens_per_update", {"tokens_per_update": 100}),
        ("train.batches_per_update", {"tokens_per_update": 0, "batches_per_update": 2}),
    ],
)
def test_what_somebody_changes_is_not_a_default(
    path: str, changes: dict[str, int], tmp_path: Path
) -> None:
    old_recipe(tmp_path, recipe())
    new = replace(recipe(**changes), sources={path: CHANGED})
    with pytest.raises(ValueError, match=rf"{path}: "):
        Run.start(tmp_path, new)
    other = replace(recipe(), sources={"task.metric": CHANGED})
    with pytest.raises(ValueError, match=r"task\.metric: "):
        Run.start(tmp_path, replace(other, task=replace(other.task, metric="bleu")))
    with pytest.raises(ValueError, match=r"train\.tokens_per_update: 120 -> 121"):
        begin(tmp_path, tokens_per_update=121)


def test_a_run_of_old_defaults_ends_as_it_would_have(tmp_path: Path) -> None:
    data = PreparedData(prepare(tmp_path / "data"))
    old, new = recipe(small_config(), **WHOLE), tmp_path / "new"
    Run.start(tmp_path / "whole", old).train(data)
    changed = {**WHOLE, "tokens_per_update": 0, "batches_per_update": 1}
    old_recipe(new, old)
    stop = Stop()
    with pytest.MonkeyPatch.context() as patch:
        kill = partial(signal.raise_signal, signal.SIGTERM)
        observe(patch, Trainer, "update", after=lambda trainer: trainer.step == 6 and kill())
        with stop:
            assert Run.open(new).train(data, stop=stop).code == 75
    assert Run.start(new, recipe(small_config(), **changed)).train(data).code == 0
    files = [tmp_path / name / "model" / "model.safetensors" for name in ("whole", "new")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_folder_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("dear")
    for path, overwrite, message in (
        (tmp_path, False, "exists and is not a run folder"),
        (tmp_path, True, r"thesis\.tex does not belong to a run"),
        (tmp_path / "thesis.tex", False, "is not a run folder"),
        (tmp_path / "thesis.tex", True, "not overwritten"),
    ):
        with pytest.raises(ValueError, match=message):
            begin(path, overwrite=overwrite)
    assert (tmp_path / "thesis.tex").read_text() == "dear"


def test_overwriting_removes_the_old_run(tmp_path: Path) -> None:
    begin(tmp_path, max_steps=50)
    (tmp_path / "log.jsonl").write_text("old")
    (tmp_path / "checkpoints").mkdir()
    begin(tmp_path, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert read(tmp_path / "config.json", Recipe) == recipe()


def test_a_damaged_recipe_is_named(tmp_path: Path) -> None:
    begin(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json: not JSON"):
        begin(tmp_path)


def test_a_run_that_somebody_writes_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(to_json(recipe()))
    # A lock of this process does not keep this process out, so it is only seen to be asked for.
    asked: list[Path] = []
    (tmp_path / "checkpoints").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        observe(patch, Checkpoints, "claim", lambda self: asked.append(self.folder))
        begin(tmp_path, overwrite=True)
    assert asked == [tmp_path / "checkpoints"]
    assert not (tmp_path / "checkpoints").exists()


def test_which_checkpoints(tmp_path: Path) -> None:
    run = begin(tmp_path, max_steps=44, save_every=10)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    # 15 and 35 are of stops, 44 is the end.
    scores = {10: 0.3, 15: 0.95, 20: 0.9, 30: None, 35: None, 40: 0.5, 44: 0.1}
    for step, score in scores.items():
        checkpoints.save(step, {"model": {"a": torch.ones(1)}}, {}, score=score)
    assert run.choose(last=2) == [40, 44]
    assert run.choose(last=5) == [10, 20, 30, 40, 44]
    assert run.choose(best=1) == [15]
    assert run.choose(best=3) == [15, 20, 40]
    assert run.choose(steps=[35, 10]) == [10, 35]
    for options, message in (
        ({}, "has 5 checkpoints at regular steps, expected 10. Use --last 5"),
        ({"last": 6}, "has 5 checkpoints at regular steps, expected 6. Use --last 5"),
        ({"best": 6}, "has 5 checkpoints with a score, expected 6. Use --best 5"),
        ({"steps": [10, 7]}, "has no checkpoint of step 7; there are: 10, 15, 20, 30, 35, 40, 44"),
    ):
        with pytest.raises(ValueError, match=message):
            run.choose(**options)
    assert run.regular_steps() == [10, 20, 30, 40, 44]
    with pytest.raises(ValueError, match=r"has 0 checkpoints at regular steps, expected 10$"):
        begin(tmp_path / "none").choose()


@pytest.mark.parametrize("kind", ["missing", "file", "model", "list", "no train", "bad train"])
def test_what_is_not_a_run_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    texts = {
        "model": '{"format": "lightconv", "version": 1, "model": {}}',
        "list": "[]",
        "no train": '{"model": {}}',
        "bad train": to_json(recipe()).replace('"max_steps": 40', '"max_steps": 0'),
    }
    if kind == "file":
        path.touch()
    elif kind != "missing":
        path.mkdir()
        (path / "config.json").write_text(texts[kind])
    with pytest.raises(ValueError, match=r"no folder|not a run folder|config\.json: .*max_steps"):
        Run.open(path)


# --- R14: the model is made of what the run began with


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return prepare(tmp_path / "data")


def spoil(folder: Path, attack: str) -> None:
    """The vocabulary has as many words, but others; is gone; is a link."""
    path = folder / "vocab.txt"
    text = path.read_text()
    path.unlink()
    if attack == "replaced":
        path.write_text(text.replace("s", "x"))
    elif attack == "linked":
        path.symlink_to("/etc/passwd")


@pytest.mark.parametrize("attack", ["replaced", "deleted", "linked"])
def test_the_data_is_changed_in_the_middle(
    attack: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = (data / "vocab.txt").read_bytes()

    def strike(trainer: Trainer) -> None:
        if trainer.step == 4 and attack == "deleted":
            shutil.rmtree(data)
        elif trainer.step == 4:
            spoil(data, attack)

    observe(monkeypatch, Trainer, "update", strike)
    run = begin(tmp_path / "run", small_config(), **WHOLE)
    assert run.train(PreparedData(data)).code == 0
    assert run.files() == {"vocab.txt": tmp_path / "run" / "vocab.txt"}
    assert (run.model_path / "vocab.txt").read_bytes() == own
    assert load_vocabularies(run.model_path).target.tokens[4:6] == ("s0", "s1")
    assert lightconv.load(run.model_path).config == run.model_config


def test_the_data_is_changed_before_the_first_update(data: Path, tmp_path: Path) -> None:
    opened = PreparedData(data)
    spoil(data, "replaced")
    with pytest.raises(ValueError, match=r"vocab\.txt of the data has changed"):
        begin(tmp_path / "run", small_config(), **WHOLE).train(opened)
    assert not (tmp_path / "run" / "vocab.txt").exists()


@pytest.mark.parametrize("attack", ["replaced", "deleted", "linked"])
def test_the_files_of_the_run_are_changed(attack: str, data: Path, tmp_path: Path) -> None:
    """Nothing is exported with them; training once more restores them."""
    run = begin(tmp_path / "run", small_config(), **WHOLE)
    run.train(PreparedData(data))
    own = (run.path / "vocab.txt").read_bytes()
    spoil(run.path, attack)
    model = run.average([10])
    with pytest.raises(ValueError, match=r"vocab\.txt"):
        run.export(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    assert run.train(PreparedData(data)).code == 0
    assert (run.model_path / "vocab.txt").read_bytes() == own


def test_files_of_other_data_are_not_taken_over(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "codes.txt").write_text("of another run")
    begin(run, small_config(), **WHOLE).train(PreparedData(data))
    assert not (run / "codes.txt").exists()
    assert not (ModelFolder(run).path / "codes.txt").exists()


def test_a_log_that_is_a_link_stops_the_run(data: Path, tmp_path: Path) -> None:
    run = begin(tmp_path / "run", small_config(), **WHOLE)
    (tmp_path / "thesis.tex").write_text("dear")
    (run.path / "log.jsonl").symlink_to(tmp_path / "thesis.tex")
    with pytest.raises(ValueError, match=r"log\.jsonl is a link"):
        run.train(PreparedData(data))
    assert (tmp_path / "thesis.tex").read_text() == "dear"


def test_a_damaged_line_of_the_log_is_told_and_the_rest_kept(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = begin(tmp_path / "run", small_config(), **WHOLE, log_every=1)
    run.train(PreparedData(data))
    lines = (run.path / "log.jsonl").read_bytes().splitlines(keepends=True)
    lines[3] = b"#" + lines[3]
    (run.path / "log.jsonl").write_bytes(b"".join(lines))
    longer = begin(run.path, small_config(), **{**WHOLE, "max_steps": 12}, log_every=1, insist=True)
    capfd.readouterr()
    assert longer.train(PreparedData(data)).code == 0
    assert "log.jsonl: line 4 is damaged and left out" in capfd.readouterr().err
    steps = [entry["step"] for entry in longer.log() if entry["kind"] == "train"]
    assert steps == [1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12]


def test_a_damaged_checkpoint_is_not_averaged_and_the_remedy_works(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    averaged = {**WHOLE, "save_every": 2, "average_last": 3, "keep_last": 3}
    run = begin(tmp_path / "run", small_config(), **averaged)

    def damage(loop: Loop) -> None:
        (loop.checkpoints.path(8) / "model.safetensors").write_bytes(b"broken")

    with monkeypatch.context() as patch, pytest.raises(ValueError, match="Move this checkpoint"):
        observe(patch, Loop, "run", after=damage)
        run.train(PreparedData(data))
    shutil.rmtree(run.path / "checkpoints" / "step-00000008")
    assert run.train(PreparedData(data)).averaged == [6, 10]


def test_the_metric_stays(data: Path, tmp_path: Path) -> None:
    """One measure decides which checkpoint is best."""
    run = begin(tmp_path / "run", small_config(), **WHOLE)
    metric, other = (RunMetric(name, lambda model, hurry: 1.0) for name in ("score", "other"))
    run.train(PreparedData(data), metric=metric)
    for wrong, name in ((None, "no --metric"), (other, "other")):
        with pytest.raises(ValueError, match=f"begun with score, expected the same, got {name}"):
            run.train(PreparedData(data), metric=wrong)
    assert run.train(PreparedData(data), metric=metric).code == 0
    # Checkpoints of 0.1.0 do not say it, but the log does.
    found = run.checkpoints().load(10)
    old = replace(found, values={k: v for k, v in found.values.items() if k != "metric"})
    run._check_metric(old, metric)
    with pytest.raises(ValueError, match="begun with score"):
        run._check_metric(old, None)


# --- Ranks


class Told(Group):
    """Rank 1, which hears what rank 0 says."""

    rank, size = 1, 2

    def __init__(self, text: str | None) -> None:
        self.text = text

    def tell(self, text: str | None) -> str | None:
        assert text is None
        return self.text


def test_the_first_rank_chooses_the_checkpoint(tmp_path: Path) -> None:
    """What another one sees may be newer, or not be there yet."""
    with Checkpoints(tmp_path) as checkpoints:
        for step in (5, 10):
            checkpoints.save(step, {"model": {"w": torch.ones(1)}}, {})
    seen = Checkpoints(tmp_path, writer=False)
    for group, step in ((Told("5"), 5), (Told("10"), 10), (Told(None), None), (Group(), 10)):
        found = _find_checkpoint(seen, group)
        assert (None if found is None else found.step) == step
