"""Recipes: found by name or file, changed by settings, counted by part."""

import re
from pathlib import Path

import pytest

from lightconv.config import ConfigError, to_json, to_toml
from lightconv.paper.recipes import RECIPES
from lightconv.recipe import CHANGED, Recipe, count_parts, find_recipe

NAME = "iwslt-de-en-dynamicconv"


def find(name: str, *settings: str) -> Recipe:
    return find_recipe(name, settings, RECIPES)


def test_a_file_and_a_name_that_comes_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("my.toml", to_toml(RECIPES[NAME])), ("my.json", to_json(RECIPES[NAME]))):
        Path(name).write_text(text)
        assert find(name) == RECIPES[NAME]
    Path(NAME).write_text("nonsense")
    assert find(NAME) == RECIPES[NAME]


def test_settings_change_the_value_and_its_source() -> None:
    before = RECIPES[NAME]
    after = find(NAME, "train.max_steps=100", "model.encoder.*.dropconnect=0.2")
    assert after.train.max_steps == 100
    assert {layer.dropconnect for layer in after.model.encoder} == {0.2}  # type: ignore[union-attr]
    assert {layer.dropconnect for layer in after.model.decoder} == {0.1}  # type: ignore[union-attr]
    new = {"train.max_steps": CHANGED, "model.encoder.*.dropconnect": CHANGED}
    assert after.sources == {**before.sources, **new}
    assert list(after.sources)[-2:] == list(new)  # as they are printed
    kept = find(NAME, "decode.min_len=3").sources["decode.min_len_ratio"]
    assert kept == before.sources["decode.min_len_ratio"]


def test_setting_a_part_forgets_the_sources_under_it() -> None:
    after = find(NAME, "train.optimizer.kind=nesterov", "train.optimizer={kind='adam'}")
    assert after.sources["train.optimizer"] == CHANGED
    assert "train.optimizer.eps" not in after.sources
    # Words about a recipe have no source.
    after = find(NAME, "about=mine", "sources.train.seed=a die")
    assert (after.about, after.sources["train.seed"]) == ("mine", "a die")
    assert after.sources.keys() == RECIPES[NAME].sources.keys()


@pytest.mark.parametrize(
    "name, settings, message",
    [
        (
            "wmt-en-de-dynamicon",
            (),
            "unknown recipe 'wmt-en-de-dynamicon': did you mean 'wmt-en-de-d",
        ),
        ("zh-en", (), "unknown recipe 'zh-en': did you mean 'wmt-zh-en-"),
        ("nonsense", (), "unknown recipe 'nonsense': `lightconv list` shows all names"),
        ("", (), "unknown recipe ''"),
        ("missing.toml", (), "missing.toml: no such file"),
        ("some/where", (), "some/where: no such file"),
        (NAME, ("train.max_step=1",), "max_steps"),
    ],
)
def test_unknown_names(name: str, settings: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        find(name, *settings)


def test_parts_of_a_shared_matrix() -> None:
    layer, d = 4 * 1024**2 + 4 * 1024, 1024
    assert count_parts(RECIPES["wmt-en-de-selfattention"].model) == {
        "embedding": 32_768 * d,
        "output": 0,
        "encoder mixers": 6 * layer,
        "encoder norms": 6 * 2 * 2 * d,
        "encoder ffn": 6 * (2 * d * 4096 + 4096 + d),
        "decoder mixers": 6 * layer,
        "decoder norms": 6 * 3 * 2 * d,
        "decoder ffn": 6 * (2 * d * 4096 + 4096 + d),
        "source attention": 6 * layer,
    }


def test_parts_of_separate_matrices_and_of_a_language_model() -> None:
    parts = count_parts(RECIPES["iwslt-de-en-lightconv"].model)
    assert (parts["embedding"], parts["output"]) == ((8848 + 6632) * 512, 6632 * 512)
    parts = count_parts(RECIPES["billion-word-selfattention"].model)
    assert list(parts) == ["embedding", "output", "mixers", "norms", "ffn"]
    assert parts["mixers"] == 16 * (4 * 1024**2 + 4 * 1024)
    # Band words and their projections in; a projection out of each further band, two classes.
    assert parts["output"] == 1024 * (256 + 64) + 2 * 1024
