"""Lists of values on a command line."""

import argparse


def parse_numbers(text: str) -> tuple[float, ...]:
    """`0.4,1` as numbers from 0 on."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(0.0 <= number < 100.0 for number in found):
        raise argparse.ArgumentTypeError(f"{text[:60]!r}, expected numbers such as 0.4,0.6")
    return found


def parse_counts(text: str) -> tuple[int, ...]:
    """`1,5,10` as whole numbers from 1 on."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"{text[:60]!r}, expected numbers such as 1,5,10")
    return tuple(sorted({int(part) for part in parts}))


def parse_grid(text: str) -> tuple[str, tuple[str, ...]]:
    """`beam=4,5` as a name and its values."""
    name, sign, values = text.partition("=")
    found = tuple(value.strip() for value in values.split(","))
    if not sign or not name or not all(found) or name == "alpha":
        hint = "--alphas has those" if name == "alpha" else "expected name=value,value"
        raise argparse.ArgumentTypeError(f"{text[:60]!r}, {hint}")
    return name, found
