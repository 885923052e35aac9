"""The first stage of preparation: examples are read once and become words on the disk.

A split has one file of words for each side in the work folder, a line for each example; what is
empty, or by its words too long, is already left out of training. The plain text of validation and
test goes into the result, for evaluation.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from lightconv.console import Display
from lightconv.data.config import FilterConfig, SideConfig
from lightconv.data.corpus import Example, Reader
from lightconv.data.filters import before_tokens, count_reasons, find_reasons
from lightconv.data.words import Steps
from lightconv.files import sync
from lightconv.processes import spread

# What a process gets at once: so many examples, or characters.
MOST_EXAMPLES = 1000
MOST_CHARACTERS = 1 << 20
# With fewer of these it takes longer to start processes than to do their work.
WORTH_PROCESSES = 5


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """What is done with the texts of one split.

    sides    by name, how text becomes words
    filters  which examples are left out; None keeps all
    plain    whether the text is wanted as it is, too
    """

    sides: dict[str, SideConfig]
    filters: FilterConfig | None
    plain: bool


class Extracted(NamedTuple):
    """Some examples: for each side the lines of words, and of plain text if it is wanted."""

    read: int
    kept: int
    dropped: Counter[str]
    words: list[bytes]
    texts: list[bytes]


def words_file(folder: Path, split: str, side: str) -> Path:
    """Where the words of one side of a split are."""
    return folder / f"{split}.{side}.words"


def text_file(folder: Path, split: str, side: str) -> Path:
    """Where the plain text of one side of a split is."""
    return folder / f"{split}.{side}.txt"


def extract(
    read: Reader,
    split: str,
    work: Extraction,
    *,
    words: Path,
    texts: Path,
    processes: int,
    display: Display,
    expected: int | None,
) -> dict[str, Any]:
    """Writes the files of a split into the folders `words` and `texts`; counts, for the record."""
    done = Extracted(0, 0, Counter(), [], [])
    paths = [words_file(words, split, side) for side in work.sides]
    if work.plain:
        paths += [text_file(texts, split, side) for side in work.sides]
    source = pieces(read())
    begin = list(islice(source, WORTH_PROCESSES))
    if len(begin) < WORTH_PROCESSES or all(map(_does_nothing, work.sides.values())):
        processes = 1
    with ExitStack() as stack:
        files: list[BinaryIO] = [stack.enter_context(path.open("wb")) for path in paths]
        for part in spread(partial(extract_part, work), chain(begin, source), processes):
            for file, lines in zip(files, (*part.words, *part.texts), strict=True):
                file.write(lines)
            dropped = done.dropped + part.dropped
            done = Extracted(done.read + part.read, done.kept + part.kept, dropped, [], [])
            display.show(f"reading {split}", done.read, expected)
    for path in paths:
        sync(path)
    display.end()
    return {"read": done.read, "kept": done.kept, "dropped": dict(done.dropped)}


def pieces(examples: Iterable[Example]) -> Iterator[list[Example]]:
    """Examples, as many at a time as one process should have in memory."""
    piece: list[Example] = []
    characters = 0
    for example in examples:
        piece.append(example)
        characters += sum(map(len, example))
        if len(piece) >= MOST_EXAMPLES or characters >= MOST_CHARACTERS:
            yield piece
            piece, characters = [], 0
    if piece:
        yield piece


def extract_part(work: Extraction, examples: list[Example]) -> Extracted:
    """What a process does."""
    for example in examples:
        if len(example) != len(work.sides):
            raise ValueError(
                f"an example has {len(example)} texts, expected {' and '.join(work.sides)}"
            )
    columns = [[_one_line(example[i]) for example in examples] for i in range(len(work.sides))]
    words = [
        list(map(_steps(config).apply, column))
        for config, column in zip(work.sides.values(), columns, strict=True)
    ]
    dropped: Counter[str] = Counter()
    if work.filters is not None:
        reasons = _reasons(work.filters, words)
        dropped = count_reasons(reasons)
        if dropped:
            kept = np.flatnonzero(reasons < 0).tolist()
            words = [[column[row] for row in kept] for column in words]
    return Extracted(
        read=len(examples),
        kept=len(words[0]),
        dropped=dropped,
        words=list(map(_lines, words)),
        texts=list(map(_lines, columns)) if work.plain else [],
    )


def _reasons(filters: FilterConfig, words: Sequence[Sequence[str]]) -> Any:
    if filters.unit == "words":
        lengths = [np.array([len(text.split()) for text in column]) for column in words]
        return find_reasons(filters, lengths)
    lengths = [np.array([bool(text.strip()) for text in column], dtype=int) for column in words]
    return find_reasons(before_tokens(filters), lengths)


@functools.lru_cache(maxsize=4)  # tokenisers take their time to be made
def _steps(config: SideConfig) -> Steps:
    return Steps(config)


def _does_nothing(config: SideConfig) -> bool:
    return config == SideConfig(lang=config.lang)


def _one_line(text: str) -> str:
    return text.replace("\n", " ") if "\n" in text else text


def _lines(texts: Sequence[str]) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()
