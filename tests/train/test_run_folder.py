"""The folder of a run: begun, found again, changed, removed."""

from pathlib import Path
from typing import Any

import pytest

from lightconv.config import read, to_json
from lightconv.recipe import Recipe
from lightconv.train.checkpoints import Checkpoints
from lightconv.train.folder import is_regular, keep_files, open_run, remove_run
from tests.harness.examples import model_config, recipe, train_config


def begin(folder: Path, *, overwrite: bool = False, insist: bool = False, **changes: Any) -> bool:
    return open_run(folder, recipe(**changes), overwrite=overwrite, allow_changes=insist)


def test_a_new_run_has_its_recipe(tmp_path: Path) -> None:
    run = tmp_path / "deep" / "run"
    assert not begin(run)
    assert read(run / "config.json", Recipe) == recipe()
    assert begin(run)


def test_an_empty_folder_may_be_there(tmp_path: Path) -> None:
    assert not begin(tmp_path)


def test_words_may_change(tmp_path: Path) -> None:
    begin(tmp_path)
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace("a test", "another name"))
    assert begin(tmp_path)


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
    assert begin(tmp_path, insist=True, max_steps=50)
    assert read(tmp_path / "config.json", Recipe).train.max_steps == 50
    for changes in (
        {"model": model_config(dim=32)},
        {"max_tokens": 100},
        {"seed": 2},
        {"ema": 0.9},
    ):
        with pytest.raises(ValueError, match="was begun with another configuration") as caught:
            begin(tmp_path, insist=True, max_steps=60, **changes)
        assert "max_steps" not in str(caught.value)
    assert read(tmp_path / "config.json", Recipe).train.max_steps == 50


def test_a_folder_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("dear")
    with pytest.raises(ValueError, match="exists and is no run"):
        begin(tmp_path)
    with pytest.raises(ValueError, match=r"thesis\.tex does not belong to a run"):
        begin(tmp_path, overwrite=True)
    with pytest.raises(ValueError, match="is no run"):
        begin(tmp_path / "thesis.tex")
    with pytest.raises(ValueError, match="not overwritten"):
        begin(tmp_path / "thesis.tex", overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "dear"


def test_overwriting_removes_the_old_run(tmp_path: Path) -> None:
    begin(tmp_path, max_steps=50)
    (tmp_path / "log.jsonl").write_text("old")
    (tmp_path / "checkpoints").mkdir()
    assert not begin(tmp_path, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert read(tmp_path / "config.json", Recipe) == recipe()


def test_a_damaged_recipe_is_named(tmp_path: Path) -> None:
    begin(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json: not JSON"):
        begin(tmp_path)


def test_files_are_kept(tmp_path: Path) -> None:
    source = tmp_path / "data.txt"
    source.write_text("one")
    keep_files(tmp_path, {"vocab.txt": source, "codes.txt": b"two"})
    assert (tmp_path / "vocab.txt").read_text() == "one"
    assert (tmp_path / "codes.txt").read_text() == "two"
    source.write_text("three")
    keep_files(tmp_path, {"vocab.txt": source})
    assert (tmp_path / "vocab.txt").read_text() == "three"
    assert not list(tmp_path.glob(".*"))


def test_regular_steps() -> None:
    config = train_config(max_steps=13, save_every=5)
    assert [step for step in range(14) if is_regular(step, config)] == [5, 10, 13]


def test_a_run_that_somebody_writes_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(to_json(recipe()))
    # A lock of this process does not keep this process out, so it is only seen to be asked for.
    asked = []
    real = Checkpoints.claim

    def claim(self: Checkpoints) -> None:
        asked.append(self.folder)
        real(self)

    (tmp_path / "checkpoints").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "claim", claim)
        remove_run(tmp_path)
    assert asked == [tmp_path / "checkpoints"]
    assert not tmp_path.exists()
