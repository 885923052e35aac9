"""Filters: against the rule written out for one example at a time."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightconv.data.filters import REASONS, before_tokens, count_reasons, find_reasons

from lightconv.config import ConfigError, from_dict
from lightconv.data.config import FilterConfig


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
    pairs=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=30),
)
def test_pairs(config: FilterConfig, pairs: list[tuple[int, int]]) -> None:
    found = find_reasons(config, [np.array(side) for side in zip(*pairs, strict=True)])
    expected = [rule(config, pair) for pair in pairs]
    assert [None if place < 0 else REASONS[place] for place in found] == expected
    assert count_reasons(found) == Counter(reason for reason in expected if reason)


@given(config=CONFIGS, lengths=st.lists(st.integers(0, 12), min_size=1, max_size=30))
def test_texts_alone(config: FilterConfig, lengths: list[int]) -> None:
    config = FilterConfig(min_len=config.min_len, max_len=config.max_len)
    found = find_reasons(config, [np.array(lengths)])
    expected = [rule(config, (length,)) for length in lengths]
    assert [None if place < 0 else REASONS[place] for place in found] == expected


def test_before_there_are_tokens_only_nothing_is_too_short() -> None:
    config = FilterConfig(min_len=5, max_len=5, max_ratio=1.0)
    found = find_reasons(before_tokens(config), [np.array([0, 1, 1]), np.array([1, 0, 1])])
    assert found.tolist() == [0, 0, -1]
    found = find_reasons(before_tokens(FilterConfig(min_len=0)), [np.array([0, 1])])
    assert found.tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"min_len": -1}, "min_len=-1 must be at least 0"),
        ({"max_len": 0}, "max_len=0 must be at least 1"),
        ({"min_len": 9, "max_len": 8}, "min_len=9 must not be above filters.max_len=8"),
        ({"max_ratio": 0.5}, r"max_ratio=0.5 must be at least 1"),
        ({"unit": "letters"}, "unit='letters' must be one of tokens, words"),
    ],
)
def test_what_makes_no_filter(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_dict(FilterConfig, fields, "filters")
