"""Configurations as JSON and TOML text, and the files that hold them."""

import json
import re
import tomllib
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import tomli_w

from lightconv.config.errors import ConfigError, show
from lightconv.config.plain import from_dict, to_dict

if TYPE_CHECKING:
    from typing_extensions import TypeForm

T = TypeVar("T")

# Fifty times the largest recipe; more is not a configuration.
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


def parse_json(text: str, cls: "TypeForm[T]") -> T:
    """The configuration that JSON text describes."""
    return from_dict(cls, _load_json(text))


def parse_toml(text: str, cls: "TypeForm[T]") -> T:
    """The configuration that TOML text describes."""
    return from_dict(cls, load_toml(text))


def read(path: str | PathLike[str], cls: "TypeForm[T]") -> T:
    """The configuration in a file, JSON or TOML by its suffix."""
    data = read_plain(path)
    try:
        return from_dict(cls, data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def read_plain(path: str | PathLike[str]) -> Any:
    """The plain values in a file, JSON or TOML by its suffix."""
    path = Path(path)
    suffix = path.suffix.lower()
    try:
        if suffix not in LOADERS and path.is_file():
            raise ConfigError(f"suffix {suffix!r}, expected one of {', '.join(LOADERS)}")
        text = _read_text(path)
        return LOADERS[suffix](text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        raise ConfigError("no such file") from None
    except IsADirectoryError:
        raise ConfigError("is a folder, expected a file") from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}") from error
    except ValueError as error:  # a NUL in the name
        raise ConfigError(f"cannot be read: {error}") from error
    if len(data) > LARGEST_FILE:
        raise ConfigError(f"longer than {LARGEST_FILE} bytes, so it is no configuration")
    if not data.strip():
        raise ConfigError("is empty, expected a configuration")
    try:
        return data.decode("utf-8-sig")  # editors on Windows begin a file with a mark
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"byte {error.start + 1}, in line {line}, is not UTF-8. Save the file as UTF-8"
        ) from None


def _check_length(text: str) -> None:
    if len(text) > LARGEST_FILE:
        raise ConfigError(f"longer than {LARGEST_FILE} characters, so it is no configuration")


def _load_json(text: str) -> Any:
    _check_length(text)
    try:
        return json.loads(
            text,
            object_pairs_hook=_unique,
            parse_int=_parse_int,
            parse_constant=_refuse_constant,
        )
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ConfigError(f"not JSON: {error.msg} ({where})") from error
    except RecursionError:
        raise ConfigError("nested too deeply to be a configuration") from None


def load_toml(text: str) -> dict[str, Any]:
    """The plain values of TOML text."""
    _check_length(text)
    rest = STRINGS_AND_COMMENTS.sub("", text)
    if any(line.count(".") > MOST_DOTS for line in rest.split("\n")):
        raise ConfigError(f"a line with more than {MOST_DOTS} dots, so it is no configuration")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not TOML: {error}") from error
    except RecursionError:
        raise ConfigError("nested too deeply to be a configuration") from None
    except ValueError:  # the only other one: Python refuses to read thousands of digits
        raise ConfigError("a whole number in it has more than 64 bits") from None


LOADERS: dict[str, Callable[[str], Any]] = {".json": _load_json, ".toml": load_toml}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ConfigError(f"{show(name)} stands twice in one table")
        found[name] = value
    return found


def _parse_int(digits: str) -> int:
    if len(digits) > 20:
        raise ConfigError(f"{digits[:20]}... is a whole number of more than 64 bits")
    return int(digits)


def _refuse_constant(name: str) -> float:
    raise ConfigError(f"{name} is no number for a configuration")


def _sections(table: dict[str, Any], header: str) -> list[str]:
    """Lines of a table: its own values, then a section for each table in it."""
    lines = [f"[{header}]"] if header else []
    for name, value in table.items():
        if value is not None and not isinstance(value, dict):
            lines.append(f"{_key(name)} = {write_value(value)}")
    lines.append("")
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
    return tomli_w.dumps({"x": value}).removeprefix("x = ").removesuffix("\n")


def _key(name: str) -> str:
    return tomli_w.dumps({name: 0}).removesuffix(" = 0\n")
