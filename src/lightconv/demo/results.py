"""What the demo has found so far, in one JSON file: each stage is written when it is done.

The same command again reads it and does what is missing.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from lightconv import __version__
from lightconv.files import write_file

RESULTS_FILE = "results.json"
# Counted up when what is measured or written changes.
VERSION = 1

Plain = dict[str, Any]


@dataclass
class Results:
    """Plain values only; what is None has not been done yet.

    key       what all of it depends on: recipe, data, sizes
    data      about the corpus: name, examples of each split, invented or not, words read
    training  about the run: parameters, tokens, seconds; `log` is its learning curve
    scores    for each system, the model first: scores as `Score.plain` writes them
    examples  texts that were not in training: source, output, reference
    growth    a `growth.Row` for each length
    kernels   `learned` and `dynamic`, lists of `kernels.Kernels`; the pieces of the text in `text`
    machine   what the figures were measured on
    """

    key: str
    data: Plain | None = None
    training: Plain | None = None
    scores: dict[str, list[Plain]] | None = None
    examples: list[Plain] | None = None
    growth: list[Plain] | None = None
    kernels: Plain | None = None
    machine: dict[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return all(getattr(self, each.name) is not None for each in fields(self))

    @classmethod
    def read(cls, folder: Path, key: str) -> Self:
        """What is known for this key; nothing if the file is of another, or not ours."""
        try:
            found = json.loads((folder / RESULTS_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return cls(key)
        names = {each.name for each in fields(cls)}
        if not isinstance(found, dict) or found.keys() != names or found["key"] != key:
            return cls(key)
        return cls(**found)

    def write(self, folder: Path) -> None:
        """Replaces the file."""
        replace_file(folder / RESULTS_FILE, json.dumps(asdict(self), ensure_ascii=False).encode())


def replace_file(path: Path, data: bytes) -> None:
    """Writes a file anew, in full or not at all."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    write_file(fresh, data)
    fresh.replace(path)


def make_key(*parts: Any) -> str:
    """A digest of all that decides the results, this version of the demo among it."""
    text = json.dumps([VERSION, __version__, *parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def plain(values: Sequence[Any]) -> list[Plain]:
    """Dataclasses as dicts."""
    return [asdict(value) for value in values]
