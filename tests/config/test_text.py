"""JSON and TOML: the text itself, exact round trips, bad files, differences."""

import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from lightconv.config import (
    ConfigError,
    differences,
    from_dict,
    override,
    read,
    read_plain,
    to_dict,
    to_json,
    to_toml,
)
from lightconv.config.text import parse_plain
from lightconv.models.config import ModelConfig
from lightconv.recipe import Recipe
from lightconv.train.config import AdamConfig
from tests.config.examples import LANGUAGE_MODEL, TOML, TRANSLATION, recipes


def test_toml_is_what_one_would_write() -> None:
    assert to_toml(TRANSLATION) == TOML
    assert from_dict(Recipe, parse_plain(TOML, ".toml")) == TRANSLATION


def test_json_is_the_plain_values() -> None:
    text = to_json(AdamConfig())
    assert text == (
        '{\n  "kind": "adam",\n  "betas": [\n    0.9,\n    0.98\n  ],\n'
        '  "eps": 1e-08,\n  "weight_decay": 0.0\n}\n'
    )
    assert json.loads(to_json(LANGUAGE_MODEL)) == to_dict(LANGUAGE_MODEL)


@settings(max_examples=150, deadline=None)
@given(recipe=recipes)
def test_round_trips_are_exact(recipe: Recipe) -> None:
    as_json, as_toml = to_json(recipe), to_toml(recipe)
    assert from_dict(Recipe, parse_plain(as_json, ".json")) == recipe
    assert from_dict(Recipe, parse_plain(as_toml, ".toml")) == recipe
    # A model alone is told by its kind.
    assert from_dict(ModelConfig, parse_plain(to_toml(recipe.model), ".toml")) == recipe.model


@pytest.mark.parametrize(
    "suffix, write", [(".json", to_json), (".toml", to_toml), (".TOML", to_toml)]
)
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "BOM"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_files(tmp_path: Path, suffix: str, write: object, mark: str, newline: str) -> None:
    path = tmp_path / f"recipe{suffix}"
    assert callable(write)
    path.write_bytes((mark + write(TRANSLATION).replace("\n", newline)).encode())
    assert read(path, Recipe) == TRANSLATION
    assert read(str(path), Recipe) == TRANSLATION
    assert read_plain(path)["decode"]["beam"] == 4


@pytest.mark.parametrize(
    "name, data, message",
    [
        ("gone.toml", None, "gone.toml: no such file"),
        ("gone", None, "gone: no such file"),
        ("a\0b.toml", None, "embedded null byte"),
        (".", None, ": is a directory"),
        ("x.toml", b"", "x.toml: is empty, expected a configuration"),
        ("x.json", b" \n", "x.json: is empty, expected a configuration"),
        ("x.yaml", b"a: 1", "x.yaml: suffix '.yaml', expected .json or .toml"),
        ("x.toml", b"a = 1\nb = '\xff'", "x.toml: byte 12, in line 2, is not UTF-8"),
        ("x.json", "{}".encode("utf-16"), "x.json: byte 1, in line 1, is not UTF-8"),
        ("x.json", b'{"a": 1', "x.json: not JSON: Expecting ',' delimiter: line 1 column 8"),
        ("x.json", b'{"a": 1}\0', "x.json: not JSON: Extra data: line 1 column 9"),
        ("x.json", b"[]", "x.json: a configuration=(a list of 0) must be a table"),
        ("x.json", b"{}", "x.json: about is missing, expected text"),
        ("x.toml", b"a = ", "x.toml: not TOML: "),
        ("x.toml", b"a = 1\na = 2", "x.toml: not TOML: Cannot overwrite a value"),
        ("x.toml", b"#" * 300_000, "x.toml: longer than 262144 bytes, expected a"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_files_that_are_none(tmp_path: Path, name: str, data: bytes | None, message: str) -> None:
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ConfigError) as raised:
        read(path, Recipe)
    assert message in str(raised.value)


DEEP, LONG = "nested too deeply to be a configuration", "a whole number in it has more than 64 bits"
DOTS = "more than 256 dots in a line"
HOSTILE = {
    ".json": [
        ('{"eps": NaN}', "NaN is not a finite number"),
        ('{"eps": -Infinity}', "-Infinity is not a finite number"),
        ('{"eps": 1e999}', "eps=inf must be a finite number"),
        ('{"eps": 1, "eps": 2}', "'eps' stands twice in one table"),
        ('{"eps": {"a": 1, "a": 1}}', "'a' stands twice in one table"),
        ('{"eps": 9223372036854775808}', "eps=9223372036854775808 must be a whole number of at"),
        ('{"eps": ' + "9" * 5000 + "}", LONG),
        ('{"eps": "\\ud800"}', "eps='\\ud800' must be a number"),
        ("[" * 100_000, DEEP),
        ('{"a":' * 50_000, DEEP),
        ("", "not JSON: Expecting value: line 1 column 1"),
    ],
    ".toml": [
        ("eps = nan", "eps=nan must be a finite number"),
        ("eps = -inf", "eps=-inf must be a finite number"),
        ("eps = 1e999", "eps=inf must be a finite number"),
        ("eps = 9223372036854775808", "eps=9223372036854775808 must be a whole number of at most"),
        ("eps = " + "9" * 5000, LONG),
        ("eps = 2000-01-01", "eps=(date) must be a number"),
        ("eps = " + "[" * 100_000, DEEP),
        ("eps = " + "{a=" * 50_000, DEEP),
        ("a." * 100_000 + "a = 1", DOTS),
        ("'a'." * 50_000 + "a = 1", DOTS),
        ("[" + "a . " * 50_000 + "a]", DOTS),
        ("eps = {" + "a." * 100_000 + "a = 1}", DOTS),
    ],
}


@pytest.mark.parametrize("suffix", HOSTILE)
def test_hostile_text(suffix: str) -> None:
    for text, message in HOSTILE[suffix]:
        began = time.process_time()
        with pytest.raises(ConfigError) as raised:
            from_dict(AdamConfig, parse_plain(text, suffix))
        assert str(raised.value).startswith(message)
        assert time.process_time() - began < 2.0


def test_dots_in_strings_and_comments_are_no_keys() -> None:
    dots = "." * 1000
    text = TOML.replace("Two layers", dots).replace("[task]", f"[task] # {dots} it's so")
    assert from_dict(Recipe, parse_plain(text, ".toml")).about == dots


# --- Differences: settings, and below them the lines that they make

DIFFERENCES = """
model.dim=512
model.dim=8
  model.dim: 512 -> 8
train.max_steps=3; model.encoder.1.heads=2
  model.encoder.1.heads: 4 -> 2
  train.max_steps: 50000 -> 3
task.source_lang=none
  task.source_lang: "de" -> none
model.encoder.1.window=3
  model.encoder.1.window: none -> 3
train.optimizer.betas.0=0.5
  train.optimizer.betas: [0.9, 0.98] -> [0.5, 0.98]
train.optimizer.kind=nesterov
  train.optimizer.kind: "adam" -> "nesterov"
  train.optimizer.betas: [0.9, 0.98] -> none
  train.optimizer.eps: 1e-08 -> none
  train.optimizer.momentum: none -> 0.99
model.encoder=[{kind='dynamicconv',kernel=3,heads=4,glu=true,dropconnect=0.1}]
  model.encoder.1.kind: "attention" -> none
  model.encoder.1.heads: 4 -> none
  model.encoder.1.dropout: 0.0 -> none
model.adaptive.cutoffs=[5]
  model.adaptive.cutoffs: none -> [5]
  model.adaptive.factor: none -> 4
  model.adaptive.tie_words: none -> true
  model.adaptive.tie_projections: none -> false
  model.adaptive.dropout: none -> 0.0
sources={'model'='the table', 'a.b'='c'}
  sources.train.optimizer.eps: "its README" -> none
  sources.a.b: none -> "c"
"""


@pytest.mark.parametrize("case", re.split(r"\n(?! )", DIFFERENCES.strip()))
def test_lines_of_differences(case: str) -> None:
    changes, *lines = case.split("\n  ")
    assert differences(TRANSLATION, override(TRANSLATION, changes.split("; "))) == lines


@settings(max_examples=25, deadline=None)
@given(a=recipes, b=recipes)
def test_no_difference_if_and_only_if_equal(a: Recipe, b: Recipe) -> None:
    assert differences(a, a) == []
    assert (differences(a, b) == []) == (a == b)
    assert differences(a, LANGUAGE_MODEL)
    # Equal numbers are not a difference.
    train = replace(TRANSLATION.train, clip_norm=0)
    assert differences(TRANSLATION, replace(TRANSLATION, train=train)) == []
