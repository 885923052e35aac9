"""How much of a test set is nearly in training: by family of packages or page, and by chance.

    python -m benchmarks.leaks debian-en-de debian-lm     fetched by apt, or from the cache

A test line leaks if training has at least 80 % of its 4-grams of words (source side).

    random          as many lines as the test set has, drawn from all by chance
    by hash alone   by a hash of the family or the page, before near-duplicates are left out
    corpus          as `lightconv prepare` has it
"""

import argparse
import random
import sys
from collections.abc import Sequence
from unittest import mock

from benchmarks.pages import table
from lightconv.corpora import open_corpus
from lightconv.corpora.splits import leaks
from lightconv.data.corpus import SPLITS, Example
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
