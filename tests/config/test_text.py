"""JSON and TOML: the text itself, exact round trips, and files that are none."""

import json
import time
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings

from lightconv.config import (
    ConfigError,
    parse_json,
    parse_toml,
    read,
    read_plain,
    to_dict,
    to_json,
    to_toml,
)
from lightconv.models.config import ModelConfig
from lightconv.recipe import Recipe
from lightconv.train.config import AdamConfig
from tests.config.examples import LANGUAGE_MODEL, TRANSLATION, recipes

# fmt: off
TOML = '''about = "Two layers"

[task]
kind = "translation"
corpus = "toy"
source_lang = "de"
target_lang = "en"
metric = "bleu"

[model]
kind = "seq2seq"
dim = 512
ffn_dim = 1024
source_heads = 4
encoder = [
    { kind = "dynamicconv", kernel = 3, heads = 4, glu = true, normalize = "softmax", dropconnect = 0.1 },
    { kind = "attention", heads = 4, dropout = 0.0 },
]
decoder = [
    { kind = "lightconv", kernel = 7, heads = 4, glu = false, normalize = "none", dropconnect = 0.0 },
]
source_vocab = 8848
target_vocab = 6632
share_embeddings = "none"
dropout = 0.3
input_dropout = 0.0
activation_dropout = 0.0
attention_dropout = 0.0
pre_norm = false
final_norm = true
pad = 1

[train]
max_steps = 50000
tokens_per_update = 4000
max_tokens = 4096
clip_norm = 0.0
label_smoothing = 0.1
precision = "fp32"
compile = false
validate_every = 1000
patience = 0
save_every = 1000
log_every = 100
keep_last = 10
keep_best = 1
average_last = 0
ema = 0.0
seed = 1

[train.optimizer]
kind = "adam"
betas = [0.9, 0.98]
eps = 1e-08
weight_decay = 0.0001

[train.schedule]
kind = "inverse_sqrt"
peak = 0.0005
warmup = 4000
start = 1e-07

[decode]
beam = 4
length_penalty = "power"
alpha = 1.0
coverage = 0.0
min_len = 1
min_len_ratio = 0.0
max_len_ratio = 0.0
max_len_plus = 200
block_ngrams = 0
allow_unknown = true

[sources]
"train.optimizer.eps" = "its README"
model = "the table"
'''  # noqa: E501
# fmt: on


def test_toml_is_what_one_would_write() -> None:
    assert to_toml(TRANSLATION) == TOML
    assert parse_toml(TOML, Recipe) == TRANSLATION


def test_json_is_the_plain_values() -> None:
    text = to_json(AdamConfig())
    assert text == (
        '{\n  "kind": "adam",\n  "betas": [\n    0.9,\n    0.98\n  ],\n'
        '  "eps": 1e-08,\n  "weight_decay": 0.0\n}\n'
    )
    assert json.loads(to_json(LANGUAGE_MODEL)) == to_dict(LANGUAGE_MODEL)


@pytest.mark.parametrize("recipe", [TRANSLATION, LANGUAGE_MODEL])
def test_a_model_alone_is_told_by_its_kind(recipe: Recipe) -> None:
    assert parse_json(to_json(recipe.model), ModelConfig) == recipe.model
    assert parse_toml(to_toml(recipe.model), ModelConfig) == recipe.model


@settings(max_examples=150, deadline=None)
@given(recipe=recipes)
def test_round_trips_are_exact(recipe: Recipe) -> None:
    as_json, as_toml = to_json(recipe), to_toml(recipe)
    assert parse_json(as_json, Recipe) == recipe
    assert parse_toml(as_toml, Recipe) == recipe
    # What both texts say is one thing, apart from TOML's missing null.
    assert parse_toml(as_toml, Recipe).sources == json.loads(as_json)["sources"]
    assert tomllib.loads(as_toml)["model"]["kind"] == recipe.model.kind


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
        ("x.toml", b"", "x.toml: about is missing, expected text"),
        ("x.json", b" \n", "x.json: not JSON: Expecting value"),
        ("x.yaml", b"a: 1", "x.yaml: suffix '.yaml', expected one of .json, .toml"),
        (
            "x.toml",
            b"a = 1\nb = '\xff'",
            "x.toml: 'utf-8' codec can't decode byte 0xff in position 11",
        ),
        (
            "x.json",
            "{}".encode("utf-16"),
            "x.json: 'utf-8' codec can't decode byte 0xff in position 0",
        ),
        ("x.json", b'{"a": 1', "x.json: not JSON: Expecting ',' delimiter: line 1 column 8"),
        ("x.json", b'{"a": 1}\0', "x.json: not JSON: Extra data: line 1 column 9"),
        ("x.json", b"[]", "x.json: a configuration=(a list of 0) must be a table"),
        ("x.json", b"{}", "x.json: about is missing, expected text"),
        ("x.toml", b"a = ", "x.toml: not TOML: "),
        ("x.toml", b"a = 1\na = 2", "x.toml: not TOML: Cannot overwrite a value"),
        (
            "x.toml",
            b"#" * 300_000,
            "x.toml: longer than 262144 bytes, so it is not a configuration",
        ),
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


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ConfigError, match=r"x\.toml: permission denied"):
        read(tmp_path / "x.toml", Recipe)


@pytest.mark.parametrize(
    "text, message",
    [
        ('{"eps": NaN}', "eps=nan must be a finite number"),
        ('{"eps": -Infinity}', "eps=-inf must be a finite number"),
        ('{"eps": 1e999}', "eps=inf must be a finite number"),
        ('{"eps": 1, "eps": 2}', "'eps' stands twice in one table"),
        ('{"eps": {"a": 1, "a": 1}}', "'a' stands twice in one table"),
        ('{"eps": 9223372036854775808}', "eps=9223372036854775808 must be a whole number of at"),
        ('{"eps": ' + "9" * 5000 + "}", "a whole number in it has more than 64 bits"),
        ('{"eps": "\\ud800"}', "eps='\\ud800' must be a number"),
        ("[" * 100_000, "nested too deeply to be a configuration"),
        ('{"a":' * 50_000, "nested too deeply to be a configuration"),
        (" " * 300_000, "longer than 262144 characters"),
        ("", "not JSON: Expecting value: line 1 column 1"),
    ],
    ids=lambda text: text[:30],
)
def test_hostile_json(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_json(text, AdamConfig)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    "text, message",
    [
        ("eps = nan", "eps=nan must be a finite number"),
        ("eps = -inf", "eps=-inf must be a finite number"),
        ("eps = 1e999", "eps=inf must be a finite number"),
        ("eps = 9223372036854775808", "eps=9223372036854775808 must be a whole number of at most"),
        ("eps = " + "9" * 5000, "a whole number in it has more than 64 bits"),
        ("eps = 2000-01-01", "eps=(date) must be a number"),
        ("eps = " + "[" * 100_000, "nested too deeply to be a configuration"),
        ("eps = " + "{a=" * 50_000, "nested too deeply to be a configuration"),
        ("a." * 100_000 + "a = 1", "more than 256 dots in a line"),
        ("'a'." * 50_000 + "a = 1", "more than 256 dots in a line"),
        ("[" + "a . " * 50_000 + "a]", "more than 256 dots in a line"),
        ("eps = {" + "a." * 100_000 + "a = 1}", "more than 256 dots in a line"),
        (" " * 300_000, "longer than 262144 characters"),
    ],
    ids=lambda text: text[:30],
)
def test_hostile_toml(text: str, message: str) -> None:
    began = time.process_time()
    with pytest.raises(ConfigError) as raised:
        parse_toml(text, AdamConfig)
    assert str(raised.value).startswith(message)
    assert time.process_time() - began < 2.0


def test_dots_in_strings_and_comments_are_no_keys() -> None:
    dots = "." * 1000
    text = TOML.replace("Two layers", dots).replace("[task]", f"[task] # {dots} it's so")
    assert parse_toml(text, Recipe).about == dots


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_without_a_text_are_not_written(value: float) -> None:
    config = AdamConfig()
    object.__setattr__(config, "eps", value)
    for write in (to_json, to_toml):
        with pytest.raises(ConfigError, match=r"eps=.* must be a finite number"):
            write(config)
