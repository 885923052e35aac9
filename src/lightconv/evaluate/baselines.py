"""Baselines without a model: copy the source; the target of the nearest training source; unigrams.

A trained model must beat them.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from lightconv.data.layout import PAIR
from lightconv.data.prepared import Prepared
from lightconv.data.vocabulary import EOS
from lightconv.evaluate.system import Forms, count_lines, of_ids, of_texts

# Training examples that are searched; more would take hours in a large corpus.
MOST_EXAMPLES = 200_000
# Tokens in more than this share of the examples are ignored in the search for the nearest.
COMMON = 0.1

Ids = NDArray[np.int64]


def copy_baseline(prepared: Prepared, split: str, most: int | None = None) -> Forms:
    """The first `most` sources as their own outputs."""
    texts = list(islice(prepared.texts(split, PAIR[0]), most))
    return of_texts(prepared, texts, tokenized=prepared.tokenized)


def nearest_baseline(prepared: Prepared, split: str, most: int | None = None) -> Forms:
    """For each source the target of the training example with the nearest source."""
    train = prepared.store("train")
    rows = find_nearest(_sources(prepared, "train", MOST_EXAMPLES), _sources(prepared, split, most))
    return of_ids(prepared.pipeline, (train[row][-1].tolist() for row in rows))


def find_nearest(known: Sequence[Ids], asked: Sequence[Ids]) -> list[int]:
    """For each asked sequence [n] of ids the row of the nearest known one, the first of equals.

    Nearness is the cosine of the sets of tokens, each weighted by log(1 + examples / examples that
    have it); common tokens are ignored.
    """
    found_in: dict[int, list[int]] = defaultdict(list)
    for row, ids in enumerate(known):
        for token in set(ids.tolist()):
            found_in[token].append(row)
    most = max(1.0, COMMON * len(known))
    postings = {
        token: np.array(rows, dtype=np.int64)
        for token, rows in found_in.items()
        if len(rows) <= most
    }
    weights = {
        token: float(np.log(1.0 + len(known) / len(rows)) ** 2) for token, rows in postings.items()
    }
    norms = np.full(len(known), 1e-9)
    for token, rows in postings.items():
        norms[rows] += weights[token]

    def nearest(tokens: set[int]) -> int:
        sums = np.zeros(len(norms))
        for token in sorted(tokens & postings.keys()):
            sums[postings[token]] += weights[token]
        return int((sums / np.sqrt(norms)).argmax())

    return [nearest(set(ids.tolist())) for ids in asked]


def unigram_baseline(prepared: Prepared, split: str, most: int | None = None) -> float:
    """Log-probability of a split's first `most` texts by the frequencies of training.

    EOS counts as a token; every count is increased by one.
    """
    train, store = prepared.store("train"), prepared.store(split)
    side = train.sides[-1]
    counts = np.bincount(train.side(side).tokens, minlength=prepared.vocab_sizes[-1]) + 1.0
    counts[EOS] += len(train)
    logs = np.log(counts / counts.sum())
    rows = range(count_lines(prepared, split, most))
    return float(sum(logs[store[row][-1]].sum() + logs[EOS] for row in rows))


def _sources(prepared: Prepared, split: str, most: int | None) -> list[Ids]:
    store = prepared.store(split)
    rows = range(count_lines(prepared, split, most))
    return [store[row][0].astype(np.int64) for row in rows]
