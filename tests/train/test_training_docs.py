"""docs/training.md: its code runs, its tables are complete; test_documents.py has the rest."""

import dataclasses
import re
from pathlib import Path

import pytest

from lightconv.commands.train import _parser
from lightconv.config import read
from lightconv.corpora.synthetic import Settings, make
from lightconv.data.prepare import prepare
from lightconv.recipe import Recipe
from lightconv.train import TrainConfig

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs" / "training.md").read_text()


def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    settings = Settings(train=200, valid=20, test=20)
    prepare(make("synthetic-reverse", settings), tmp_path / "data" / "reverse", processes=1)
    names: dict[str, object] = {}
    exec(block, names)
    assert names["outcome"].step == 20  # type: ignore[attr-defined]
    assert (tmp_path / "runs" / "reverse" / "model" / "model.safetensors").exists()


def test_every_option_has_a_row() -> None:
    options = {name for name in _parser()._option_string_actions if name.startswith("--")}
    cells = re.findall(r"^\| (`--.*?) \|", TEXT, re.MULTILINE)
    assert set(re.findall(r"`(--[a-z-]+)", " ".join(cells))) == options - {"--help"}


def test_every_setting_has_a_row_with_its_default() -> None:
    rows = dict(re.findall(r"^\| (`[a-z_.`, ]+`) \| (.*?) \|", TEXT, re.MULTILINE))
    found: dict[str, str] = {}
    for names, defaults in rows.items():
        keys = [name.split(".")[0] for name in re.findall(r"`([a-z_.]+)`", names)]
        found |= dict(zip(keys, [text.strip("` ") for text in defaults.split(",")], strict=False))
    for field in dataclasses.fields(TrainConfig):
        assert field.name in found, field.name
        if isinstance(field.default, bool | str):
            assert found[field.name] == str(field.default).lower()
        elif isinstance(field.default, int | float):
            assert float(found[field.name]) == field.default


def test_the_recipe_of_the_first_run_is_one() -> None:
    recipe = read(ROOT / "examples" / "first.toml", Recipe)
    assert "examples/first.toml" in TEXT
    assert recipe.task.corpus == "synthetic-reverse"
