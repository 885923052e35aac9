"""Names and files lead to recipes, settings change them, and nothing else answers kindly."""

from pathlib import Path

import pytest

from lightconv.config import ConfigError, to_json, to_toml
from lightconv.paper.find import CHANGED, find_recipe
from lightconv.paper.recipes import RECIPES

NAME = "iwslt-de-en-dynamicconv"


def test_a_name() -> None:
    assert find_recipe(NAME) == RECIPES[NAME]


@pytest.mark.parametrize("suffix, write", [(".toml", to_toml), (".json", to_json)])
def test_a_file(tmp_path: Path, suffix: str, write: object) -> None:
    assert callable(write)
    file = tmp_path / f"my{suffix}"
    file.write_text(write(RECIPES[NAME]))
    assert find_recipe(str(file)) == RECIPES[NAME]


def test_a_name_comes_before_a_file_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / NAME).write_text("nonsense")
    monkeypatch.chdir(tmp_path)
    assert find_recipe(NAME) == RECIPES[NAME]


def test_settings_change_the_value_and_its_source() -> None:
    before = RECIPES[NAME]
    after = find_recipe(NAME, ["train.max_steps=100", "model.encoder.*.dropconnect=0.2"])
    assert after.train.max_steps == 100
    assert {layer.dropconnect for layer in after.model.encoder} == {0.2}  # type: ignore[union-attr]
    assert {layer.dropconnect for layer in after.model.decoder} == {0.1}  # type: ignore[union-attr]
    new = {"train.max_steps": CHANGED, "model.encoder.*.dropconnect": CHANGED}
    assert after.sources == {**before.sources, **new}


def test_setting_a_part_forgets_the_sources_under_it() -> None:
    after = find_recipe(NAME, ["train.optimizer.kind=nesterov", "train.optimizer={kind='adam'}"])
    assert after.sources["train.optimizer"] == CHANGED
    assert "train.optimizer.eps" not in after.sources


def test_words_about_a_recipe_have_no_source() -> None:
    after = find_recipe(NAME, ["about=mine", "sources.train.seed=a die"])
    assert (after.about, after.sources["train.seed"]) == ("mine", "a die")
    assert after.sources.keys() == RECIPES[NAME].sources.keys()


@pytest.mark.parametrize(
    "name, message",
    [
        ("wmt-en-de-dynamicon", "unknown recipe 'wmt-en-de-dynamicon': did you mean 'wmt-en-de-d"),
        ("zh-en", "unknown recipe 'zh-en': did you mean 'wmt-zh-en-"),
        ("nonsense", "unknown recipe 'nonsense': `lightconv list` shows all names"),
        ("", "unknown recipe ''"),
        ("missing.toml", "missing.toml: no such file"),
        ("some/where", "some/where: no such file"),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_recipe(name)
    assert message in str(caught.value)


def test_a_wrong_setting_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="max_steps"):
        find_recipe(NAME, ["train.max_step=1"])
