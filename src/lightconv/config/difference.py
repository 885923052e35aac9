"""What differs between two configurations."""

from collections.abc import Iterator
from typing import Any

from lightconv.config.errors import join
from lightconv.config.plain import to_dict
from lightconv.config.text import write_value

# Unequal to every value of a configuration.
ABSENT = object()


def differences(a: object, b: object) -> list[str]:
    """One line `path: old -> new` for each field that is not the same; none if a == b."""
    return list(_compare(to_dict(a), to_dict(b), ""))


def _compare(a: Any, b: Any, where: str) -> Iterator[str]:
    if _holds_tables(a) or _holds_tables(b):  # layers: place by place
        a, b = (dict(enumerate(side if isinstance(side, list) else [])) for side in (a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        for name in {**a, **b}:
            yield from _compare(a.get(name, ABSENT), b.get(name, ABSENT), join(where, name))
    elif a != b and not all(side is None or side is ABSENT for side in (a, b)):
        yield f"{where}: {_write(a)} -> {_write(b)}"


def _holds_tables(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def _write(value: Any) -> str:
    if value is ABSENT:
        return "absent"
    return "none" if value is None else write_value(value)
