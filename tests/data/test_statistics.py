"""Statistics: against sorted lists and sums."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lightconv.data.statistics import (
    BARS,
    Lengths,
    count_rows,
    describe_side,
    draw_histogram,
    find_edges,
    length_rows,
)

LENGTHS = st.lists(st.integers(0, 3000), min_size=1, max_size=60)


def counted(*parts: Sequence[int]) -> Lengths:
    lengths = Lengths()
    for part in parts:
        lengths.add(np.array(part, dtype=np.int64))
    return lengths


@given(LENGTHS, LENGTHS)
def test_lengths(first: list[int], second: list[int]) -> None:
    lengths, all_ = counted(first, second, []), sorted(first + second)
    assert lengths.sentences == len(all_)
    assert lengths.tokens == sum(all_)
    assert lengths.longest == all_[-1]
    for share in (1, 50, 90, 99, 100):
        assert lengths.percentile(share) == all_[math.ceil(len(all_) * share / 100) - 1]


def test_no_lengths_at_all() -> None:
    lengths = Lengths()
    assert (lengths.sentences, lengths.tokens, lengths.longest, lengths.percentile(50)) == (0,) * 4
    assert describe_side(lengths, 0, find_edges([lengths]))["mean"] == 0


@given(LENGTHS, LENGTHS)
def test_every_sentence_is_in_one_bar(first: list[int], second: list[int]) -> None:
    sides = [counted(first), counted(second)]
    edges = find_edges(sides)
    assert edges[:2] == [0, 1] and len(edges) <= BARS + 1
    for side, lengths in zip(sides, (first, second), strict=True):
        bars = describe_side(side, 0, edges)["histogram"]
        for bar in bars:
            last = math.inf if bar["to"] is None else bar["to"]
            assert bar["count"] == sum(bar["from"] <= length <= last for length in lengths)
        assert sum(bar["count"] for bar in bars) == len(lengths)
        # No more than a hundredth of all is beyond the bars with an end.
        assert bars[-1]["count"] <= 0.01 * len(lengths)


def test_steps_are_round() -> None:
    assert find_edges([counted([7])]) == list(range(9))
    assert find_edges([counted([100])]) == [0, *range(1, 102, 10)]
    assert find_edges([counted([101])]) == [0, *range(1, 112, 10)]
    assert find_edges([counted([111])]) == [0, *range(1, 122, 20)]


def splits() -> dict[str, dict[str, Any]]:
    sides = {"source": counted([1, 2, 2, 3]), "target": counted([2, 2, 4, 4])}
    edges = find_edges(sides.values())
    described = {name: describe_side(side, 1, edges) for name, side in sides.items()}
    return {
        "train": {"read": 12345, "kept": 4, "dropped": {"empty": 12341}, "sides": described},
        "valid": {"read": 4, "kept": 4, "dropped": {}, "sides": described},
    }


def test_rows() -> None:
    header, rows = count_rows(splits())
    assert header == ["split", "read", "kept", "empty"], "what never happened has no column"
    assert rows == [["train", "12,345", "4", "12,341"], ["valid", "4", "4", "0"]]
    header, rows = length_rows(splits())
    assert header == [
        "split",
        "side",
        "tokens",
        "unknown",
        "mean",
        "50 %",
        "90 %",
        "99 %",
        "longest",
    ]
    assert rows[0] == ["train", "source", "8", "12.50%", "2.0", "2", "3", "3", "3"]
    assert rows[3] == ["valid", "target", "12", "8.33%", "3.0", "2", "4", "4", "4"]


def test_the_picture() -> None:
    lines = draw_histogram(splits()["train"])
    assert lines[0].split() == ["source", "target"]
    assert lines[1].split() == ["1", "25.0%", "#" * 12, "0.0%"]
    assert lines[2].split() == ["2", "50.0%", "#" * 24, "50.0%", "#" * 24]
    assert lines[-1].split() == ["5", "and", "more", "0.0%", "0.0%"]
    assert len(lines) == 6
    empty = {"sides": {"text": describe_side(counted([0, 1]), 0, [0, 1, 2])}}
    assert [line.split()[:2] for line in draw_histogram(empty)[1:3]] == [
        ["0", "50.0%"],
        ["1", "50.0%"],
    ]
