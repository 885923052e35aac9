"""Configurations as plain values (dict, list, str, int, float, bool, None), and back."""

import functools
import math
import re
import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from lightconv.console import suggest

if TYPE_CHECKING:
    from typing_extensions import TypeForm

T = TypeVar("T")
Hint = Any  # a type or a special form of `typing`, for which Python has no common type

# Values and names come from files of strangers: no error grows with them.
LONGEST_VALUE, LONGEST_MESSAGE, LONGEST_SETTING = 60, 400, 16 * 1024
SCALARS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


class ConfigError(ValueError):
    """An unusable configuration: the dotted path of the field, the value, what is expected."""


def show(value: object) -> str:
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
    plain = isinstance(name, str) and re.fullmatch(rf"[\w.*-]{{1,{LONGEST_VALUE}}}", name)
    part = str(name) if plain or isinstance(name, int) else show(name)
    return f"{where}.{part}" if where else part


def _make_check(fits: Callable[[Any], bool], text: str) -> Callable[..., None]:
    def check(config: object, *names: str, most: float = 1 << 40) -> None:
        for name in names:
            value = getattr(config, name)
            good = fits(value)
            if not good or (isinstance(value, int | float) and value > most):
                raise ValueError(f"{name}={value!r} must be {f'at most {most}' if good else text}")

    check.__doc__ = f"Raises ValueError unless each field is {text}, and a number at most `most`."
    return check


# For __post_init__. Comparisons with NaN are false, so it is refused too.
check_counts = _make_check(lambda value: value >= 1, "at least 1")
check_shares = _make_check(lambda value: 0.0 <= value < 1.0, "in [0, 1)")
check_from_zero = _make_check(lambda value: 0 <= value < math.inf, "at least 0")
check_positive = _make_check(lambda value: 0 < value < math.inf, "above 0")
check_names = _make_check(lambda v: v is None or v.split() == [v], "a word without spaces")


class FieldType(NamedTuple):
    """A type hint taken apart: X | None is X and optional, `classes` are the dataclasses in X."""

    optional: bool
    origin: Any
    args: tuple[Any, ...]
    classes: tuple[type, ...]
    expected: str


@functools.cache
def field_type(hint: Hint) -> FieldType:
    union: Any = get_origin(hint)
    options = get_args(hint) if union in (Union, types.UnionType) else (hint,)
    optional = type(None) in options
    options = tuple(option for option in options if option is not type(None))
    inner = options[0] if len(options) == 1 else hint
    origin, args = get_origin(inner) or inner, get_args(inner)
    expected = SCALARS.get(origin, "a table")
    if origin is Literal:
        expected = f"one of {', '.join(map(str, args))}"
    elif origin is tuple:
        expected = "a list" if args[-1] is Ellipsis else f"a list of {len(args)}"
    classes = options if all(map(is_dataclass, options)) else ()
    return FieldType(optional, origin, args, classes, expected + " or none" * optional)


@functools.cache
def field_hints(cls: type) -> dict[str, Hint]:
    hints = typing.get_type_hints(cls)
    found = {field.name: hints[field.name] for field in fields(cls)}
    kind = own_kind(cls)
    return found if kind is None else {"kind": Literal[kind], **found}


def own_kind(cls: type) -> str | None:
    kind = getattr(cls, "kind", None)
    return kind if isinstance(kind, str) and "kind" not in [f.name for f in fields(cls)] else None


def choose(place: FieldType, data: dict[str, Any], where: str) -> type:
    if len(place.classes) == 1:
        return place.classes[0]
    by_kind = {str(own_kind(cls)): cls for cls in place.classes}
    kind, path = data.get("kind", ""), join(where, "kind")
    if kind in list(by_kind):
        return by_kind[kind]
    text = f"unknown {path}={show(kind)}" if "kind" in data else f"{path} is missing"
    raise ConfigError(text + suggest(show(kind).strip("'"), by_kind))


def unknown(place: FieldType, cls: type, name: object, value: object, where: str) -> ConfigError:
    text = f"unknown field {join(where, name)}={show(value)}"
    for other in place.classes:
        if name in field_hints(other):
            return ConfigError(f"{text} of '{own_kind(cls)}', it belongs to '{own_kind(other)}'")
    for part, hint in field_hints(cls).items():
        if any(name in field_hints(option) for option in field_type(hint).classes):
            return ConfigError(f"{text}; did you mean '{join(where, join(part, name))}'?")
    return ConfigError(text + suggest(show(name).strip("'"), field_hints(cls)))


def to_dict(config: object) -> dict[str, Any]:
    """A configuration as plain values; a class told apart by `kind` carries it first."""
    if not is_dataclass(config) or isinstance(config, type):
        raise ConfigError(f"{show(config)} is not a configuration")
    plain: dict[str, Any] = _to_plain(config)
    from_dict(type(config), plain)  # names a field that no file can hold
    return plain


def _to_plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _to_plain(getattr(value, name)) for name in field_hints(type(value))}
    if isinstance(value, dict):
        return {key: _to_plain(item) for key, item in value.items()}
    return [_to_plain(item) for item in value] if isinstance(value, list | tuple) else value


def from_dict(cls: "TypeForm[T]", data: object, where: str = "") -> T:
    """The configuration of class `cls`, or of one class of a union; `where` begins its paths."""
    config: T = _from_plain(cls, data, where)
    return config


def _from_plain(hint: Hint, value: Any, where: str) -> Any:
    place = field_type(hint)
    kind, args, wanted = place.origin, place.args, place.expected
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
            _from_plain(str, key, where): _from_plain(args[1], item, join(where, key))
            for key, item in value.items()
        }
    elif kind is Literal:
        if any(each == value and type(each) is type(value) for each in args):  # True == 1
            return value
    elif kind in SCALARS:
        fits = isinstance(value, int | float if kind is float else kind)
        if fits and isinstance(value, bool) == (kind is bool):
            wanted = _exceeded(kind, value)  # what JSON, TOML or `kind` can hold
            if not wanted:
                return kind(value)
    elif kind not in (dict, tuple) and not place.classes:
        raise TypeError(f"{where}: a configuration cannot have a field of type {hint}")
    raise ConfigError(f"{where or 'a configuration'}={show(value)} must be {wanted}")


def _exceeded(kind: type, value: Any) -> str:
    if isinstance(value, str):
        return "text that UTF-8 can hold" if re.search("[\ud800-\udfff]", value) else ""
    if isinstance(value, float):
        return "" if math.isfinite(value) else "a finite number"
    if not -(2**63) <= value < 2**63:
        return "a whole number of at most 64 bits"
    return "" if kind(value) == value else "a number that float64 holds exactly"


def _read_table(place: FieldType, data: dict[Any, Any], where: str) -> Any:
    cls = choose(place, data, where)
    hints = field_hints(cls)
    for name, value in data.items():
        if name not in hints:
            raise unknown(place, cls, name, value, where)
    for field in fields(cls):
        if field.name not in data and field.default is field.default_factory is MISSING:
            wanted = field_type(hints[field.name]).expected
            raise ConfigError(f"{join(where, field.name)} is missing, expected {wanted}")
    given = [name for name in hints if name in data]
    values = {name: _from_plain(hints[name], data[name], join(where, name)) for name in given}
    if own_kind(cls) is not None:
        values.pop("kind", None)
    try:
        return cls(**values)
    except ValueError as error:
        raise ConfigError(_locate(str(error), where, hints)[:LONGEST_MESSAGE]) from error


def _locate(message: str, where: str, names: dict[str, Hint]) -> str:
    """`heads=7 does not divide dim=8` in `model`: `model.heads=7 does not divide model.dim=8`."""
    field = "|".join(map(re.escape, names))
    # A field stands before "=", perhaps with a path into it, or begins the message.
    pattern = rf"(?<![\w.'\"])({field})(?=(?:\.\w+)*=)|^({field})\b"
    located, count = re.subn(pattern, lambda found: join(where, found[0]), message)
    return located if count or not where else f"{where}: {message}"
