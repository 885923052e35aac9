"""Differences between configurations, line by line."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from lightconv.config import differences, override
from lightconv.recipe import Recipe
from tests.config.examples import LANGUAGE_MODEL, TRANSLATION, recipes


@pytest.mark.parametrize(
    "changes, lines",
    [
        ([], []),
        (["model.dim=8"], ["model.dim: 512 -> 8"]),
        (
            ["train.max_steps=3", "model.encoder.1.heads=2"],
            ["model.encoder.1.heads: 4 -> 2", "train.max_steps: 50000 -> 3"],
        ),
        (["task.source_lang=none"], ['task.source_lang: "de" -> none']),
        (["model.encoder.1.window=3"], ["model.encoder.1.window: none -> 3"]),
        (
            ["train.optimizer.betas.0=0.5"],
            ["train.optimizer.betas: [0.9, 0.98] -> [0.5, 0.98]"],
        ),
        (
            ["train.optimizer.kind=nesterov"],
            [
                'train.optimizer.kind: "adam" -> "nesterov"',
                "train.optimizer.betas: [0.9, 0.98] -> absent",
                "train.optimizer.eps: 1e-08 -> absent",
                "train.optimizer.momentum: absent -> 0.99",
            ],
        ),
        (
            ["model.encoder=[{kind='dynamicconv',kernel=3,heads=4,glu=true,dropconnect=0.1}]"],
            ['model.encoder.1: { kind = "attention", heads = 4, dropout = 0.0 } -> absent'],
        ),
        (
            ["model.adaptive.cutoffs=[5]"],
            [
                "model.adaptive: none -> { cutoffs = [5], factor = 4, tie_words = true, "
                "tie_projections = false, dropout = 0.0 }"
            ],
        ),
        (
            ["sources={'model'='the table', 'a.b'='c'}"],
            ['sources.train.optimizer.eps: "its README" -> absent', 'sources.a.b: absent -> "c"'],
        ),
    ],
)
def test_lines(changes: list[str], lines: list[str]) -> None:
    assert differences(TRANSLATION, override(TRANSLATION, changes)) == lines


def test_equal_numbers_are_no_difference() -> None:
    train = replace(TRANSLATION.train, clip_norm=0)
    assert differences(TRANSLATION, replace(TRANSLATION, train=train)) == []


@settings(max_examples=25, deadline=None)
@given(a=recipes, b=recipes)
def test_none_if_and_only_if_equal(a: Recipe, b: Recipe) -> None:
    assert differences(a, a) == []
    assert (differences(a, b) == []) == (a == b)
    assert differences(a, LANGUAGE_MODEL)
