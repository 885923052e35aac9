"""Hybrids: models of one size are trained and scored, and the recipe of one is read."""

from types import ModuleType

import pytest
import torch

from lightconv.config import read
from lightconv.models.folder import build
from lightconv.recipe import Recipe
from tests.examples.conftest import FOLDER


def test_models_of_equal_size(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    text = torch.arange(2000) % 7 + 3
    monkeypatch.setattr(example, "read", lambda folder: (text, text[:800], 10))
    found = example.main(["--steps", "12"])
    assert found.keys() == example.STACKS.keys()
    assert all(1.0 <= value < 10.0 for value in found.values())  # chance is 7
    sizes = [example.count(example.build(each, 10, 1_200_000)) for each in example.STACKS.values()]
    assert max(sizes) - min(sizes) < 0.01 * max(sizes)


def test_the_recipe() -> None:
    recipe = read(FOLDER / "hybrid.toml", Recipe)
    kinds = [layer.kind for layer in recipe.model.layers]  # type: ignore[union-attr]
    assert kinds == ["shortconv", "shortconv", "attention"] * 2
    assert 6_000_000 < sum(each.numel() for each in build(recipe.model).parameters()) < 9_000_000
