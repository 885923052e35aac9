"""10,000 damaged inputs: each gives a configuration or a ConfigError, and nothing else."""

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest

from lightconv.config import ConfigError, from_dict, override, to_dict, to_json, to_toml
from lightconv.config.text import parse_plain
from lightconv.recipe import Recipe
from tests.config.examples import LANGUAGE_MODEL, TRANSLATION

RECIPES = (TRANSLATION, LANGUAGE_MODEL)
TEXTS = {
    ".json": [to_json(recipe) for recipe in RECIPES],
    ".toml": [to_toml(recipe) for recipe in RECIPES],
}
PIECES = [
    *"{}[]\",:=.#'\\\n\t\r\0-+_ 019eE",
    *("null", "true", "nan", "inf", "NaN", "1e999", "9" * 30, '"kind"', "kind = ", '"""', "'''"),
    *("[[", "]]", "[model]", "[model.dim]", "{}", "[]", "\ufeff", "\ud800", "é", "0x"),
    "1979-05-27",
    *("[" * 300, '{"a":' * 300, "a." * 300, "\\u0000", "\\ud800", "-0.0", '{ kind = "conv" }'),
]
JUNK: list[Any] = [
    *(None, True, False, 0, -1, 1, 7, 2**63, -(10**5000), 0.5, -0.0, float("nan"), float("inf")),
    *("", "none", "adam", "conv", "\ud800", "x" * 5000, [], [[]], {}, {"kind": "conv"}, (), set()),
    *({"kind": []}, {"kind": None}, {1: 2}, {None: None}, b"", object(), {"kernel": 3}, [1, 2]),
]
NAMES = [
    *("kind", "model", "train", "encoder", "layers", "dim", "optimizer", "schedule", "betas"),
    *("sources", "adaptive", "cutoffs", "task", "*", "0", "1", "9" * 30, "", " ", "-1", "x", "é"),
]


def damage_text(text: str, rng: random.Random) -> str:
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(text) + 1)
        end = min(len(text), start + rng.choice([0, 0, 1, 1, 3, 20, 300]))
        piece = rng.choice([*PIECES, "", text[start:end] * 2, text[::-1][start:end]])
        text = text[:start] + piece + text[end:]
    return text[: rng.randrange(len(text) + 1)] if rng.random() < 0.1 else text


def damage_value(value: Any, rng: random.Random) -> Any:
    """The value with one place in it replaced, removed, added or doubled."""
    keys = list(value) if isinstance(value, dict) else []
    keys = list(range(len(value))) if isinstance(value, list) else keys
    if not keys or rng.random() < 0.15:
        return copy.deepcopy(rng.choice(JUNK)) if rng.random() < 0.99 else Ellipsis
    key = rng.choice(keys)
    action = rng.random()
    if action < 0.1:
        del value[key]
    elif action < 0.2 and isinstance(value, dict):
        value[rng.choice([*NAMES, 3, None, ("a",), str(key) + "s"])] = rng.choice(JUNK)
    elif action < 0.3 and isinstance(value, list):
        value.insert(key, copy.deepcopy(value[key]))
    else:
        value[key] = damage_value(value[key], rng)
    return value


def random_setting(rng: random.Random) -> str:
    paths = [
        *("model.dim", "model.encoder.*.kind", "model.encoder.0.kernel", "model.layers.*.glu"),
        *("train.optimizer.kind", "model.kind", "model.adaptive.cutoffs", "sources.a.b", "about"),
        *("train.schedule", "model.encoder", "model.encoder.*", "train.optimizer.betas.1"),
        ".".join(rng.choices(NAMES, k=rng.randint(1, 4))),
    ]
    values = [*PIECES, "nesterov", "attention", "language_model", "none", "[1, 2]", "{kind='conv'}"]
    text = f"{rng.choice(paths)}={rng.choice(values)}{rng.choice(['', '', *PIECES])}"
    return damage_text(text, rng) if rng.random() < 0.3 else text


def survives(read: Callable[[], Recipe]) -> bool:
    """Whether it is read; whatever is read can be written and read again."""
    try:
        recipe = read()
    except ConfigError as error:
        assert 0 < len(str(error)) <= 400
        return False
    assert isinstance(recipe, Recipe)
    assert from_dict(Recipe, parse_plain(to_json(recipe), ".json")) == recipe
    return True


@pytest.mark.parametrize("suffix", TEXTS)
def test_texts(suffix: str) -> None:
    rng = random.Random(1)
    texts = [damage_text(rng.choice(TEXTS[suffix]), rng) for _ in range(3000)]
    read = [survives(lambda t=text: from_dict(Recipe, parse_plain(t, suffix))) for text in texts]
    # Most damage is seen; some is only to a string or a number.
    assert 0.002 < sum(read) / len(read) < 0.5


def test_values() -> None:
    rng = random.Random(2)
    values = [damage_value(to_dict(rng.choice(RECIPES)), rng) for _ in range(3000)]
    read = [survives(lambda value=value: from_dict(Recipe, value)) for value in values]
    assert 0.002 < sum(read) / len(read) < 0.5


def test_settings() -> None:
    rng = random.Random(3)
    cases = [[random_setting(rng) for _ in range(rng.randint(1, 3))] for _ in range(3000)]
    read = [survives(lambda case=case: override(rng.choice(RECIPES), case)) for case in cases]
    assert 0.002 < sum(read) / len(read) < 0.5
