"""A promise: a sentence, and a check that returns figures or raises BrokenError."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

Figures = dict[str, Any]


class BrokenError(Exception):
    """A promise that does not hold."""


class Promise(NamedTuple):
    """check  a function of an empty folder and of `full`: more cases of everything"""

    name: str
    text: str
    check: Callable[[Path, bool], Figures]


def expect(condition: object, message: str) -> None:
    """Raises BrokenError unless the condition is true; python -O would remove an `assert`."""
    if not condition:
        raise BrokenError(message)
