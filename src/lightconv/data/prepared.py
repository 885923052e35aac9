"""A prepared folder: what `lightconv prepare` leaves for training, evaluation and decoding.

data = Prepared.open("data/debian")
data.task, data.pipeline, data.vocab_sizes
data.store("train")             # ids
data.references("valid")        # plain text, one line for each example
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from lightconv.config import from_dict, read_plain, to_dict
from lightconv.data.codes import PAIR_CODES, SHARED_CODES
from lightconv.data.config import TaskConfig
from lightconv.data.extract import text_file
from lightconv.data.layout import PAIR, TEXT, damaged
from lightconv.data.origin import Origin
from lightconv.data.pipeline import PIPELINE_FILE, Pipeline
from lightconv.data.store import Store
from lightconv.data.vocabulary import PAIR_FILES, SHARED_FILE
from lightconv.files import MANIFEST_FILE, inside, read_manifest, verify_manifest, write_file

FORMAT = "lightconv-prepared"
VERSION = 1
PREPARED_FILE = "prepared.json"
STATISTICS_FILE = "statistics.json"
# What goes from here into every model: steps, codes and vocabularies.
PIPELINE_FILES = (PIPELINE_FILE, SHARED_CODES, *PAIR_CODES, SHARED_FILE, *PAIR_FILES)


@dataclass(frozen=True, kw_only=True)
class Split:
    """How many examples a split has, and the digest of its ids."""

    examples: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What prepared.json says."""

    origin: Origin
    # How many ids each side has.
    vocabulary: dict[str, int]
    splits: dict[str, Split]


class Prepared:
    """A folder that was checked as far as costs milliseconds: `verify` reads all of it."""

    def __init__(self, folder: Path, contents: Contents) -> None:
        self.folder = folder
        self.contents = contents
        self.origin = contents.origin

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Checks version, the size of every file, and the bytes of those that models are made of.

        The folder may come from a stranger: ValueError says which file is wrong and what to run.
        """
        folder = Path(folder)
        found = cls(folder, _read(folder))
        found._check_files()
        for split in found.splits:
            found.store(split)
        return found

    def __repr__(self) -> str:
        return f"Prepared({str(self.folder)!r}, {self.task.corpus}: {', '.join(self.splits)})"

    @property
    def task(self) -> TaskConfig:
        """What is learned from what."""
        return self.origin.task

    @property
    def sides(self) -> tuple[str, ...]:
        """Source and target, or text."""
        return tuple(self.contents.vocabulary)

    @property
    def splits(self) -> tuple[str, ...]:
        """train, valid, and test if there is one."""
        return tuple(self.contents.splits)

    @property
    def vocab_sizes(self) -> tuple[int, int]:
        """How many ids source and target have; for language modelling twice the same."""
        return self.contents.vocabulary[self.sides[0]], self.contents.vocabulary[self.sides[-1]]

    @property
    def tokenized(self) -> bool:
        """Whether texts and references are words already, as `pipeline.words` would give them."""
        return self.origin.tokenized

    @cached_property
    def pipeline(self) -> Pipeline:
        """From text to ids and back."""
        try:
            pipeline = Pipeline.load(self.folder)
        except ValueError as error:
            raise damaged(self.folder, str(error)) from None
        if pipeline.config != self.origin.pipeline:
            raise damaged(self.folder / PIPELINE_FILE, f"not the one of {PREPARED_FILE}")
        if pipeline.vocabularies().sizes() != self.vocab_sizes:
            found = _numbers(pipeline.vocabularies().sizes())
            raise damaged(self.folder, f"{found} tokens, expected {_numbers(self.vocab_sizes)}")
        return pipeline

    def store(self, split: str) -> Store:
        """The ids of a split, mapped."""
        self._check_split(split)
        store = Store.open(self.folder, split)
        expected = self.contents.splits[split]
        if store.sides != self.sides or store.vocab != tuple(self.contents.vocabulary.values()):
            raise damaged(
                store.side(store.sides[0]).paths[0],
                f"ids of another vocabulary ({_numbers(store.vocab)}), expected "
                f"{_numbers(self.contents.vocabulary.values())}",
            )
        if (len(store), store.digest) != (expected.examples, expected.digest):
            raise damaged(
                store.side(store.sides[0]).paths[0],
                f"{len(store)} examples of another preparation, expected {expected.examples}",
            )
        return store

    def texts(self, split: str, side: str) -> Iterator[str]:
        """The plain text of one side of validation or test, line by line; example i is line i."""
        self._check_split(split)
        if side not in self.sides:
            raise ValueError(f"{self.folder} has the sides {' and '.join(self.sides)}, no {side!r}")
        path = text_file(self.folder, split, side)
        if not path.exists():
            raise ValueError(f"{self.folder} has no plain text of {split}, only its ids")
        with inside(self.folder, path.name).open("rb") as file:
            for line in file:
                yield line.removesuffix(b"\n").decode()

    def references(self, split: str) -> list[str]:
        """What should be said for each example: the plain text of the target, or of the text."""
        return list(self.texts(split, self.sides[-1]))

    def statistics(self) -> dict[str, Any]:
        """What statistics.json says."""
        found: dict[str, Any] = read_plain(inside(self.folder, STATISTICS_FILE))
        return found

    def files(self) -> dict[str, Path]:
        """What belongs into a model folder: steps, codes and vocabularies."""
        return {
            name: inside(self.folder, name)
            for name in PIPELINE_FILES
            if (self.folder / name).exists()
        }

    def verify(self) -> None:
        """Reads everything and raises ValueError if a byte is not as it was written."""
        _verify(self.folder, quick=False)

    def _check_files(self) -> None:
        _verify(self.folder, quick=True)
        listed = read_manifest(self.folder)
        for name in (PREPARED_FILE, *self.files()):
            path = self.folder / name
            if name not in listed:
                raise damaged(path, f"not listed in {MANIFEST_FILE}")
            if hashlib.sha256(path.read_bytes()).hexdigest() != listed[name]["sha256"]:
                raise damaged(path, f"changed since it was written, by {MANIFEST_FILE}")

    def _check_split(self, split: str) -> None:
        if split not in self.contents.splits:
            raise ValueError(
                f"{self.folder} has the splits {', '.join(self.splits)}, no {split[:40]!r}"
            )


def write_contents(folder: Path, contents: Contents, statistics: Mapping[str, Any]) -> None:
    """Writes prepared.json and statistics.json."""
    table = {"format": FORMAT, "version": VERSION, **to_dict(contents)}
    for name, data in ((PREPARED_FILE, table), (STATISTICS_FILE, statistics)):
        (folder / name).unlink(missing_ok=True)
        text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
        write_file(folder / name, f"{text}\n".encode())


def is_prepared(folder: Path) -> bool:
    """Whether a folder looks like what `lightconv prepare` leaves."""
    return (folder / PREPARED_FILE).is_file()


def _read(folder: Path) -> Contents:
    """What prepared.json says, checked."""
    if not folder.is_dir():
        kind = "is a file" if folder.exists() else "does not exist"
        raise ValueError(
            f"{folder} {kind}, expected a prepared folder. Run `lightconv prepare` to make it"
        )
    if not is_prepared(folder):
        raise ValueError(
            f"{folder} has no {PREPARED_FILE}, expected a prepared folder. Run `lightconv prepare` "
            "to make one"
        )
    path = inside(folder, PREPARED_FILE)
    try:
        table = read_plain(path)
    except ValueError as error:
        raise damaged(path, str(error)) from None
    if not isinstance(table, dict) or table.pop("format", None) != FORMAT:
        raise damaged(path, f'no prepared data of lightconv, expected "format": "{FORMAT}"')
    version = table.pop("version", None)
    if version != VERSION or isinstance(version, bool):
        raise damaged(path, f"version {str(version)[:20]} of the format, expected {VERSION}")
    try:
        contents = from_dict(Contents, table)
    except ValueError as error:
        raise damaged(path, str(error)) from None
    if tuple(contents.vocabulary) not in (PAIR, TEXT) or not contents.splits:
        raise damaged(path, "sides or splits are missing")
    return contents


def _verify(folder: Path, *, quick: bool) -> None:
    try:
        verify_manifest(folder, quick=quick)
    except ValueError as error:
        raise damaged(folder, str(error)) from None


def _numbers(sizes: Any) -> str:
    return " and ".join(map(str, sizes))
