"""`path=value` settings laid over a configuration: what `--set` does."""

from collections.abc import Iterable
from typing import Any, Literal

from lightconv.config import values
from lightconv.config.text import parse_plain
from lightconv.config.values import ConfigError, FieldType, T, field_hints, field_type, join, show


def override(config: T, settings: Iterable[str]) -> T:
    """The configuration with each `path=value` set, in order, and checked once at the end.

    A path is dotted; a place in a list is a number, or * for all. Values are written as in TOML,
    text also without quotes, and `none` unsets an optional field. A new `kind` starts that part
    anew, with the fields that both kinds have.
    """
    data: Any = values.to_dict(config)
    for setting in settings:
        path, sign, text = setting.partition("=")
        parts = path.strip().split(".")
        if not sign or not all(parts) or len(setting) > values.LONGEST_SETTING:
            wanted = f"path=value of at most {values.LONGEST_SETTING} characters"
            raise ConfigError(f"{show(setting)} is not a setting, expected {wanted}")
        data = _assign(type(config), data, parts, text.strip(), "")
    return values.from_dict(type(config), data)


def _assign(hint: values.Hint, node: Any, parts: list[str], text: str, where: str) -> Any:
    place = field_type(hint)
    if not parts:
        return _parse(place, text)
    name, *rest = parts
    if place.classes and place.optional and node is None:
        node = {}
    if not place.classes and place.origin not in (tuple, dict):
        raise ConfigError(f"{where} is {place.expected}, it has no {show(name)} in it")
    held: Any = list if place.origin is tuple else dict
    if not isinstance(node, held):  # an earlier setting replaced it
        raise ConfigError(f"{where}={show(node)} must be {place.expected.removesuffix(' or none')}")
    if place.origin is tuple:
        items, hints = list(node), place.args
        for number in _numbers(name, len(items), where):
            inner = hints[0 if hints[-1] is Ellipsis else min(number, len(hints) - 1)]
            items[number] = _assign(inner, items[number], rest, text, join(where, number))
        return items
    if place.origin is dict:
        # All parts together are one name, dots included: the paths in a recipe's `sources`.
        return node | {".".join(parts): _parse(field_type(place.args[1]), text)}
    if parts == ["kind"] and len(place.classes) > 1:
        return _change_kind(place, node, _parse(field_type(str), text), where)
    cls = values.choose(place, node, where)
    fields, path = field_hints(cls), join(where, name)
    if name not in fields:
        raise values.unknown(place, cls, name, _parse(field_type(object), text), where)
    if name not in node and rest:
        raise ConfigError(f"{path} is missing, set it before a part of it")
    return node | {name: _assign(fields[name], node.get(name), rest, text, path)}


def _numbers(name: str, count: int, where: str) -> range:
    if name == "*" and count:
        return range(count)
    if name.isascii() and name.isdigit() and len(name) < 9 and int(name) < count:
        return range(int(name), int(name) + 1)
    known = f"0 to {count - 1}, or * for all" if count else "nothing, the list is empty"
    raise ConfigError(f"{where} has no place {show(name)}, expected {known}")


def _change_kind(place: FieldType, data: dict[str, Any], kind: str, where: str) -> dict[str, Any]:
    new = field_hints(values.choose(place, {"kind": kind}, where))
    if "kind" in data:
        old = field_hints(values.choose(place, data, where))
        data = {name: data[name] for name in data if name in new and old.get(name) == new[name]}
    return {**data, "kind": kind}


def _parse(place: FieldType, text: str) -> Any:
    if place.optional and text == "none":
        return None
    is_bare = place.origin is str and not text.startswith(('"', "'"))
    if is_bare or (place.origin is Literal and text in place.args):
        return text
    try:
        found = parse_plain(f"value = {text}", ".toml")
    except ConfigError:
        return text
    return found["value"] if len(found) == 1 else text
