"""`path=value` settings laid over a configuration: what `--set` does."""

from collections.abc import Iterable
from typing import Any, Literal, TypeVar

from lightconv.config.text import parse_plain
from lightconv.config.values import (
    ConfigError,
    FieldType,
    Hint,
    choose,
    field_hints,
    field_type,
    from_dict,
    join,
    own_kind,
    show,
    to_dict,
    unknown,
)

T = TypeVar("T")


def override(config: T, settings: Iterable[str]) -> T:
    """The configuration with each `path=value` set, in order, and checked once at the end.

    A path is dotted; a place in a list is a number, or * for all. Values are written as in TOML,
    text also without quotes, and `none` unsets an optional field. A new `kind` starts that part
    anew, with the fields that both kinds have.
    """
    data: Any = to_dict(config)
    for setting in settings:
        path, sign, text = setting.partition("=")
        parts = path.strip().split(".")
        if not sign or not all(parts):
            raise ConfigError(f"{show(setting)} is not a setting, expected path=value")
        data = _assign(type(config), data, parts, text.strip(), "")
    return from_dict(type(config), data)


def _assign(hint: Hint, node: Any, parts: list[str], text: str, where: str) -> Any:
    """`node`, a plain value of type `hint`, with the value at the end of `parts` set."""
    place = field_type(hint)
    if not parts:
        return _parse(place, text)
    if not place.classes and place.origin not in (tuple, dict):
        raise ConfigError(f"{where} is {place.expected}, it has no {show(parts[0])} in it")
    if place.classes and place.optional and node is None:
        node = {}
    held: Any = list if place.origin is tuple else dict
    if not isinstance(node, held):  # an earlier setting replaced it
        raise ConfigError(f"{where}={show(node)} must be {place.expected.removesuffix(' or none')}")
    if place.classes:
        return _assign_field(place, node, parts, text, where)
    if place.origin is tuple:
        return _assign_item(place, node, parts, text, where)
    # All parts together are one name, dots included: the paths in a recipe's `sources`.
    return node | {".".join(parts): _parse(field_type(place.args[1]), text)}


def _assign_field(place: FieldType, data: Any, parts: list[str], text: str, where: str) -> Any:
    name, *rest = parts
    if name == "kind" and not rest and own_kind(place.classes[0]) is not None:
        return _change_kind(place, data, _parse(field_type(str), text), where)
    cls = choose(place, data, where)
    if name not in field_hints(cls):
        raise unknown(place, cls, name, _parse(field_type(object), text), where)
    if name not in data and rest:
        raise ConfigError(f"{join(where, name)} is missing, set it before a part of it")
    hint = field_hints(cls)[name]
    return data | {name: _assign(hint, data.get(name), rest, text, join(where, name))}


def _change_kind(place: FieldType, data: dict[str, Any], kind: str, where: str) -> dict[str, Any]:
    """A table of another kind, with the fields that are the same in both."""
    new = field_hints(choose(place, {"kind": kind}, where))
    if "kind" in data:
        old = field_hints(choose(place, data, where))
        data = {name: data[name] for name in data if name in new and old.get(name) == new[name]}
    return {**data, "kind": kind}


def _assign_item(place: FieldType, node: list[Any], parts: list[str], text: str, where: str) -> Any:
    items, (name, *rest) = list(node), parts
    if name == "*" and items:
        numbers = range(len(items))
    elif name.isascii() and name.isdigit() and len(name) < 9 and int(name) < len(items):
        numbers = range(int(name), int(name) + 1)
    else:
        known = f"0 to {len(items) - 1}, or * for all" if items else "nothing, the list is empty"
        raise ConfigError(f"{where} has no place {show(name)}, expected {known}")
    for number in numbers:
        hint = place.args[0 if place.args[-1] is Ellipsis else min(number, len(place.args) - 1)]
        items[number] = _assign(hint, items[number], rest, text, join(where, number))
    return items


def _parse(place: FieldType, text: str) -> Any:
    """The plain value that `text` means at a place; the text itself if it means none."""
    if place.optional and text == "none":
        return None
    if place.hint is str and not text.startswith(('"', "'")):
        return text
    if place.origin is Literal and text in place.args:
        return text
    try:
        found = parse_plain(f"value = {text}", ".toml")
    except ConfigError:
        return text
    return found["value"] if len(found) == 1 else text
