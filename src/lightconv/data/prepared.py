"""A prepared folder: ids, pipeline, manifest, and statistics of its splits."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lightconv import __version__, files
from lightconv.config import from_dict, read_plain, to_dict
from lightconv.data.config import FilterConfig, PipelineConfig, TaskConfig
from lightconv.data.pipeline import PIPELINE_FILE, PIPELINE_FILES, Pipeline, without_format
from lightconv.data.store import PAIR, TEXT, Store, damaged
from lightconv.files import inside, verify_manifest

# Reasons to leave out an example, in the order of the checks: it is counted once.
REASONS = ("empty", "short", "long", "ratio")
PERCENTILES = (50, 90, 99)
# Bars of a histogram.
BARS = 12


def apply_filters(
    config: FilterConfig, lengths: Sequence[NDArray[Any]]
) -> tuple[NDArray[np.bool_], Counter[str]]:
    """A mask of the examples to keep [n], and counts of the others; lengths [n] for each side."""
    shortest, longest = np.minimum.reduce(lengths), np.maximum.reduce(lengths)
    found = np.full(len(shortest), -1)
    # From the last reason to the first, which overwrites it.
    if config.max_ratio is not None:
        found[longest > config.max_ratio * shortest] = REASONS.index("ratio")
    if config.max_len is not None:
        found[longest > config.max_len] = REASONS.index("long")
    found[shortest < config.min_len] = REASONS.index("short")
    if config.min_len > 0 or len(lengths) > 1:
        found[shortest == 0] = REASONS.index("empty")
    counts = np.bincount(found[found >= 0], minlength=len(REASONS)).tolist()
    return found < 0, Counter({each: n for each, n in zip(REASONS, counts, strict=True) if n})


def count_lengths(counts: NDArray[np.int64], lengths: NDArray[Any]) -> NDArray[np.int64]:
    """Counts of sentences by length, with more sentences of `lengths` [n] added."""
    found = np.bincount(lengths.astype(np.int64), minlength=len(counts))
    found[: len(counts)] += counts
    return found


def find_percentile(counts: NDArray[np.int64], share: float) -> int:
    """The least length that `share` percent of the sentences do not exceed."""
    rank = max(1, int(np.ceil(counts.sum() * share / 100)))
    return int(np.searchsorted(np.cumsum(counts), rank)) if counts.any() else 0


def find_edges(sides: Iterable[NDArray[np.int64]]) -> list[int]:
    """The least length of each bar; the last bar has at most the longest hundredth."""
    most = max((find_percentile(counts, 99) for counts in sides), default=0)
    steps = (digit * 10**power for power in range(20) for digit in (1, 2, 5))
    step = next(step for step in steps if step * (BARS - 1) >= most)
    last = -(-most // step) * step
    # Length 0 should be rare and has a bar of its own.
    return [0, *range(1, last + 2, step)]


def describe_side(counts: NDArray[np.int64], unknown: int, edges: Sequence[int]) -> dict[str, Any]:
    """One side of a split as in statistics.json; counts of its sentences by length."""
    tokens = int(counts @ np.arange(len(counts)))
    ends = [*(edge - 1 for edge in edges[1:]), None]
    return {
        "tokens": tokens,
        "unknown": unknown,
        "unknown_rate": unknown / max(tokens, 1),
        "mean": tokens / max(int(counts.sum()), 1),
        "percentiles": {str(each): find_percentile(counts, each) for each in PERCENTILES},
        "longest": int(np.flatnonzero(counts)[-1]) if counts.any() else 0,
        "histogram": [
            {"from": first, "to": last, "count": int(counts[first:end].sum())}
            for first, last, end in zip(edges, ends, [*edges[1:], None], strict=True)
        ],
    }


def describe_split(
    read: int, dropped: Mapping[str, int], sides: Mapping[str, tuple[NDArray[np.int64], int]]
) -> dict[str, Any]:
    """A split as in statistics.json; of each side its sentences by length, and unknown tokens."""
    lengths = [counts for counts, _ in sides.values()]
    edges = find_edges(lengths)
    return {
        "read": read,
        "kept": int(lengths[0].sum()),
        "dropped": {reason: dropped[reason] for reason in REASONS if dropped.get(reason)},
        "sides": {name: describe_side(*side, edges) for name, side in sides.items()},
    }


FORMAT = "lightconv-prepared"
VERSION = 1
PREPARED_FILE = "prepared.json"
STATISTICS_FILE = "statistics.json"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Everything that decides the contents of a prepared folder."""

    task: TaskConfig
    pipeline: PipelineConfig
    filters: FilterConfig
    # The texts came normalised and tokenised as the pipeline would do it.
    tokenized: bool = False
    # SHA-256 of the owners' file of codes.
    codes: str | None = None
    # Inputs: file or index -> SHA-256.
    inputs: dict[str, str] = field(default_factory=dict)
    # The version that prepared it.
    lightconv: str = __version__


@dataclass(frozen=True, kw_only=True)
class Split:
    """Number of examples of a split, and the digest of its ids."""

    examples: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Contents of prepared.json; `vocabulary` has the number of ids of each side."""

    origin: Origin
    vocabulary: dict[str, int]
    splits: dict[str, Split]


class Prepared:
    """A prepared folder, checked as far as milliseconds allow; `verify` reads all of it.

    sides        source and target, or text
    splits       train, valid, and test if there is one
    vocab_sizes  number of ids of source and target; for language modelling twice the same
    tokenized    texts and references are words already, as `pipeline.words` gives them
    """

    def __init__(self, folder: Path, contents: Contents) -> None:
        self.folder = folder
        self.contents = contents
        self.origin = contents.origin
        self.tokenized = contents.origin.tokenized
        self.task = contents.origin.task
        self.sides = tuple(contents.vocabulary)
        self.splits = tuple(contents.splits)
        sizes = tuple(contents.vocabulary.values())
        self.vocab_sizes = (sizes[0], sizes[-1])
        with _as_damage(folder):
            verify_manifest(folder, quick=True)
            verify_manifest(folder, [PREPARED_FILE, *self.files()])
        self._stores = {split: self._open_store(split) for split in self.splits}

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Opens an untrusted folder; checks sizes, and digests of what is copied into models."""
        folder = Path(folder)
        if not is_prepared(folder):
            found = f"has no {PREPARED_FILE}" if folder.exists() else "does not exist"
            raise ValueError(
                f"{folder} {found}, expected a prepared folder. Run `lightconv prepare` to make it"
            )
        path = inside(folder, PREPARED_FILE)
        with _as_damage(path):
            contents = from_dict(Contents, without_format(read_plain(path), FORMAT, VERSION))
            if tuple(contents.vocabulary) not in (PAIR, TEXT) or not contents.splits:
                raise ValueError("sides or splits are missing")
        return cls(folder, contents)

    @cached_property
    def pipeline(self) -> Pipeline:
        with _as_damage(self.folder):
            pipeline = Pipeline.load(self.folder)
        if pipeline.config != self.origin.pipeline:
            raise damaged(self.folder / PIPELINE_FILE, f"not the one of {PREPARED_FILE}")
        found = pipeline.vocabularies().sizes()
        if found != self.vocab_sizes:
            raise damaged(self.folder, f"{found} tokens, expected {self.vocab_sizes}")
        return pipeline

    def store(self, split: str) -> Store:
        if split not in self._stores:
            names = ", ".join(self.splits)
            raise ValueError(f"{self.folder} has the splits {names}, no {split[:40]!r}")
        return self._stores[split]

    def texts(self, split: str, side: str) -> Iterator[str]:
        """Plain text of one side of validation or test: line i is that of example i."""
        self.store(split).column(side)  # ValueError if there is none
        path = text_file(self.folder, split, side)
        if not path.exists():
            raise ValueError(f"{self.folder} has no plain text of {split}, only its ids")
        with inside(self.folder, path.name).open("rb") as file:
            for line in file:
                yield line.removesuffix(b"\n").decode()

    def references(self, split: str) -> list[str]:
        """Plain text of the target, or of the text, for each example."""
        return list(self.texts(split, self.sides[-1]))

    def statistics(self) -> dict[str, Any]:
        found: dict[str, Any] = read_plain(inside(self.folder, STATISTICS_FILE))
        return found

    def counts(self) -> dict[str, int]:
        """Examples of each split; tokens of the training text, and types, of the last side."""
        sides = self.statistics()["splits"]["train"]["sides"]
        examples = {name: split.examples for name, split in self.contents.splits.items()}
        return examples | {"tokens": sides[self.sides[-1]]["tokens"], "types": self.vocab_sizes[-1]}

    def files(self) -> dict[str, Path]:
        """Files that belong into a model folder: steps, codes and vocabularies."""
        present = [name for name in PIPELINE_FILES if (self.folder / name).exists()]
        return {name: inside(self.folder, name) for name in present}

    def verify(self, split: str = "", *, quick: bool = False) -> None:
        """Raises ValueError if a file, or one of a split, is not as it was written.

        quick  compare sizes only
        """
        names = [path.name for path in self.folder.glob(f"{split}.*")] if split else []
        with _as_damage(self.folder):
            verify_manifest(self.folder, names, quick=quick)

    def _open_store(self, split: str) -> Store:
        store = Store(self.folder, split)
        path = store.column(store.sides[0]).paths[0]
        expected, sizes = self.contents.splits[split], tuple(self.contents.vocabulary.values())
        if store.sides != self.sides or store.vocab != sizes:
            raise damaged(path, f"ids of another vocabulary {store.vocab}, expected {sizes}")
        if (len(store), store.digest) != (expected.examples, expected.digest):
            found = f"{len(store)} examples of another preparation"
            raise damaged(path, f"{found}, expected {expected.examples}")
        return store


@contextmanager
def _as_damage(path: Path) -> Iterator[None]:
    """Turns ValueErrors of the block into those of damaged data."""
    try:
        yield
    except ValueError as error:
        raise damaged(path, str(error)) from None


def text_file(folder: Path, split: str, side: str) -> Path:
    return folder / f"{split}.{side}.txt"


def write_contents(folder: Path, contents: Contents, statistics: Mapping[str, Any]) -> None:
    table = {"format": FORMAT, "version": VERSION, **to_dict(contents)}
    for name, data in ((PREPARED_FILE, table), (STATISTICS_FILE, statistics)):
        text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
        files.replace_file(folder / name, f"{text}\n".encode())


def is_prepared(folder: Path) -> bool:
    """True if a folder looks like one that `lightconv prepare` wrote."""
    return (folder / PREPARED_FILE).is_file()
