"""Stages of a preparation, spread over processes: texts to words, words to ids.

Words lie in one file per side in the work folder, a line for each example. Plain text of validation
and test goes into the result, for evaluation.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from lightconv.console import Display
from lightconv.data.config import FilterConfig, PipelineConfig, SideConfig
from lightconv.data.corpus import Example, Reader
from lightconv.data.pipeline import Pipeline
from lightconv.data.prepared import text_file
from lightconv.data.statistics import REASONS, Lengths, describe_side, find_edges
from lightconv.data.store import StoreWriter
from lightconv.data.vocabulary import UNK
from lightconv.data.words import Steps
from lightconv.files import sync
from lightconv.processes import spread

# A work item has at most this many examples, and about this many characters or bytes.
MOST_EXAMPLES = 1000
MOST_CHARACTERS = 1 << 20
# With fewer items the start of processes takes longer than their work.
WORTH_PROCESSES = 5

Row = TypeVar("Row", Example, tuple[bytes, ...])


def words_file(folder: Path, split: str, side: str) -> Path:
    """The file of the words of one side of a split."""
    return folder / f"{split}.{side}.words"


def write_words(
    read: Reader,
    split: str,
    sides: Mapping[str, SideConfig],
    filters: FilterConfig | None,
    *,
    words: Path,
    texts: Path | None,
    processes: int,
    display: Display,
    expected: int | None,
) -> dict[str, Any]:
    """Writes the words of a split into the folder `words`, and plain text into `texts`; counts."""
    paths = [words_file(words, split, side) for side in sides]
    if texts is not None:
        paths += [text_file(texts, split, side) for side in sides]
    source = pieces(read())
    begin = list(islice(source, WORTH_PROCESSES))
    idle = all(config == SideConfig(lang=config.lang) for config in sides.values())
    if len(begin) < WORTH_PROCESSES or idle:
        processes = 1
    done, dropped = 0, Counter[str]()
    work = partial(_to_words, dict(sides), filters, texts is not None)
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in paths]
        for part in spread(work, chain(begin, source), processes):
            for file, lines in zip(files, part.lines, strict=True):
                file.write(lines)
            done += part.read
            dropped += part.dropped
            display.show(f"reading {split}", done, expected)
    for path in paths:
        sync(path)
    display.end()
    return {"read": done, "kept": done - dropped.total(), "dropped": dict(dropped)}


class _Words(NamedTuple):
    read: int
    dropped: Counter[str]
    lines: list[bytes]


def _to_words(
    sides: dict[str, SideConfig], filters: FilterConfig | None, plain: bool, examples: list[Example]
) -> _Words:
    for example in examples:
        if len(example) != len(sides):
            raise ValueError(f"an example has {len(example)} texts, expected {' and '.join(sides)}")
    texts = [[text.replace("\n", " ") for text in column] for column in zip(*examples, strict=True)]
    words = [
        list(map(_steps(config).apply, column))
        for config, column in zip(sides.values(), texts, strict=True)
    ]
    dropped = Counter[str]()
    if filters is not None:
        if filters.unit == "words":
            lengths = [np.array([len(text.split()) for text in column]) for column in words]
        else:  # tokens are not known yet: only empty texts are left out
            least = min(filters.min_len, 1)
            filters = replace(filters, min_len=least, max_len=None, max_ratio=None)
            lengths = [np.array([bool(text.strip()) for text in column], int) for column in words]
        kept, dropped = apply_filters(filters, lengths)
        words = [list(compress(column, kept)) for column in words]
    lines = ["".join(f"{text}\n" for text in column).encode() for column in words + texts * plain]
    return _Words(len(examples), dropped, lines)


@lru_cache(maxsize=4)  # tokenisers take their time to be made
def _steps(config: SideConfig) -> Steps:
    return Steps(config)


def pieces(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows in lists that one process should have in memory at a time."""
    piece: list[Row] = []
    characters = 0
    for row in rows:
        piece.append(row)
        characters += sum(map(len, row))
        if len(piece) >= MOST_EXAMPLES or characters >= MOST_CHARACTERS:
            yield piece
            piece, characters = [], 0
    if piece:
        yield piece


def write_ids(
    folder: Path,
    split: str,
    vocab: Mapping[str, int],
    filters: FilterConfig | None,
    *,
    pipeline: str,
    out: Path,
    processes: int,
    display: Display,
    total: int,
) -> dict[str, Any]:
    """Writes the store of a split; its statistics.

    folder    with the words of the split
    vocab     number of ids of each side
    pipeline  digest of the pipeline in the folder `out`
    """
    lengths = [Lengths() for _ in vocab]
    unknown, dropped, done = [0] * len(vocab), Counter[str](), 0
    work = partial(_to_ids, str(out), pipeline, filters)
    blocks = read_blocks([words_file(folder, split, side) for side in vocab])
    with StoreWriter(out, split, vocab) as writer:
        for part in spread(work, blocks, processes):
            if len(part.sizes[0]):
                ends = [np.cumsum(sizes)[:-1] for sizes in part.sizes]
                writer.append(*map(np.split, part.ids, ends))
            for side, sizes in enumerate(part.sizes):
                lengths[side].add(sizes)
                unknown[side] += part.unknown[side]
            dropped += part.dropped
            done += len(part.sizes[0]) + part.dropped.total()
            display.show(f"encoding {split}", done, total)
    display.end()
    edges = find_edges(lengths)
    return {
        "kept": writer.examples,
        "dropped": dict(dropped),
        "digest": writer.digest,
        "sides": {
            name: describe_side(lengths[side], unknown[side], edges)
            for side, name in enumerate(vocab)
        },
    }


class _Ids(NamedTuple):
    """For each side all ids, the length of each sentence, and the number of unknown tokens."""

    ids: list[NDArray[np.uint32]]
    sizes: list[NDArray[np.int64]]
    unknown: list[int]
    dropped: Counter[str]


def _to_ids(folder: str, digest: str, filters: FilterConfig | None, block: Sequence[bytes]) -> _Ids:
    pipeline = _load(folder, digest)
    rows = [pipeline.encode(side, _lines(lines)) for side, lines in enumerate(block)]
    sizes = [np.fromiter(map(len, each), np.int64, count=len(each)) for each in rows]
    ids = [
        np.fromiter(chain.from_iterable(each), np.uint32, count=int(size.sum()))
        for each, size in zip(rows, sizes, strict=True)
    ]
    dropped = Counter[str]()
    if filters is not None:
        kept, dropped = apply_filters(filters, sizes)
        ids = [all_[np.repeat(kept, size)] for all_, size in zip(ids, sizes, strict=True)]
        sizes = [size[kept] for size in sizes]
    return _Ids(ids, sizes, [int((all_ == UNK).sum()) for all_ in ids], dropped)


@lru_cache(maxsize=1)
def _load(folder: str, digest: str) -> Pipeline:
    pipeline = Pipeline.load(folder)
    return Pipeline(without_steps(pipeline.config), pipeline.codes, pipeline.vocabularies())


def without_steps(config: PipelineConfig) -> PipelineConfig:
    """The pipeline of texts that are words already."""
    return replace(config, sides=tuple(SideConfig(lang=side.lang) for side in config.sides))


def read_words(folder: Path, split: str, sides: Sequence[str]) -> Iterator[Example]:
    """The words of a split, example by example."""
    for block in read_blocks([words_file(folder, split, side) for side in sides]):
        yield from zip(*map(_lines, block), strict=True)


def read_blocks(paths: Sequence[Path]) -> Iterator[tuple[bytes, ...]]:
    """Work items: the same lines of each file."""
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("rb")) for path in paths]
        for piece in pieces(zip(*files, strict=True)):
            yield tuple(map(b"".join, zip(*piece, strict=True)))


def _lines(block: bytes) -> list[str]:
    return block.decode().split("\n")[:-1]


def apply_filters(
    config: FilterConfig, lengths: Sequence[NDArray[Any]]
) -> tuple[NDArray[np.bool_], Counter[str]]:
    """Which examples are kept [n], and how many are not, by reason; lengths [n] for each side."""
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
