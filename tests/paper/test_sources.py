"""Every value of a recipe is printed in the paper, which is listed here, or has a source."""

from dataclasses import fields, is_dataclass
from fnmatch import fnmatchcase

import pytest

from lightconv.paper.recipes import RECIPES, task_of
from lightconv.paper.sources import covers, each_layer, leaves, ours, select

# What the paper prints, in words or in a table; * is any part of a path.
PRINTED = {
    "": "about task.* model.*.kernel model.*.heads model.*.window model.*.normalize",
    "iwslt-de-en": "model.dim model.ffn_dim model.source_heads model.adaptive model.dropout "
    "train.max_steps train.tokens_per_update train.max_tokens train.label_smoothing decode.beam",
    "wmt-en-de": "model.dim model.ffn_dim model.source_heads model.adaptive model.dropout "
    "model.*.glu train.max_steps train.schedule.peak train.schedule.warmup train.schedule.period "
    "train.schedule.start train.label_smoothing train.precision decode.beam",
    "billion-word": "model.dim model.ffn_dim model.adaptive.cutoffs model.adaptive.factor "
    "model.adaptive.tie_words train.max_steps train.optimizer.momentum train.schedule.peak "
    "train.schedule.warmup train.schedule.period train.schedule.start train.clip_norm",
    "cnn-dailymail": "model.ffn_dim model.source_heads model.source_vocab model.target_vocab "
    "model.adaptive model.dropout train.optimizer.weight_decay train.schedule.period "
    "decode.length_penalty decode.block_ngrams",
}
PRINTED["wmt-en-fr"] = PRINTED["wmt-zh-en"] = PRINTED["wmt-en-de"]


def paths(value: object, path: str) -> set[str]:
    """Every plain value in a configuration; layers are *."""
    if is_dataclass(value):
        return set().union(
            *(paths(getattr(value, f.name), f"{path}.{f.name}") for f in fields(value))
        )
    if isinstance(value, tuple) and value and is_dataclass(value[0]):
        return set().union(*(paths(item, f"{path}.*") for item in value))
    return {path.removeprefix(".")}


@pytest.mark.parametrize("name", RECIPES)
def test_every_value_is_printed_or_has_a_source(name: str) -> None:
    recipe = RECIPES[name]
    printed = f"{PRINTED['']} {PRINTED.get(task_of(name), '')}".split()
    for path in paths(recipe, "") - {"sources"}:
        known = any(fnmatchcase(path, pattern) for pattern in printed)
        sourced = any(path == s or path.startswith(s + ".") for s in recipe.sources)
        assert known or sourced, path


@pytest.mark.parametrize("name", RECIPES)
def test_every_source_is_about_something(name: str) -> None:
    recipe = RECIPES[name]
    present = paths(recipe, "")
    for path, source in recipe.sources.items():
        assert source.strip()
        assert any(leaf == path or leaf.startswith(path + ".") for leaf in present), path


@pytest.mark.parametrize("name", [name for name in RECIPES if not name.endswith("-small")])
def test_what_is_printed_has_a_source_only_to_tell_of_a_doubt(name: str) -> None:
    recipe = RECIPES[name]
    printed = PRINTED[task_of(name)].split()
    for path, source in recipe.sources.items():
        if any(fnmatchcase(path, pattern) for pattern in printed):
            assert "the paper" in source or path.endswith(".glu"), path


@pytest.mark.parametrize(
    "name, path, words",
    [
        ("wmt-zh-en-dynamicconv", "model.dropout", "the paper; the fairseq architecture"),
        ("wmt-zh-en-dynamicconv", "model.source_vocab", "113,700"),
        ("wmt-en-de-lightconv", "model.decoder.*.glu", "fitted"),
        ("wmt-en-fr-dynamicconv", "train.max_steps", "README says 30000"),
        ("cnn-dailymail-dynamicconv", "model.dim", "the paper prints 1024"),
        ("cnn-dailymail-dynamicconv", "train.schedule.warmup", "issue 576 says 4000"),
        ("iwslt-de-en-dynamicconv", "train.optimizer", "fairseq README"),
        ("wmt-en-de-ablation-aan-both", "model.encoder.*.ffn_dim", "fitted"),
        ("billion-word-lightconv", "model.layers", "as for DynamicConv"),
    ],
)
def test_disagreements_and_fits_are_told(name: str, path: str, words: str) -> None:
    assert words in RECIPES[name].sources[path]


def test_leaves_are_all_values() -> None:
    for name in ("wmt-en-de-ablation-aan-decoder", "billion-word-dynamicconv"):
        assert set(leaves(RECIPES[name])) == paths(RECIPES[name], "")


def test_select_keeps_what_applies() -> None:
    model = RECIPES["iwslt-de-en-dynamicconv"]
    sources = {"model": "a", "model.encoder.*.window": "b", "train.optim": "c", "train.seed": "d"}
    assert select(sources, model) == {"model": "a", "train.seed": "d"}


def test_paths_cover_what_is_under_them() -> None:
    assert covers("train.optimizer", "train.optimizer.eps")
    assert covers("train.optimizer", "train.optimizer")
    assert not covers("train.optim", "train.optimizer.eps")
    assert not covers("train.optimizer.eps", "train.optimizer")


def test_words() -> None:
    assert ours("none") == "not published; ours: none"
    assert each_layer("glu", "x") == {
        "model.encoder.*.glu": "x",
        "model.decoder.*.glu": "x",
        "model.layers.*.glu": "x",
    }
