"""Plain values and back: values written and read, and the error of each mistake."""

import tomllib
from dataclasses import dataclass, field, fields
from datetime import date
from typing import Any, Literal

import pytest

from lightconv.config import ConfigError, from_dict, to_dict
from lightconv.config.values import field_hints, field_type
from lightconv.models.config import AttentionConfig, ModelConfig, Seq2SeqConfig
from lightconv.recipe import Recipe
from lightconv.train.config import AdamConfig
from tests.config.examples import LANGUAGE_MODEL, TOML, TRANSLATION

# TOML has no null.
MODEL: dict[str, Any] = tomllib.loads(TOML)["model"] | {"adaptive": None}
MODEL["encoder"][1]["window"] = None


def test_to_dict_is_what_one_would_write() -> None:
    plain = to_dict(TRANSLATION)
    assert plain == tomllib.loads(TOML) | {"model": MODEL}
    assert next(iter(plain["model"]["encoder"][0])) == "kind"
    # A field called kind is a field like others.
    assert next(iter(plain["task"].items())) == ("kind", "translation")


def test_from_dict_chooses_by_kind_also_at_the_top() -> None:
    assert from_dict(ModelConfig, MODEL) == TRANSLATION.model
    assert from_dict(Seq2SeqConfig, MODEL) == TRANSLATION.model
    without = {name: value for name, value in MODEL.items() if name != "kind"}
    assert from_dict(Seq2SeqConfig, without) == TRANSLATION.model
    assert from_dict(Recipe, to_dict(LANGUAGE_MODEL)) == LANGUAGE_MODEL


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int = 1

    def __post_init__(self) -> None:
        if self.size == -1:
            raise ValueError("this size will not do")
        if self.size == -2:
            raise ValueError("part.size=1 and size=-2 are not oversize=3 or 'size=4'")


@dataclass(frozen=True, kw_only=True)
class Every:
    """One field of each type."""

    whole: int = 1
    number: float = 1.0
    text: str = "a"
    flag: bool = False
    word: Literal["one", "two"] = "one"
    digit: Literal[1, 2] = 1
    maybe: int | None = None
    maybe_word: Literal["one"] | None = None
    pair: tuple[float, float] = (0.0, 1.0)
    many: tuple[int, ...] = ()
    names: dict[str, str] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)
    maybe_inner: Inner | None = None


@pytest.mark.parametrize(
    "name, value, expected",
    [
        ("whole", -(2**63), -(2**63)),
        ("number", 3, 3.0),
        ("number", -0.5, -0.5),
        ("word", "two", "two"),
        ("text", "a" * 99, "a" * 99),
        ("maybe", None, None),
        ("maybe", 3, 3),
        ("maybe_word", "one", "one"),
        ("maybe_word", None, None),
        ("pair", [1, 2.5], (1.0, 2.5)),
        ("many", [], ()),
        ("many", (1, 2), (1, 2)),
        ("names", {"a.b": "c", "": ""}, {"a.b": "c", "": ""}),
        ("inner", {"size": 2}, Inner(size=2)),
        ("maybe_inner", {}, Inner()),
    ],
)
def test_each_type_is_read(name: str, value: object, expected: object) -> None:
    found = getattr(from_dict(Every, {name: value}), name)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("whole", True, "x.whole=true must be a whole number"),
        ("whole", 1.0, "x.whole=1.0 must be a whole number"),
        ("whole", None, "x.whole=none must be a whole number"),
        ("whole", 2**63, f"x.whole={2**63} must be a whole number of at most 64 bits"),
        (
            "whole",
            2**99,
            "x.whole=(a whole number of 100 bits) must be a whole number of at most…",
        ),
        ("number", "1", "x.number='1' must be a number"),
        ("number", False, "x.number=false must be a number"),
        ("number", float("nan"), "x.number=nan must be a finite number"),
        ("number", float("-inf"), "x.number=-inf must be a finite number"),
        ("number", 2**53 + 1, "x.number=9007199254740993 must be a number that float64 holds…"),
        ("text", 1, "x.text=1 must be text"),
        ("text", "\ud800", "x.text='\\ud800' must be text that UTF-8 can hold"),
        ("flag", 1, "x.flag=1 must be true or false"),
        ("flag", "true", "x.flag='true' must be true or false"),
        ("word", "three", "x.word='three' must be one of one, two"),
        ("word", ["one"], "x.word=(a list of 1) must be one of one, two"),
        ("digit", True, "x.digit=true must be one of 1, 2"),
        ("maybe", "none", "x.maybe='none' must be a whole number or none"),
        ("maybe_word", "two", "x.maybe_word='two' must be one of one or none"),
        ("pair", [1], "x.pair=(a list of 1) must be a list of 2"),
        ("pair", [1, "b"], "x.pair.1='b' must be a number"),
        ("many", 1, "x.many=1 must be a list"),
        ("many", "12", "x.many='12' must be a list"),
        ("many", [1, 2.5], "x.many.1=2.5 must be a whole number"),
        ("names", [], "x.names=(a list of 0) must be a table"),
        ("names", {"a.b": 1}, "x.names.a.b=1 must be text"),
        ("names", {1: "a"}, "x.names=1 must be text"),
        ("inner", None, "x.inner=none must be a table"),
        ("inner", [], "x.inner=(a list of 0) must be a table"),
        ("inner", {"size": date(2000, 1, 1)}, "x.inner.size=(date) must be a whole number"),
        ("inner", {"size": -1}, "x.inner: this size will not do"),
        ("inner", {"size": -2}, "part.size=1 and x.inner.size=-2 are not oversize=3 or 'size=4'"),
        ("inner", {"sizes": 1}, "unknown field x.inner.sizes=1; did you mean 'size'?"),
        ("maybe_inner", 3, "x.maybe_inner=3 must be a table or none"),
        ("a b\n", 1, r"unknown field x.'a b\n'=1; known: whole, number, text, …"),
        ("wrods", {}, "unknown field x.wrods=(a table); did you mean 'word'?"),
        ("size", 1, "unknown field x.size=1; did you mean 'x.inner.size'?"),
    ],
)
def test_each_mistake_names_the_field(name: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        from_dict(Every, {name: value}, "x")
    found = str(raised.value)
    assert found.startswith(message[:-1]) if message.endswith("…") else found == message
    assert "\n" not in found


TIED = {"cutoffs": [5], "tie_projections": True, "tie_words": False}


def changed(path: str, value: object) -> dict[str, Any]:
    """MODEL with one value changed, or taken away."""
    data = to_dict(TRANSLATION)
    *way, last = path.split(".")
    node: Any = data
    for part in way:
        node = node[int(part) if part.isdigit() else part]
    if value is KeyError:
        del node[last]
    else:
        node[int(last) if last.isdigit() else last] = value
    return data


@pytest.mark.parametrize(
    "path, value, message",
    [
        ("model.dim", KeyError, "model.dim is missing, expected a whole number"),
        ("task", KeyError, "task is missing, expected a table"),
        ("model.encoder.0.kernel", "3", "model.encoder.0.kernel='3' must be a whole number"),
        ("model.encoder.0.kernel", KeyError, "model.encoder.0.kernel is missing, expected a whole"),
        ("model.encoder.1.head", 4, "unknown field model.encoder.1.head=4; did you mean 'heads'?"),
        ("model.encoder.1.kernel", 4, "unknown field model.encoder.1.kernel=4 of 'attention', it"),
        ("model.encoder.0.kind", "dynamic", "unknown model.encoder.0.kind='dynamic'; did you mean"),
        ("model.encoder.0.kind", KeyError, "model.encoder.0.kind is missing; known: attention, co"),
        ("train.optimizer.kind", [], "unknown train.optimizer.kind=(a list of 0); known: adam, ne"),
        ("max_steps", 3, "unknown field max_steps=3; did you mean 'train.max_steps'?"),
        # What __post_init__ says, with the path before each field.
        ("model.source_heads", 7, "model.source_heads=7 does not divide model.dim=512"),
        ("model.encoder.1.heads", 7, "model.encoder.1.heads=7 does not divide model.dim=512"),
        ("model.encoder.0.dropconnect", 1.5, "model.encoder.0.dropconnect=1.5 must be in [0, 1)"),
        ("model.decoder", [], "model.decoder must have 1 to 1000 layers, got 0"),
        ("model.share_embeddings", "all", "model.share_embeddings='all' needs one vocabulary, got"),
        ("model.adaptive", {"cutoffs": [100, 99]}, "model.adaptive.cutoffs must rise from above 0"),
        ("model.adaptive", {"cutoffs": [9000]}, "model.adaptive.cutoffs=[9000] must stay below"),
        ("model.adaptive", TIED, "model.adaptive.tie_projections=true needs model.adaptive.tie_w"),
        ("train.optimizer.betas", [0.9, 1], "train.optimizer.betas=[0.9, 1.0] must both be in"),
    ],
)
def test_mistakes_in_a_recipe(path: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        from_dict(Recipe, changed(path, value))
    assert str(raised.value).startswith(message)


def test_only_tables_are_read_and_only_configurations_written() -> None:
    for data in (None, 3, "text", [], [1, 2]):
        with pytest.raises(ConfigError, match=r"a configuration=.* must be a table"):
            from_dict(Recipe, data)
    for value in (3, "text", Every, {"a": 1}):
        with pytest.raises(ConfigError):
            to_dict(value)
    unwritable: list[Any] = [float("nan"), float("inf"), 2**63, "\ud800"]
    for value in unwritable:
        with pytest.raises(ConfigError, match=r"^number="):
            to_dict(Every(number=value, text=value, maybe=value))


def test_errors_do_not_grow_with_what_they_are_about() -> None:
    huge = "x" * 10**6
    for data in ({huge: 1}, {"text": 1, "word": huge}, {"many": [1] * 10**5 + ["a"]}):
        with pytest.raises(ConfigError) as raised:
            from_dict(Every, data)
        assert len(str(raised.value)) <= 400
    with pytest.raises(ConfigError) as raised:
        from_dict(Recipe, changed("model.adaptive", {"cutoffs": [1] * 10**4}))
    assert len(str(raised.value)) == 400


def test_a_field_that_may_be_none_is_none_by_default() -> None:
    """TOML has no null: a field left out must read as None again."""
    seen: list[type] = [Recipe]
    for cls in seen:  # grows on the way
        for item in fields(cls):
            hint = field_hints(cls)[item.name]
            place = field_type(hint)
            assert item.default is None or not place.optional, f"{cls.__name__}.{item.name}"
            inner = field_type(place.args[0] if place.origin is tuple else hint).classes
            seen += [part for part in inner if part not in seen]
    assert {AdamConfig, AttentionConfig} <= set(seen)


def test_types_without_a_reader_are_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Odd:
        size: int | str = 3

    with pytest.raises(TypeError, match="size: a configuration cannot have a field of type int"):
        from_dict(Odd, {"size": 3})
