"""What a system without a model would score: its own source, or what training said of the nearest.

A model that is not above these has learned nothing worth having.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from lightconv.data.prepared import Prepared
from lightconv.data.store import PAIR, Store
from lightconv.data.vocabulary import EOS
from lightconv.evaluate.forms import Forms, of_ids, of_texts

# Training examples that are looked through; more would take hours in a large corpus.
MOST_EXAMPLES = 200_000
# A token in more than this share of the examples says nothing about which one is near.
COMMON = 0.1


def copy_floor(prepared: Prepared, split: str, most: int | None = None) -> Forms:
    """Every source, or the first `most`, as its own output."""
    texts = list(islice(prepared.texts(split, PAIR[0]), most))
    return of_texts(prepared, texts, tokenized=prepared.tokenized)


def nearest_floor(prepared: Prepared, split: str, most: int | None = None) -> Forms:
    """For each source the target of the training example whose source is nearest."""
    train = prepared.store("train")
    rows = find_nearest(_sources(train, MOST_EXAMPLES), _sources(prepared.store(split), most))
    return of_ids(prepared.pipeline, (train[row][-1].tolist() for row in rows))


def find_nearest(
    known: Sequence[NDArray[np.int64]], asked: Sequence[NDArray[np.int64]]
) -> list[int]:
    """For each of the asked the number of the nearest known one: [n] ids -> a row.

    Near is the cosine of the sets of tokens, each weighted by log(examples / examples that have
    it), tokens that are in many left out. Of equally near ones, the first.
    """
    found_in: dict[int, list[int]] = defaultdict(list)
    for row, ids in enumerate(known):
        for token in set(ids.tolist()):
            found_in[token].append(row)
    most = max(1.0, COMMON * len(known))
    weights = {
        token: float(np.log(1.0 + len(known) / len(rows)) ** 2)
        for token, rows in found_in.items()
        if len(rows) <= most
    }
    postings = {token: np.array(found_in[token], dtype=np.int64) for token in weights}
    norms = np.full(len(known), 1e-9)
    for token, rows in postings.items():
        norms[rows] += weights[token]
    return [_nearest(set(ids.tolist()), postings, weights, norms) for ids in asked]


def _nearest(
    tokens: set[int],
    postings: dict[int, NDArray[np.int64]],
    weights: dict[int, float],
    norms: NDArray[np.float64],
) -> int:
    sums = np.zeros(len(norms))
    for token in sorted(tokens & postings.keys()):
        sums[postings[token]] += weights[token]
    return int((sums / np.sqrt(norms)).argmax())


def unigram_floor(prepared: Prepared, split: str, most: int | None = None) -> float:
    """The log-probability of a split's first `most` texts by a model that only counts words.

    Counts of training, EOS included, each one more than it is so that nothing is impossible.
    """
    train, store = prepared.store("train"), prepared.store(split)
    side = train.sides[-1]
    counts = np.bincount(train.column(side).tokens, minlength=prepared.vocab_sizes[-1]) + 1.0
    counts[EOS] += len(train)
    logs = np.log(counts / counts.sum())
    rows = len(store) if most is None else min(most, len(store))
    return float(sum(logs[store[row][-1]].sum() + logs[EOS] for row in range(rows)))


def _sources(store: Store, most: int | None = None) -> list[NDArray[np.int64]]:
    count = len(store) if most is None else min(most, len(store))
    return [store[row][0].astype(np.int64) for row in range(count)]
