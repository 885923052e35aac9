"""The last stage of preparation: the words of a split become ids in a store."""

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightconv.console import Display
from lightconv.data.config import FilterConfig, PipelineConfig
from lightconv.data.corpus import Example
from lightconv.data.extract import words_file
from lightconv.data.filters import count_reasons, find_reasons
from lightconv.data.pipeline import Pipeline
from lightconv.data.statistics import Lengths, describe_side, find_edges
from lightconv.data.store import StoreWriter
from lightconv.data.vocabulary import UNK
from lightconv.processes import spread

# What a process gets at once: so many lines of each side, or bytes.
MOST_LINES = 2000
MOST_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """What is done with the words of one split.

    pipeline  the folder it is in, and a digest, so that what is remembered of it is not of another
    filters   which examples are left out by their tokens; None keeps all
    """

    pipeline: tuple[str, str]
    filters: FilterConfig | None


class Encoded(NamedTuple):
    """Some examples: for each side all ids, the length of each sentence, and how many unknown."""

    ids: list[NDArray[np.uint32]]
    sizes: list[NDArray[np.int64]]
    unknown: list[int]
    dropped: Counter[str]


def encode(
    folder: Path,
    split: str,
    work: Encoding,
    vocab: dict[str, int],
    *,
    out: Path,
    processes: int,
    display: Display,
    total: int,
) -> dict[str, Any]:
    """Writes the store of a split into `out`; its statistics, for the record.

    folder  with the words that `extract` wrote
    vocab   how many ids each side has
    """
    lengths = [Lengths() for _ in vocab]
    unknown = [0] * len(vocab)
    dropped: Counter[str] = Counter()
    paths = [words_file(folder, split, side) for side in vocab]
    done = 0
    with StoreWriter(out, split, vocab) as writer:
        for part in spread(partial(encode_part, work), blocks(paths), processes):
            if len(part.sizes[0]):
                writer.append(*map(_split, part.ids, part.sizes))
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


def encode_part(work: Encoding, sides: Sequence[bytes]) -> Encoded:
    """What a process does: lines of words -> ids."""
    pipeline = _wordwise(*work.pipeline)
    found = [
        pipeline.encode(side, lines.decode().split("\n")[:-1]) for side, lines in enumerate(sides)
    ]
    sizes = [np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)) for rows in found]
    ids = [
        np.fromiter(chain.from_iterable(rows), dtype=np.uint32, count=int(size.sum()))
        for rows, size in zip(found, sizes, strict=True)
    ]
    dropped: Counter[str] = Counter()
    if work.filters is not None:
        reasons = find_reasons(work.filters, sizes)
        dropped = count_reasons(reasons)
        if dropped:
            ids = [
                all_[np.repeat(reasons < 0, size)] for all_, size in zip(ids, sizes, strict=True)
            ]
            sizes = [size[reasons < 0] for size in sizes]
    return Encoded(ids, sizes, [int((all_ == UNK).sum()) for all_ in ids], dropped)


def without_steps(config: PipelineConfig) -> PipelineConfig:
    """A pipeline for what are words already."""
    sides = tuple(type(side)(lang=side.lang) for side in config.sides)
    return PipelineConfig(sides=sides, subword=config.subword)


def read_words(folder: Path, split: str, sides: Sequence[str]) -> Iterator[Example]:
    """The words of a split, example by example."""
    for lines in blocks([words_file(folder, split, side) for side in sides]):
        yield from zip(*(side.decode().split("\n")[:-1] for side in lines), strict=True)


def blocks(paths: Sequence[Path]) -> Iterator[tuple[bytes, ...]]:
    """As many lines of each file, as much at a time as one process should have in memory."""
    with ExitStack() as stack:
        files: list[BinaryIO] = [stack.enter_context(path.open("rb")) for path in paths]
        rows: list[tuple[bytes, ...]] = []
        size = 0
        for row in zip(*files, strict=True):
            rows.append(row)
            size += sum(map(len, row))
            if len(rows) >= MOST_LINES or size >= MOST_BYTES:
                yield tuple(map(b"".join, zip(*rows, strict=True)))
                rows, size = [], 0
        if rows:
            yield tuple(map(b"".join, zip(*rows, strict=True)))


@functools.lru_cache(maxsize=1)
def _wordwise(folder: str, digest: str) -> Pipeline:
    pipeline = Pipeline.load(folder)
    return Pipeline(without_steps(pipeline.config), pipeline.codes, pipeline.vocabularies())


def _split(ids: NDArray[Any], sizes: NDArray[np.int64]) -> list[NDArray[Any]]:
    return np.split(ids, np.cumsum(sizes)[:-1])
