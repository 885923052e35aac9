"""Baselines by hand: copies, the nearest of a few sentences, counts of words."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from lightconv.data.text import Example
from lightconv.data.vocabulary import EOS
from lightconv.evaluate import comparison
from lightconv.evaluate.comparison import (
    bigram_baseline,
    copy_baseline,
    find_nearest,
    kneser_ney,
    lead_baseline,
    nearest_baseline,
    unigram_baseline,
)
from lightconv.evaluate.system import Examples
from tests.evaluate.examples import make

TRAIN: list[Example] = [("a b c", "x1"), ("c d e f", "x2"), ("g h", "x3 x3"), ("a h", "x4")]
TEST: list[Example] = [("d e", "?"), ("g", "?"), ("b c a", "?"), ("zebra", "?")]


def test_copies_and_nearest_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "COMMON", 0.5)  # four sentences: a word in two is not common
    prepared = make(tmp_path, TRAIN, TEST)
    every, two, one = (Examples(prepared, "test", most) for most in (None, 2, 1))
    assert copy_baseline(every).plain == [source for source, _ in TEST]
    assert copy_baseline(two).words == ["d e", "g"]
    # A sentence like no other gets the first.
    assert nearest_baseline(every).plain == ["x2", "x3 x3", "x1", "x1"]
    assert nearest_baseline(one).plain == ["x2"]


def test_nearness_is_a_cosine_of_weighted_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "COMMON", 1.0)
    random = np.random.default_rng(0)
    known = [random.integers(0, 30, size=n) for n in random.integers(1, 9, size=40)]
    asked = [random.integers(0, 30, size=n) for n in random.integers(1, 9, size=20)]
    sets = [set(each.tolist()) for each in known]

    def weight(token: int) -> float:
        return math.log(1 + len(sets) / sum(token in each for each in sets))

    def cosine(one: set[int], other: set[int]) -> float:
        both = sum(weight(token) ** 2 for token in one & other)
        return both / math.sqrt(sum(weight(token) ** 2 for token in other) + 1e-9)

    for each, found in zip(asked, find_nearest(known, asked), strict=True):
        one = set(each.tolist()) & set().union(*sets)
        best = max(cosine(one, other) for other in sets)
        assert cosine(one, sets[found]) == pytest.approx(best)


def test_common_words_are_ignored() -> None:
    known = [np.array([1, 2]), np.array([1, 3])] * 10
    # With a tenth of 20 as the bound no word is rare enough, so the first is taken.
    assert find_nearest(known, [np.array([1, 3])]) == [0]
    known[7] = known[9] = np.array([1, 4])  # 4 is in a tenth, which is not too common
    assert find_nearest(known, [np.array([1, 4])]) == [7]


def test_unigrams(tmp_path: Path) -> None:
    prepared = make(tmp_path, [("a a b",), ("a",)], [("a b",), ("zebra",)])
    # Ids: 4 special ones, a, b. Training has a 3 times, b once, EOS twice; each counts one more.
    total = 3 + 1 + 2 + 6
    expected = [4 / total, 2 / total, 3 / total, 1 / total, 3 / total]
    for most, counted in ((None, expected), (1, expected[:3])):
        found = unigram_baseline(Examples(prepared, "test", most))
        assert found == pytest.approx(sum(map(math.log, counted)))


def test_bigrams_with_kneser_ney_smoothing() -> None:
    """Against the formulas, id by id; the probabilities after each id sum to one."""
    known, vocab = [2, 4, 5, 4, 5, 2, 4, 6, 2, 5, 4, 2], 8
    pairs = list(pairwise(known))
    once, twice = (sum(pairs.count(pair) == n for pair in set(pairs)) for n in (1, 2))
    discount = once / (once + 2 * twice)

    def continuation(right: int) -> float:
        kinds = set(pairs)
        before = len({a for a, b in kinds if b == right})
        different = len({b for _, b in kinds})
        return (max(before - discount, 0) + discount * different / vocab) / len(kinds)

    def probability(left: int, right: int) -> float:
        times = sum(a == left for a, _ in pairs)
        if not times:
            return continuation(right)
        followers = len({b for a, b in pairs if a == left})
        seen = max(pairs.count((left, right)) - discount, 0)
        return (seen + discount * followers * continuation(right)) / times

    for left in (2, 4, 5, 6, 7):
        each = [kneser_ney(np.array(known), np.array([left, n]), vocab) for n in range(vocab)]
        assert np.exp(each) == pytest.approx([probability(left, n) for n in range(vocab)])
        assert np.exp(each).sum() == pytest.approx(1.0)


def test_bigrams_of_a_preparation(tmp_path: Path) -> None:
    prepared = make(tmp_path, [("a a b",), ("a",)], [("a b",), ("b",)])
    a, b = (prepared.pipeline.vocabularies()[0].tokens.index(word) for word in "ab")
    known = np.array([EOS, a, a, b, EOS, a, EOS])
    for most, asked in ((None, [EOS, a, b, EOS, b, EOS]), (1, [EOS, a, b, EOS])):
        found = bigram_baseline(Examples(prepared, "test", most))
        assert found == pytest.approx(kneser_ney(known, np.array(asked), 6))


def test_first_words(tmp_path: Path) -> None:
    """As many as a summary has on average, three here, but one sentence."""
    pairs = [("One two. Three", "a b c"), ("one two three four", "a b c"), ("one", "a b c d")]
    pairs.append(("One. Two. Three", "a b c"))
    prepared = make(tmp_path, pairs, side={"tokenize": "none"})
    found = lead_baseline(Examples(prepared, "test")).plain
    assert found == ["One two.", "one two three", "one", "One."]
