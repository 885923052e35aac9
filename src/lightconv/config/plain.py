"""Configurations as plain values (dict, list, str, int, float, bool, None), and back."""

import math
import re
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from lightconv.config.errors import ConfigError, join, show
from lightconv.config.hints import (
    SCALARS,
    Hint,
    choose,
    classes,
    expected,
    field_hints,
    known_names,
    origin,
    own_kind,
    unknown,
    without_none,
)

if TYPE_CHECKING:
    from typing_extensions import TypeForm

T = TypeVar("T")

# TOML's whole numbers; beyond them readers of JSON differ too.
LARGEST = 2**63 - 1


def to_dict(config: object) -> dict[str, Any]:
    """A configuration as plain values; a class told apart by `kind` carries it first."""
    plain = _to_plain(config, "")
    if not is_dataclass(config) or not isinstance(plain, dict):
        raise ConfigError(f"{show(config)} is no configuration")
    return plain


def from_dict(cls: "TypeForm[T]", data: object, where: str = "") -> T:
    """The configuration of class `cls`, or of one class of a union, that `data` describes.

    Errors name the field by its dotted path, which begins with `where`.
    """
    config: T = _from_plain(cls, data, where)
    return config


def _to_plain(value: object, where: str) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        kind = own_kind(type(value))
        plain: dict[str, Any] = {} if kind is None else {"kind": kind}
        for field in fields(value):
            plain[field.name] = _to_plain(getattr(value, field.name), join(where, field.name))
        return plain
    if isinstance(value, dict):
        return {
            _check_text(key, where): _to_plain(item, join(where, key))
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_to_plain(item, join(where, place)) for place, item in enumerate(value)]
    if isinstance(value, str):
        return _check_text(value, where)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _check_size(value, where)
    if value is None or isinstance(value, bool):
        return value
    raise ConfigError(f"{where}={show(value)} cannot be written")


def _from_plain(hint: Hint, value: Any, where: str) -> Any:
    if value is None and without_none(hint)[1]:
        return None
    if classes(hint):
        return _read_table(hint, value, where)
    inner, _ = without_none(hint)
    read = READERS.get(origin(inner) or inner)
    if read is None:
        raise TypeError(f"{where}: a configuration cannot have a field of type {inner}")
    found = read(inner, value, where)
    if found is None:
        raise ConfigError(f"{where}={show(value)} must be {expected(hint)}")
    return found


def _read_table(hint: Hint, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise ConfigError(f"{where or 'a configuration'}={show(data)} must be {expected(hint)}")
    cls = choose(hint, data, where)
    known = known_names(cls)
    for name in data:
        if name not in known:
            raise unknown(hint, cls, name, data[name], where)
    hints = field_hints(cls)
    for field in fields(cls):
        needed = field.default is MISSING and field.default_factory is MISSING
        if needed and field.name not in data:
            wanted = expected(hints[field.name])
            raise ConfigError(f"{join(where, field.name)} is missing, expected {wanted}")
    values = {
        name: _from_plain(hints[name], data[name], join(where, name))
        for name in hints
        if name in data
    }
    try:
        return cls(**values)
    except ValueError as error:
        raise ConfigError(_locate(str(error), where, known)) from error


def _locate(message: str, where: str, names: tuple[str, ...]) -> str:
    """`heads=7 does not divide dim=8` in `model`: `model.heads=7 does not divide model.dim=8`."""
    if not where:
        return message
    field = "|".join(map(re.escape, names))
    # A field is what stands before "=", perhaps with a path into it, or begins the message.
    pattern = rf"(?<![\w.'\"])({field})(?=(?:\.\w+)*=)|^({field})\b"
    located, count = re.subn(pattern, lambda found: f"{where}.{found[0]}", message)
    return located if count else f"{where}: {message}"


# Readers return None for a value of another type.


def _read_list(hint: Hint, value: Any, where: str) -> tuple[Any, ...] | None:
    if not isinstance(value, list | tuple):
        return None
    inner = get_args(hint)
    if inner[-1] is Ellipsis:
        inner = (inner[0],) * len(value)
    if len(inner) != len(value):
        return None
    places = enumerate(zip(inner, value, strict=True))
    return tuple(_from_plain(kind, item, join(where, place)) for place, (kind, item) in places)


def _read_names(hint: Hint, value: Any, where: str) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    inner = get_args(hint)[1]
    return {
        _check_text(key, where): _from_plain(inner, item, join(where, key))
        for key, item in value.items()
    }


def _read_literal(hint: Hint, value: Any, where: str) -> Any:
    # True == 1, so the type counts too.
    same = [option for option in get_args(hint) if option == value and type(option) is type(value)]
    return same[0] if same else None


def _read_int(hint: Hint, value: Any, where: str) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return int(_check_size(value, where))


def _read_float(hint: Hint, value: Any, where: str) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    number = float(_check_size(value, where))
    if number != value:
        raise ConfigError(f"{where}={show(value)} must be a number that float64 holds exactly")
    return number


READERS: dict[Any, Callable[[Hint, Any, str], Any]] = {
    tuple: _read_list,
    dict: _read_names,
    Literal: _read_literal,
    int: _read_int,
    float: _read_float,
    str: lambda hint, value, where: _check_text(value, where) if isinstance(value, str) else None,
    bool: lambda hint, value, where: value if isinstance(value, bool) else None,
}
assert set(SCALARS) <= set(READERS)


def _check_size(value: float, where: str) -> float:
    if isinstance(value, int) and not -LARGEST - 1 <= value <= LARGEST:
        raise ConfigError(f"{where}={show(value)} must be a whole number of at most 64 bits")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where}={show(value)} must be a finite number")
    return value


def _check_text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{join(where, value)}: a name must be text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{where}={show(value)} must be text that UTF-8 can hold") from None
    return value
