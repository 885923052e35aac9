"""Configurations as plain values (dict, list, str, int, float, bool, None), and back.

Errors name the field by its dotted path, the value found and the value expected.
"""

import functools
import math
import operator
import re
import types
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from lightconv.console import suggest

if TYPE_CHECKING:
    from typing_extensions import TypeForm

T = TypeVar("T")
Hint = Any  # a type or a special form of `typing`, for which Python has no common type

# Values and names come from files of strangers: no error grows with them.
LONGEST_VALUE = 60
LONGEST_MESSAGE = 400
SCALARS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


class ConfigError(ValueError):
    """An unusable configuration; one line that names the field by its dotted path."""

    def __init__(self, message: str) -> None:
        if len(message) > LONGEST_MESSAGE:
            message = message[: LONGEST_MESSAGE - 3] + "..."
        super().__init__(message)


def show(value: object) -> str:
    """Any value as a short piece of one line, written as in TOML if possible."""
    if isinstance(value, str):
        return repr(value if len(value) <= LONGEST_VALUE else value[: LONGEST_VALUE - 3] + "...")
    if isinstance(value, list | tuple):
        return f"(a list of {len(value)})"
    if isinstance(value, int) and value.bit_length() > 64:
        return f"(a whole number of {value.bit_length()} bits)"
    if value is None or isinstance(value, int | float):
        return str(value).lower()
    return "(a table)" if isinstance(value, dict) else f"({type(value).__name__})"


def join(where: str, name: object) -> str:
    """The dotted path of `name` in `where`; quotes names that are not plain words."""
    plain = isinstance(name, str) and re.fullmatch(rf"[\w.*-]{{1,{LONGEST_VALUE}}}", name)
    part = str(name) if plain or isinstance(name, int) else show(name)
    return f"{where}.{part}" if where else part


def _suggest(name: object, known: list[str]) -> str:
    return suggest(name[:LONGEST_VALUE] if isinstance(name, str) else "", known)


# --- ranges of fields, for __post_init__ ----------------------------------------------------------


def _make_check(fits: Callable[[Any], bool], text: str) -> Callable[..., None]:
    def check(config: object, *names: str) -> None:
        for name in names:
            value = getattr(config, name)
            if not fits(value):
                raise ValueError(f"{name}={value!r} must be {text}")

    check.__doc__ = f"Raises ValueError unless each named field of `config` is {text}."
    return check


# Comparisons with NaN are false, so it is refused too.
check_counts = _make_check(lambda value: value >= 1, "at least 1")
check_shares = _make_check(lambda value: 0.0 <= value < 1.0, "in [0, 1)")
check_from_zero = _make_check(lambda value: 0 <= value < math.inf, "at least 0")
check_positive = _make_check(lambda value: 0 < value < math.inf, "above 0")
check_names = _make_check(
    lambda value: value is None or value.split() == [value], "a word without spaces"
)


# --- type hints -----------------------------------------------------------------------------------


class FieldType(NamedTuple):
    """A type hint taken apart: X | None is X and optional, `classes` are the dataclasses in X."""

    hint: Hint
    optional: bool
    origin: Any
    args: tuple[Any, ...]
    classes: tuple[type, ...]

    @property
    def expected(self) -> str:
        if self.origin is Literal:
            text = f"one of {', '.join(map(str, self.args))}"
        elif self.origin is tuple:
            text = "a list" if self.args[-1] is Ellipsis else f"a list of {len(self.args)}"
        else:
            text = SCALARS.get(self.hint, "a table")
        return f"{text} or none" if self.optional else text


@functools.cache
def field_type(hint: Hint) -> FieldType:
    origin: Any = get_origin(hint)
    is_union = origin in (Union, types.UnionType)
    options = [arg for arg in get_args(hint) if arg is not type(None)] if is_union else [hint]
    inner = functools.reduce(operator.or_, options)
    return FieldType(
        inner,
        is_union and type(None) in get_args(hint),
        get_origin(inner) or inner,
        get_args(inner),
        tuple(options) if all(map(is_dataclass, options)) else (),
    )


@functools.cache
def field_hints(cls: type) -> dict[str, Hint]:
    """The type of each field, in order."""
    hints = get_type_hints(cls)
    for field in fields(cls):
        if field_type(hints[field.name]).optional and field.default is not None:
            # TOML has no null: a field left out must read as None again.
            raise TypeError(f"{cls.__name__}.{field.name} may be None, so that must be its default")
    return {field.name: hints[field.name] for field in fields(cls)}


def own_kind(cls: type) -> str | None:
    """The `kind` that tells a class from others; None if it has none, or a field of that name."""
    kind = getattr(cls, "kind", None)
    return kind if isinstance(kind, str) and "kind" not in field_hints(cls) else None


def choose(place: FieldType, data: dict[str, Any], where: str) -> type:
    """The one of the place's classes that the `kind` of a table names."""
    by_kind = {own_kind(cls): cls for cls in place.classes}
    path, kinds = join(where, "kind"), [str(kind) for kind in by_kind]
    if None in by_kind or ("kind" not in data and len(kinds) == 1):
        return place.classes[0]
    if "kind" not in data:
        raise ConfigError(f"{path} is missing{suggest('', kinds)}")
    if data["kind"] not in kinds:
        raise ConfigError(f"unknown {path}={show(data['kind'])}{_suggest(data['kind'], kinds)}")
    return by_kind[data["kind"]]


def unknown(place: FieldType, cls: type, name: object, value: object, where: str) -> ConfigError:
    """The error for a name that `cls` does not have, with the place it may belong to."""
    text = f"unknown field {join(where, name)}={show(value)}"
    for other in place.classes:
        if name in field_hints(other):
            kind = f"{join(where, 'kind')}='{own_kind(cls)}'"
            return ConfigError(f"{text} of {kind}, it belongs to '{own_kind(other)}'")
    for part, hint in field_hints(cls).items():
        if any(name in field_hints(option) for option in field_type(hint).classes):
            return ConfigError(f"{text}; did you mean '{join(where, join(part, name))}'?")
    return ConfigError(f"{text}{_suggest(name, _known_names(cls))}")


def _known_names(cls: type) -> list[str]:
    return [*([] if own_kind(cls) is None else ["kind"]), *field_hints(cls)]


# --- to plain values and back ---------------------------------------------------------------------


def to_dict(config: object) -> dict[str, Any]:
    """A configuration as plain values; a class told apart by `kind` carries it first."""
    if not is_dataclass(config) or isinstance(config, type):
        raise ConfigError(f"{show(config)} is not a configuration")
    plain: dict[str, Any] = _to_plain(config)
    from_dict(type(config), plain)  # names a field that no file can hold
    return plain


def _to_plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        kind = own_kind(type(value))
        plain = {} if kind is None else {"kind": kind}
        return plain | {
            field.name: _to_plain(getattr(value, field.name)) for field in fields(value)
        }
    if isinstance(value, dict):
        return {key: _to_plain(item) for key, item in value.items()}
    return [_to_plain(item) for item in value] if isinstance(value, list | tuple) else value


def from_dict(cls: "TypeForm[T]", data: object, where: str = "") -> T:
    """The configuration of class `cls`, or of one class of a union, that `data` describes.

    Errors name the field by its dotted path, which begins with `where`.
    """
    config: T = _from_plain(cls, data, where)
    return config


def _from_plain(hint: Hint, value: Any, where: str) -> Any:
    place = field_type(hint)
    kind, args = place.origin, place.args
    if value is None and place.optional:
        return None
    if place.classes and isinstance(value, dict):
        return _read_table(place, value, where)
    if kind is tuple and isinstance(value, list | tuple):
        hints = (args[0],) * len(value) if args[-1] is Ellipsis else args
        if len(hints) == len(value):
            paths = (join(where, number) for number in range(len(value)))
            return tuple(map(_from_plain, hints, value, paths))
    elif kind is dict and isinstance(value, dict):
        return {
            _check_name(key, where): _from_plain(args[1], item, join(where, key))
            for key, item in value.items()
        }
    elif kind is Literal:
        if any(each == value and type(each) is type(value) for each in args):  # True == 1
            return value
    elif kind in SCALARS:
        fits = isinstance(value, int | float if kind is float else kind)
        if fits and isinstance(value, bool) == (kind is bool):
            return kind(_check_scalar(value, where, kind))
    elif kind not in (dict, tuple) and not place.classes:
        raise TypeError(f"{where}: a configuration cannot have a field of type {place.hint}")
    raise ConfigError(f"{where or 'a configuration'}={show(value)} must be {place.expected}")


def _read_table(place: FieldType, data: dict[Any, Any], where: str) -> Any:
    cls = choose(place, data, where)
    known, hints = _known_names(cls), field_hints(cls)
    for name, value in data.items():
        if name not in known:
            raise unknown(place, cls, name, value, where)
    for field in fields(cls):
        if field.name not in data and field.default is field.default_factory is MISSING:
            wanted = field_type(hints[field.name]).expected
            raise ConfigError(f"{join(where, field.name)} is missing, expected {wanted}")
    given = [name for name in hints if name in data]
    values = {name: _from_plain(hints[name], data[name], join(where, name)) for name in given}
    try:
        return cls(**values)
    except ValueError as error:
        raise ConfigError(_locate(str(error), where, known)) from error


def _locate(message: str, where: str, names: list[str]) -> str:
    """`heads=7 does not divide dim=8` in `model`: `model.heads=7 does not divide model.dim=8`."""
    if not where:
        return message
    field = "|".join(map(re.escape, names))
    # A field stands before "=", perhaps with a path into it, or begins the message.
    pattern = rf"(?<![\w.'\"])({field})(?=(?:\.\w+)*=)|^({field})\b"
    located, count = re.subn(pattern, lambda found: f"{where}.{found[0]}", message)
    return located if count else f"{where}: {message}"


def _check_scalar(value: Any, where: str, kind: type) -> Any:
    """Refuses values that JSON, TOML and `kind` cannot all hold."""
    wanted = ""
    if isinstance(value, str) and re.search("[\ud800-\udfff]", value):
        wanted = "text that UTF-8 can hold"
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        wanted = "a whole number of at most 64 bits"
    elif isinstance(value, float) and not math.isfinite(value):
        wanted = "a finite number"
    elif kind(value) != value:
        wanted = "a number that float64 holds exactly"
    if wanted:
        raise ConfigError(f"{where}={show(value)} must be {wanted}")
    return value


def _check_name(name: object, where: str) -> str:
    if not isinstance(name, str):
        raise ConfigError(f"{join(where, name)}: a name must be text")
    return str(_check_scalar(name, where, str))
