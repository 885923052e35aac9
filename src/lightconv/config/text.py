"""Configurations as JSON and TOML text, the files that hold them, and their differences."""

import json
import re
import tomllib
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import tomli_w

from lightconv.config.values import ConfigError, T, from_dict, join, show, to_dict

# Fifty times the largest recipe; a longer file is not a configuration.
LARGEST_FILE = 256 * 1024
# tomllib needs quadratic time for a key of many parts, a.a.a.a: minutes for a file of that size.
MOST_DOTS = 256
STRINGS_AND_COMMENTS = re.compile(r""""(?:[^"\\\n]|\\.)*"|'[^'\n]*'|#[^\n]*""")


def to_json(config: object) -> str:
    """A configuration as JSON, with every field."""
    return json.dumps(to_dict(config), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_toml(config: object) -> str:
    """A configuration as TOML: a section for each part, a line for each layer, no line for None."""
    return "\n".join(_sections(to_dict(config), ""))


def read(path: str | PathLike[str], cls: type[T]) -> T:
    """The configuration in a file, JSON or TOML by its suffix."""
    data = read_plain(path)
    try:
        return from_dict(cls, data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def read_plain(path: str | PathLike[str]) -> Any:
    """The plain values in a file, JSON or TOML by its suffix."""
    try:
        return parse_plain(_read_text(Path(path)), Path(path).suffix.lower())
    except OSError as error:
        raise ConfigError(f"{path}: {str(error.strerror).lower()}") from error
    except ValueError as error:  # a ConfigError, bytes that are not UTF-8, or a NUL in the name
        raise ConfigError(f"{path}: {error}") from error


def _read_text(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(LARGEST_FILE + 1)
    if not 0 < len(data.strip()) <= LARGEST_FILE:
        problem = f"longer than {LARGEST_FILE} bytes" if data.strip() else "is empty"
        raise ConfigError(f"{problem}, expected a configuration")
    try:
        return data.decode("utf-8-sig")  # editors on Windows begin a file with a mark
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"byte {error.start + 1}, in line {line}, is not UTF-8") from None


def parse_plain(text: str, suffix: str) -> Any:
    if suffix not in (".json", ".toml"):
        raise ConfigError(f"suffix {suffix!r}, expected .json or .toml")
    try:
        if suffix == ".json":
            return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
        rest = STRINGS_AND_COMMENTS.sub("", text)
        if any(line.count(".") > MOST_DOTS for line in rest.split("\n")):
            raise ConfigError(f"more than {MOST_DOTS} dots in a line, so it is not a configuration")
        return tomllib.loads(text)
    except ConfigError:
        raise
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"not {suffix[1:].upper()}: {error}") from error
    except RecursionError:
        raise ConfigError("nested too deeply to be a configuration") from None
    except ValueError:  # the only other one: Python refuses to read thousands of digits
        raise ConfigError("a whole number in it has more than 64 bits") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ConfigError(f"{show(name)} stands twice in one table")
        found[name] = value
    return found


def _refuse_constant(name: str) -> float:
    raise ConfigError(f"{name} is not a finite number")


def _sections(table: dict[str, Any], header: str) -> list[str]:
    own = {name: value for name, value in table.items() if not isinstance(value, dict | None)}
    lines = [f"[{header}]"] if header else []
    lines += [*(f"{_key(name)} = {write_value(value)}" for name, value in own.items()), ""]
    for name, value in table.items():
        if isinstance(value, dict):
            lines += _sections(value, f"{header}.{_key(name)}" if header else _key(name))
    return lines


def write_value(value: Any) -> str:
    """A plain value as TOML; tables stand in braces, those of a list on lines of their own."""
    if isinstance(value, dict):
        pairs = [f"{_key(name)} = {write_value(v)}" for name, v in value.items() if v is not None]
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list):
        items = [write_value(item) for item in value]
        if any(isinstance(item, dict) for item in value):
            return "\n".join(["[", *(f"    {item}," for item in items), "]"])
        return f"[{', '.join(items)}]"
    return "none" if value is None else tomli_w.dumps({"": value})[len('"" = ') : -1]


def _key(name: str) -> str:
    return tomli_w.dumps({name: 0}).removesuffix(" = 0\n")


def differences(a: object, b: object) -> list[str]:
    """One line `path: old -> new` for each field that is not the same; none if a == b."""
    old, new = (dict(_leaves(to_dict(side), "")) for side in (a, b))
    changed = [path for path in {**old, **new} if old.get(path) != new.get(path)]
    return [f"{p}: {write_value(old.get(p))} -> {write_value(new.get(p))}" for p in changed]


def _leaves(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(item, join(where, name))
    else:
        yield where, value
