"""Filters and statistics: against the rule for one example at a time, sorted lists and sums."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from lightconv.config import ConfigError, from_dict
from lightconv.data.config import FilterConfig
from lightconv.data.prepared import (
    BARS,
    apply_filters,
    count_lengths,
    describe_side,
    find_edges,
    find_percentile,
)


def rule(config: FilterConfig, lengths: tuple[int, ...]) -> str | None:
    """The first thing that is wrong with an example."""
    shortest, longest = min(lengths), max(lengths)
    if shortest == 0 and (len(lengths) == 2 or config.min_len >= 1):
        return "empty"
    if shortest < config.min_len:
        return "short"
    if config.max_len is not None and longest > config.max_len:
        return "long"
    if config.max_ratio is not None and longest / shortest > config.max_ratio:
        return "ratio"
    return None


CONFIGS = st.builds(
    FilterConfig,
    min_len=st.integers(0, 3),
    max_len=st.none() | st.integers(3, 9),
    max_ratio=st.none() | st.sampled_from([1.0, 1.5, 2.0, 9.0]),
)


@given(
    config=CONFIGS,
    examples=st.integers(1, 2).flatmap(
        lambda sides: st.lists(st.tuples(*[st.integers(0, 12)] * sides), min_size=1, max_size=30)
    ),
)
def test_filters(config: FilterConfig, examples: list[tuple[int, ...]]) -> None:
    if len(examples[0]) == 1:
        config = FilterConfig(min_len=config.min_len, max_len=config.max_len)
    kept, dropped = apply_filters(config, [np.array(side) for side in zip(*examples, strict=True)])
    expected = [rule(config, example) for example in examples]
    assert kept.tolist() == [reason is None for reason in expected]
    assert dropped == Counter(reason for reason in expected if reason)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"min_len": -1}, "min_len=-1"),
        ({"max_len": 0}, "max_len=0"),
        ({"min_len": 9, "max_len": 8}, "min_len=9 .*filters.max_len=8"),
        ({"max_ratio": 0.5}, "max_ratio=0.5"),
        ({"unit": "letters"}, "unit='letters' must be one of tokens, words"),
    ],
)
def test_what_makes_no_filter(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_dict(FilterConfig, fields, "filters")


LENGTHS = st.lists(st.integers(0, 3000), min_size=1, max_size=60)


def counted(*parts: Sequence[int]) -> NDArray[np.int64]:
    counts = np.zeros(0, dtype=np.int64)
    for part in parts:
        counts = count_lengths(counts, np.array(part, dtype=np.int64))
    return counts


@given(LENGTHS, LENGTHS)
def test_lengths(first: list[int], second: list[int]) -> None:
    counts, all_ = counted(first, second, []), sorted(first + second)
    found = describe_side(counts, 3, find_edges([counts]))
    assert found["tokens"] == sum(all_)
    assert found["unknown_rate"] == 3 / max(sum(all_), 1)
    assert found["mean"] == sum(all_) / len(all_)
    assert found["longest"] == all_[-1]
    for share in (1, 50, 90, 99, 100):
        assert find_percentile(counts, share) == all_[math.ceil(len(all_) * share / 100) - 1]
    # Every sentence is in one bar; at most a hundredth of all is beyond the bars with an end.
    edges = find_edges([counted(first), counted(second)])
    assert edges[:2] == [0, 1] and len(edges) <= BARS + 1
    for lengths in (first, second):
        bars = describe_side(counted(lengths), 0, edges)["histogram"]
        for bar in bars:
            last = math.inf if bar["to"] is None else bar["to"]
            assert bar["count"] == sum(bar["from"] <= length <= last for length in lengths)
        assert sum(bar["count"] for bar in bars) == len(lengths)
        assert bars[-1]["count"] <= 0.01 * len(lengths)


def test_no_lengths_at_all() -> None:
    found = describe_side(counted(), 0, find_edges([counted()]))
    assert (found["tokens"], found["mean"], found["longest"], found["unknown_rate"]) == (0,) * 4
    assert set(found["percentiles"].values()) == {0}


@pytest.mark.parametrize(
    ("longest", "step", "last"), [(7, 1, 8), (100, 10, 101), (101, 10, 111), (111, 20, 121)]
)
def test_steps_are_round(longest: int, step: int, last: int) -> None:
    assert find_edges([counted([longest])]) == [0, *range(1, last + 1, step)]
