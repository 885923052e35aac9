"""`path=value` settings laid over a configuration: what `--set` does."""

from collections.abc import Iterable
from typing import Any, Literal, TypeVar, get_args

from lightconv.config.errors import ConfigError, join, show
from lightconv.config.hints import (
    Hint,
    choose,
    classes,
    expected,
    field_hints,
    origin,
    own_kind,
    unknown,
    without_none,
)
from lightconv.config.plain import from_dict, to_dict
from lightconv.config.text import load_toml

T = TypeVar("T")


def override(config: T, settings: Iterable[str]) -> T:
    """The configuration with each `path=value` set, in order, and checked once at the end.

    A path is dotted; a place in a list is a number, or * for all. Values are written as in TOML,
    text also without quotes, and `none` unsets what may be absent. A new `kind` starts that part
    anew, with the fields that both kinds have.
    """
    data: Any = to_dict(config)
    for setting in settings:
        path, sign, text = setting.partition("=")
        parts = path.strip().split(".")
        if not sign or not all(parts):
            raise ConfigError(f"{show(setting)} is no setting, expected path=value")
        data = _assign(type(config), data, parts, text.strip(), "")
    return from_dict(type(config), data)


def _assign(hint: Hint, node: Any, parts: list[str], text: str, where: str) -> Any:
    """`node`, a plain value of type `hint`, with the value at the end of `parts` set."""
    if not parts:
        return _parse(hint, text)
    inner, optional = without_none(hint)
    if classes(inner):
        return _assign_field(inner, {} if node is None and optional else node, parts, text, where)
    if origin(inner) is tuple:
        return _assign_place(inner, node, parts, text, where)
    if origin(inner) is dict:
        # All that is left is one name, dots and all: the paths in a recipe's `sources`.
        value = _parse(get_args(inner)[1], text)
        return {**_as(dict, node, inner, where), ".".join(parts): value}
    raise ConfigError(f"{where} is {expected(hint)}, it has no {show(parts[0])} in it")


def _assign_field(hint: Hint, node: Any, parts: list[str], text: str, where: str) -> Any:
    data: dict[str, Any] = _as(dict, node, hint, where)
    name, *rest = parts
    if name == "kind" and not rest and own_kind(classes(hint)[0]) is not None:
        return _start_anew(hint, data, _parse(str, text), where)
    cls = choose(hint, data, where)
    if name not in field_hints(cls):
        raise unknown(hint, cls, name, _parse(object, text), where)
    inner = field_hints(cls)[name]
    if name not in data and rest:
        raise ConfigError(f"{join(where, name)} is missing, set it before a part of it")
    return {**data, name: _assign(inner, data.get(name), rest, text, join(where, name))}


def _start_anew(hint: Hint, data: dict[str, Any], kind: str, where: str) -> dict[str, Any]:
    """A table of another kind, with the fields that are the same in both."""
    new = choose(hint, {"kind": kind}, where)
    if "kind" not in data:
        return {**data, "kind": kind}
    old = field_hints(choose(hint, data, where))
    kept = [name for name, type_ in field_hints(new).items() if old.get(name) == type_]
    return {"kind": kind, **{name: data[name] for name in kept if name in data}}


def _assign_place(hint: Hint, node: Any, parts: list[str], text: str, where: str) -> list[Any]:
    items = list(_as(list, node, hint, where))
    name, *rest = parts
    inner = get_args(hint)
    if name == "*" and items:
        places = range(len(items))
    elif name.isascii() and name.isdigit() and len(name) < 9 and int(name) < len(items):
        places = range(int(name), int(name) + 1)
    else:
        known = f"0 to {len(items) - 1}, or * for all" if items else "nothing, the list is empty"
        raise ConfigError(f"{where} has no place {show(name)}, expected {known}")
    for place in places:
        type_ = inner[0] if inner[-1] is Ellipsis else inner[min(place, len(inner) - 1)]
        items[place] = _assign(type_, items[place], rest, text, join(where, place))
    return items


def _as(type_: type, node: Any, hint: Hint, where: str) -> Any:
    """The node, which an earlier setting may have made something else than its hint says."""
    if not isinstance(node, type_):
        raise ConfigError(f"{where}={show(node)} must be {expected(hint)}")
    return node


def _parse(hint: Hint, text: str) -> Any:
    """The plain value that `text` means at a place of type `hint`; text itself if it means none."""
    inner, optional = without_none(hint)
    if optional and text == "none":
        return None
    if inner is str and not text.startswith(('"', "'")):
        return text
    if origin(inner) is Literal and text in get_args(inner):
        return text
    try:
        found = load_toml(f"value = {text}")
    except ConfigError:
        return text
    return found["value"] if len(found) == 1 else text
