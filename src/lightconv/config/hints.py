"""What the type hints of a configuration say: its fields, and the classes a place can hold."""

import functools
import operator
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from lightconv.config.errors import ConfigError, join, listing, nearest, show

# Each hint is a type or a special form of `typing`, for which Python has no type of its own.
Hint = Any

SCALARS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
}


@functools.cache
def field_hints(cls: type) -> Mapping[str, Hint]:
    """The type of each field, in order."""
    hints = get_type_hints(cls)
    for field in fields(cls):
        if without_none(hints[field.name])[1] and field.default is not None:
            # TOML has no null: what is left out must read as None again.
            raise TypeError(f"{cls.__name__}.{field.name} may be None, so that must be its default")
    return {field.name: hints[field.name] for field in fields(cls)}


def origin(hint: Hint) -> Any:
    """tuple of tuple[int, ...], Literal of Literal["a"], None of int."""
    return get_origin(hint)


@functools.cache
def without_none(hint: Hint) -> tuple[Hint, bool]:
    """X | None -> X, True; any other hint -> itself, False."""
    if origin(hint) not in (Union, types.UnionType) or type(None) not in get_args(hint):
        return hint, False
    rest = [arg for arg in get_args(hint) if arg is not type(None)]
    return functools.reduce(operator.or_, rest), True


@functools.cache
def classes(hint: Hint) -> tuple[type, ...]:
    """The dataclasses a place with this hint can hold; none for other types."""
    hint, _ = without_none(hint)
    is_union = origin(hint) in (Union, types.UnionType)
    options = get_args(hint) if is_union else (hint,)
    return options if all(map(is_dataclass, options)) else ()


def own_kind(cls: type) -> str | None:
    """The `kind` that tells a class from others; None if it has none, or a field of that name."""
    kind = getattr(cls, "kind", None)
    return kind if isinstance(kind, str) and "kind" not in field_hints(cls) else None


def known_names(cls: type) -> tuple[str, ...]:
    """What a table of this class may hold."""
    names = tuple(field_hints(cls))
    return names if own_kind(cls) is None else ("kind", *names)


def expected(hint: Hint) -> str:
    """What a value of this type is called in an error."""
    hint, optional = without_none(hint)
    args = get_args(hint)
    if origin(hint) is Literal:
        text = f"one of {', '.join(map(str, args))}"
    elif origin(hint) is tuple:
        text = "a list" if args[-1] is Ellipsis else f"a list of {len(args)}"
    else:
        text = SCALARS.get(hint, "a table")
    return f"{text} or none" if optional else text


def choose(hint: Hint, data: dict[str, Any], where: str) -> type:
    """Which of the hint's classes a table is meant to be, told by its `kind`."""
    options = classes(hint)
    if len(options) == 1:
        own = own_kind(options[0])
        if own is not None and data.get("kind", own) != own:
            raise ConfigError(f"{join(where, 'kind')}={show(data['kind'])} must be '{own}'")
        return options[0]
    by_kind = {own_kind(cls): cls for cls in options}
    kinds = [str(kind) for kind in by_kind]
    if "kind" not in data:
        raise ConfigError(f"{join(where, 'kind')} is missing. {listing(None, kinds)}")
    kind = data["kind"]
    if not isinstance(kind, str) or kind not in by_kind:
        raise ConfigError(f"unknown {join(where, 'kind')}={show(kind)}. {listing(kind, kinds)}")
    return by_kind[kind]


def unknown(hint: Hint, cls: type, name: object, value: object, where: str) -> ConfigError:
    """The error for a name that `cls` does not have, with where it may belong."""
    known = known_names(cls)
    text = f"unknown field {join(where, name)}={show(value)}"
    others = [own_kind(other) for other in classes(hint) if name in field_hints(other)]
    if others:
        kind = join(where, "kind")
        return ConfigError(f"{text} of {kind}='{own_kind(cls)}', it belongs to '{others[0]}'")
    if nearest(name, known) is None:
        for part, inner in field_hints(cls).items():
            if any(name in field_hints(option) for option in classes(inner)):
                return ConfigError(f"{text}. Did you mean '{join(where, join(part, name))}'?")
    return ConfigError(f"{text}. {listing(name, known)}")
