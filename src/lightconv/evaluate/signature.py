"""A score and its signature: a compact string of all that influenced the number."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightconv import __version__

_UNFIT = re.compile(r"[|\s]")


@dataclass(frozen=True)
class Signature:
    """`name|key:value|key:value`, with the version of this library at the end."""

    name: str
    fields: Mapping[str, object]

    def __post_init__(self) -> None:
        for text in (self.name, *self.fields, *map(str, self.fields.values())):
            if not text or _UNFIT.search(text):
                raise ValueError(
                    f"{text!r} cannot stand in a signature, expected text without white space and |"
                )

    def extend(self, fields: Mapping[str, object]) -> "Signature":
        """The signature with more in it; what it says already cannot be said otherwise."""
        twice = sorted(self.fields.keys() & fields)
        if twice:
            raise ValueError(f"{twice[0]} is in the signature {self} already")
        return Signature(self.name, {**self.fields, **fields})

    def __str__(self) -> str:
        pairs = {**self.fields, "lightconv": __version__}
        return "|".join([self.name, *(f"{key}:{value}" for key, value in pairs.items())])


@dataclass(frozen=True)
class Score:
    """A number, what it was made of, and its signature; printed as one line."""

    value: float
    parts: Mapping[str, float]
    signature: Signature

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {_show(part)}" for name, part in self.parts.items())
        return f"{self.signature} = {self.value:.2f}" + (f" ({parts})" if parts else "")

    def plain(self) -> dict[str, Any]:
        """For JSON: the number as it is, not rounded."""
        return {
            "metric": self.signature.name,
            "value": self.value,
            "parts": dict(self.parts),
            "signature": str(self.signature),
        }


def _show(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3f}"
