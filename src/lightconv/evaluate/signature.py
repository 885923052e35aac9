"""Scores with signatures: compact strings of everything that influenced a number."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lightconv import __version__


@dataclass(frozen=True)
class Signature:
    """`name|key:value|key:value`, with the version of this library at the end."""

    name: str
    fields: Mapping[str, object]

    def __post_init__(self) -> None:
        for text in (self.name, *self.fields, *map(str, self.fields.values())):
            if not text or re.search(r"[|\s]", text):
                raise ValueError(
                    f"{text!r} in a signature, expected text without white space and |"
                )

    def extend(self, fields: Mapping[str, object]) -> "Signature":
        """A copy with further fields; ValueError if one of them is set already."""
        twice = sorted(self.fields.keys() & fields)
        if twice:
            raise ValueError(f"{twice[0]} is already in the signature {self}")
        return Signature(self.name, {**self.fields, **fields})

    def __str__(self) -> str:
        pairs = {**self.fields, "lightconv": __version__}
        return "|".join([self.name, *(f"{key}:{value}" for key, value in pairs.items())])


@dataclass(frozen=True)
class Score:
    """A value, its parts and its signature; printed as one line."""

    value: float
    parts: Mapping[str, float]
    signature: Signature

    def __str__(self) -> str:
        shown = [
            f"{name} {part}" if isinstance(part, int) else f"{name} {part:.3f}"
            for name, part in self.parts.items()
        ]
        return f"{self.signature} = {self.value:.2f}" + (f" ({', '.join(shown)})" if shown else "")

    def plain(self) -> dict[str, Any]:
        """A JSON object with unrounded numbers."""
        name, text = self.signature.name, str(self.signature)
        return {"metric": name} | asdict(self) | {"signature": text}
