"""Frozen dataclasses to JSON and TOML and back, overrides, and errors that name the field.

A field may be int, float, str, bool, a Literal, a dataclass, a union of dataclasses told apart by
their ClassVar `kind`, a tuple of these, dict[str, str], or any of them | None with None as default.
"""

from lightconv.config.override import override
from lightconv.config.text import differences, read, read_plain, to_json, to_toml
from lightconv.config.values import (
    ConfigError,
    check_counts,
    check_from_zero,
    check_names,
    check_positive,
    check_shares,
    from_dict,
    to_dict,
)

__all__ = [
    "ConfigError",
    "check_counts",
    "check_from_zero",
    "check_names",
    "check_positive",
    "check_shares",
    "differences",
    "from_dict",
    "override",
    "read",
    "read_plain",
    "to_dict",
    "to_json",
    "to_toml",
]
