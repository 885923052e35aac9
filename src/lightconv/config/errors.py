"""What is said when a configuration cannot be used: where, what was found, what is expected."""

import difflib
import re
from collections.abc import Collection

# Values and names come from files of strangers: no error grows with them.
LONGEST_VALUE = 60
LONGEST_MESSAGE = 400


class ConfigError(ValueError):
    """A configuration that cannot be used; one line that names the field by its dotted path."""

    def __init__(self, message: str) -> None:
        if len(message) > LONGEST_MESSAGE:
            message = message[: LONGEST_MESSAGE - 3] + "..."
        super().__init__(message)


def show(value: object) -> str:
    """Any value as a short piece of one line, written as in TOML where that is possible."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 64:
        return f"(a whole number of {value.bit_length()} bits)"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        return repr(value if len(value) <= LONGEST_VALUE else value[: LONGEST_VALUE - 3] + "...")
    if isinstance(value, list | tuple):
        return f"(a list of {len(value)})"
    return "(a table)" if isinstance(value, dict) else f"({type(value).__name__})"


def join(where: str, name: object) -> str:
    """The dotted path of `name` in `where`; names that are no plain words are quoted."""
    plain = isinstance(name, str) and re.fullmatch(rf"[\w.*-]{{1,{LONGEST_VALUE}}}", name)
    part = str(name) if plain or isinstance(name, int) else show(name)
    return f"{where}.{part}" if where else part


def nearest(name: object, known: Collection[str]) -> str | None:
    """The known name most like `name`, if one is like it."""
    if not isinstance(name, str):
        return None
    found = difflib.get_close_matches(name[:LONGEST_VALUE], known, n=1)
    return found[0] if found else None


def listing(name: object, known: Collection[str]) -> str:
    """The names that are known, the nearest one first."""
    near = nearest(name, known)
    hint = "" if near is None else f"Did you mean '{near}'? "
    return f"{hint}Known: {', '.join(known)}"
