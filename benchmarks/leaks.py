"""Share of test lines with near-duplicates in training, for three ways to split a corpus.

    python -m benchmarks.leaks debian-en-de debian-lm     fetched by apt, or from the cache

A test line leaks if at least 80 % of its word 4-grams occur in training (source side).

    random          a random test set of the same size
    by hash alone   a hash of the package family or page, before near-duplicates are removed
    corpus          the split of `lightconv prepare`
"""

import argparse
import random
import sys
from collections.abc import Sequence
from unittest import mock

from benchmarks.pages import table
from lightconv.corpora import open_corpus
from lightconv.corpora.splits import leaks
from lightconv.data.text import SPLITS, Example
from lightconv.files import cache_folder


def measure(name: str) -> list[str]:
    """A row: name, lines of the test set, and three shares."""
    with mock.patch("lightconv.corpora.splits.leaks", lambda train, test: [False] * len(test)):
        by_group = _texts(name)
    texts = _texts(name)
    everything = [text for split in SPLITS for text in by_group[split]]
    random.Random(0).shuffle(everything)
    tested = len(texts["test"])
    shares = [
        _share(everything[tested:], everything[:tested]),
        _share(by_group["train"], by_group["test"]),
        _share(texts["train"], texts["test"]),
    ]
    return [name, f"{tested:,}", *(f"{share:.1%}" for share in shares)]


def _texts(name: str) -> dict[str, list[str]]:
    corpus = open_corpus(name, None, cache_folder() / "corpora", print)
    return {split: [_source(each) for each in read()] for split, read in corpus.splits.items()}


def _source(example: Example) -> str:
    return example[0]


def _share(train: Sequence[str], test: Sequence[str]) -> float:
    return sum(leaks(train, test)) / len(test)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", metavar="NAME", nargs="+")
    options = parser.parse_args(argv)
    rows = [measure(name) for name in options.names]
    print(table(["corpus", "test lines", "random", "by hash alone", "corpus"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
