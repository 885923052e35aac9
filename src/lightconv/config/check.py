"""Ranges of fields, for __post_init__. Each error begins with `field=value`.

Written as `not lowest <= value`, so that NaN is refused too.
"""

import math


def check_counts(config: object, *names: str) -> None:
    """Each named field must be at least 1."""
    for name in names:
        if not getattr(config, name) >= 1:
            raise ValueError(f"{name}={getattr(config, name)} must be at least 1")


def check_shares(config: object, *names: str) -> None:
    """Each named field must be a probability below 1."""
    for name in names:
        if not 0.0 <= getattr(config, name) < 1.0:
            raise ValueError(f"{name}={getattr(config, name)} must be in [0, 1)")


def check_from_zero(config: object, *names: str) -> None:
    """Each named field must be zero or more, and finite."""
    for name in names:
        if not 0 <= getattr(config, name) < math.inf:
            raise ValueError(f"{name}={getattr(config, name)} must be at least 0")


def check_positive(config: object, *names: str) -> None:
    """Each named field must be more than zero, and finite."""
    for name in names:
        if not 0 < getattr(config, name) < math.inf:
            raise ValueError(f"{name}={getattr(config, name)} must be above 0")


def check_names(config: object, *names: str) -> None:
    """Each named field must be None or a word: not empty, without white space."""
    for name in names:
        value = getattr(config, name)
        if value is not None and (not value or value.split() != [value]):
            raise ValueError(f"{name}={value!r} must be a word without spaces")
