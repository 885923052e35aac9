"""Plans are recipes that fit their data; results know what they belong to."""

import tomllib
from pathlib import Path

import pytest

from lightconv.config import from_dict, to_toml
from lightconv.corpora import CORPORA
from lightconv.data.config import TaskConfig
from lightconv.demo.plan import PLANS, make_recipe, quick
from lightconv.demo.results import RESULTS_FILE, Results, make_key
from lightconv.models.config import LanguageModelConfig, Seq2SeqConfig
from lightconv.recipe import Recipe

TASK = TaskConfig(kind="translation", corpus="x", metric="sacrebleu")


@pytest.mark.parametrize("name", list(PLANS))
def test_a_plan_is_a_recipe(name: str) -> None:
    plan = PLANS[name]
    assert all(corpus in CORPORA for corpus in plan.corpora)
    for each in (plan, quick(plan)):
        recipe = make_recipe(each, TASK, (4000, 4000), shared=True)
        assert from_dict(Recipe, tomllib.loads(to_toml(recipe))) == recipe
        kinds = {layer.kind for layer in _layers(recipe)}
        assert kinds == {"lightconv", "dynamicconv"}  # both have kernels to show
        train = recipe.train
        assert train.schedule.warmup + train.schedule.period == train.max_steps  # type: ignore[union-attr]


def _layers(recipe: Recipe) -> tuple[object, ...]:
    model = recipe.model
    return model.layers if isinstance(model, LanguageModelConfig) else model.encoder


def test_vocabularies_of_their_own() -> None:
    model = make_recipe(PLANS["translation"], TASK, (30, 40), shared=False).model
    assert isinstance(model, Seq2SeqConfig)
    assert (model.source_vocab, model.target_vocab) == (30, 40)
    assert model.share_embeddings == "decoder"


def test_results_are_read_back(tmp_path: Path) -> None:
    results = Results("one", scores={"model": []}, growth=[{"length": 3}])
    assert not results.complete
    results.write(tmp_path)
    assert Results.read(tmp_path, "one") == results
    assert Results.read(tmp_path, "two") == Results("two")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"key": "one"}', "null", "[" * 10**5])
def test_foreign_results_are_not_taken(text: str, tmp_path: Path) -> None:
    (tmp_path / RESULTS_FILE).write_text(text)
    assert Results.read(tmp_path, "one") == Results("one")


def test_a_key_depends_on_everything() -> None:
    assert make_key({"a": 1}, [2]) == make_key({"a": 1}, [2])
    assert len({make_key({"a": 1}, [2]), make_key({"a": 2}, [2]), make_key({"a": 1}, [3])}) == 3
