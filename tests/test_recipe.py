"""Recipes: found by name or file, changed by settings, counted by part."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightconv.config import ConfigError, to_json, to_toml
from lightconv.data import TaskConfig
from lightconv.data.vocabulary import PAIR_FILES, SHARED_FILE
from lightconv.paper.recipes import RECIPES
from lightconv.recipe import CHANGED, Recipe, count_parameters, count_parts, find_recipe, fit_recipe

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


def test_an_update_is_of_batches_or_of_tokens() -> None:
    """The one that is set wins; two that are set contradict each other."""
    for name, settings, wanted in (
        (NAME, (), (1, 0)),
        (NAME, ("train.tokens_per_update=5000",), (0, 5000)),
        (NAME, ("train.batches_per_update=3",), (3, 0)),
        ("debian-lm-lightconv-small", ("train.batches_per_update=3",), (3, 0)),
        ("debian-lm-lightconv-small", (), (0, 4096)),
    ):
        train = find(name, *settings).train
        assert (train.batches_per_update, train.tokens_per_update) == wanted
    both = ("train.tokens_per_update=5000", "train.batches_per_update=3")
    for settings, numbers in ((both, (3, 5000)), (("train.batches_per_update=0",), (0, 0))):
        text = "train.batches_per_update={} and train.tokens_per_update={}: exactly one".format(
            *numbers
        )
        with pytest.raises(ConfigError, match=text):
            find(NAME, *settings)


# --- Fitted to data

TASK = TaskConfig(
    kind="translation", corpus="wmt14-en-fr", source_lang="en", target_lang="fr", metric="bleu"
)


def facts(*sizes: int, shared: bool = False, task: TaskConfig | None = TASK) -> Any:
    """All that `fit_recipe` asks of a `PreparedData`."""
    files = dict.fromkeys((SHARED_FILE,) if shared else PAIR_FILES)
    pairs, sizes = len(sizes) == 2, (sizes[0], sizes[-1])
    return SimpleNamespace(
        folder=Path("DIR"), pairs=pairs, sizes=sizes, task=task, files=lambda: files
    )


def test_the_vocabulary_and_the_task_are_those_of_the_data() -> None:
    recipe = RECIPES["iwslt-de-en-lightconv"]
    fitted = fit_recipe(recipe, facts(8214, 6003))
    assert fitted.task == TASK
    assert fitted.model == replace(recipe.model, source_vocab=8214, target_vocab=6003)
    assert count_parameters(recipe.model) == 38_139_436
    fewer = ((8848 - 8214) + 2 * (6632 - 6003)) * 512
    assert count_parameters(fitted.model) == 38_139_436 - fewer
    assert (fitted.train, fitted.decode) == (recipe.train, recipe.decode)
    assert fitted.sources["model.source_vocab"] == "the data"
    # Again, or with the sizes of the recipe and without a task, nothing is left to do.
    assert fit_recipe(fitted, facts(8214, 6003)) == fitted
    assert fit_recipe(recipe, facts(8848, 6632, task=None)) == recipe
    own = find(NAME, "task.metric=chrf")
    assert fit_recipe(own, facts(9, 9)).task == replace(TASK, metric="chrf")


@pytest.mark.parametrize(
    "name, sizes, shared, wanted",
    [
        ("wmt-en-de-dynamicconv", (5000, 5000), True, "all"),
        ("wmt-en-de-dynamicconv", (5000, 6000), False, "decoder"),
        # As many words, but others.
        ("wmt-en-de-dynamicconv", (5000, 5000), False, "decoder"),
        ("iwslt-de-en-dynamicconv", (5000, 5000), True, "none"),
        ("debian-en-de-dynamicconv-small", (700, 800), False, "decoder"),
    ],
)
def test_matrices_are_shared_as_far_as_the_data_allows(
    name: str, sizes: tuple[int, int], shared: bool, wanted: str
) -> None:
    model = fit_recipe(RECIPES[name], facts(*sizes, shared=shared)).model
    changes = {"share_embeddings": wanted, "source_vocab": sizes[0], "target_vocab": sizes[1]}
    assert model == replace(RECIPES[name].model, **changes)


def test_cutoffs_are_scaled_if_they_must_be() -> None:
    recipe = RECIPES["billion-word-dynamicconv"]
    assert recipe.model.adaptive is not None and recipe.model.adaptive.cutoffs == (60_000, 160_000)
    for vocab, cutoffs in (
        (793_471, (60_000, 160_000)),
        (160_001, (60_000, 160_000)),
        # 60000 / 793471 = 7.56 % and 20.16 % of the words.
        (160_000, (12_098, 32_263)),
        (8000, (604, 1613)),
        (6, (1,)),
    ):
        model = fit_recipe(recipe, facts(vocab)).model
        assert model == replace(
            recipe.model, vocab=vocab, adaptive=replace(recipe.model.adaptive, cutoffs=cutoffs)
        )
    own = find("billion-word-dynamicconv", "model.adaptive.cutoffs=[50,100]")
    assert fit_recipe(own, facts(101)).model.adaptive.cutoffs == (50, 100)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="must stay below the vocabulary of 100"):
        fit_recipe(own, facts(100))


def test_what_is_set_must_agree_with_the_data() -> None:
    own = find(NAME, "model.source_vocab=8214", "model.share_embeddings=decoder")
    assert fit_recipe(own, facts(8214, 6003)).model.target_vocab == 6003  # type: ignore[union-attr]
    for recipe, data, message in (
        (
            own,
            facts(8000, 6003),
            r"\(DIR\): 8000 and 6003 ids, expected 8214 and 6632 .*vocab=8000",
        ),
        (own, facts(9), "DIR holds texts, expected pairs of source and target"),
        (RECIPES["debian-lm-lightconv-small"], facts(9, 9), "DIR holds pairs .*, expected texts"),
        (
            find("wmt-en-de-dynamicconv", "model.share_embeddings=all"),
            facts(8214, 6003),
            "share_embeddings='all' needs one vocabulary",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            fit_recipe(recipe, data)


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
