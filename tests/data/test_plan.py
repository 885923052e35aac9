"""The order of batches: every example once, the same for all ranks, little padding."""

import time
import tracemalloc
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lightconv.data import BatchPlan
from lightconv.data.plan import Epoch

LENGTHS = st.integers(1, 3).flatmap(
    lambda sides: st.lists(st.tuples(*[st.integers(1, 40)] * sides), min_size=1, max_size=120)
)


def arrays(rows: list[tuple[int, ...]]) -> list[NDArray[Any]]:
    return [np.array(side, dtype=np.uint32) for side in zip(*rows, strict=True)]


def batches(epoch: Epoch) -> list[list[int]]:
    return [epoch[i].tolist() for i in range(len(epoch))]


def ted_like(examples: int, seed: int = 0) -> list[NDArray[Any]]:
    """Two sides, log-normal with a mean of 23 tokens and EOS, strongly correlated."""
    rng = np.random.default_rng(seed)
    spread, own = 0.6, 0.15
    mean = np.log(23) - (spread**2 + own**2) / 2
    shared = rng.normal(size=examples)
    sides = np.exp(mean + spread * shared + own * rng.normal(size=(2, examples)))
    return [np.clip(np.rint(side), 1, 175).astype(np.uint32) + 1 for side in sides]


@settings(max_examples=150, deadline=None)
@given(
    rows=LENGTHS,
    max_tokens=st.integers(40, 400),
    max_sentences=st.none() | st.integers(1, 30),
    multiple=st.sampled_from([1, 4, 8]),
    seed=st.integers(0, 5),
)
def test_every_example_once_within_the_limits(
    rows: list[tuple[int, ...]],
    max_tokens: int,
    max_sentences: int | None,
    multiple: int,
    seed: int,
) -> None:
    plan = BatchPlan(
        arrays(rows), max_tokens=max_tokens, max_sentences=max_sentences, multiple=multiple
    )
    for epoch in (plan.epoch(seed, 0), plan.epoch(seed, 1), plan.by_length()):
        found = batches(epoch)
        assert sorted(chain.from_iterable(found)) == list(range(len(rows)))
        assert len(found) == len(epoch) == plan.batches
        for index, batch in enumerate(found):
            longest = max(max(rows[row]) for row in batch)
            assert len(batch) * longest <= max_tokens
            assert len(batch) <= (max_sentences or len(batch))
            assert epoch.tokens[index] == sum(rows[row][-1] for row in batch)
        odd = [batch for batch in found if len(batch) > multiple and len(batch) % multiple]
        assert len(odd) <= 1  # the last of all
        positions = sum(
            len(batch) * max(rows[row][side] for row in batch)
            for batch in found
            for side in range(len(rows[0]))
        )
        assert plan.padding == pytest.approx(1 - sum(map(sum, rows)) / positions)


@settings(max_examples=100, deadline=None)
@given(rows=LENGTHS, max_tokens=st.integers(40, 400))
def test_batches_are_as_full_as_the_order_allows(
    rows: list[tuple[int, ...]], max_tokens: int
) -> None:
    plan = BatchPlan(arrays(rows), max_tokens=max_tokens)
    sizes = []
    size = 0
    for longest in sorted(map(max, rows)):
        if (size + 1) * longest > max_tokens:
            sizes.append(size)
            size = 0
        size += 1
    assert [len(batch) for batch in reversed(batches(plan.by_length()))] == [*sizes, size]


def test_a_batch_that_longer_sentences_would_overfill_is_closed() -> None:
    lengths = [np.repeat([27, 28], [150, 10])]
    found = batches(BatchPlan(lengths, max_tokens=4096).by_length())
    assert [len(batch) for batch in found] == [10, 150]  # 151 of 27, but 146 of 28


def test_by_length_the_longest_comes_first() -> None:
    rows = [(n % 30 + 1, n % 7 + 1) for n in range(200)]
    found = batches(BatchPlan(arrays(rows), max_tokens=100).by_length())
    longest = [[max(rows[row]) for row in batch] for batch in found]
    assert all(min(first) >= max(second) for first, second in pairwise(longest))


def test_ted_like_batches_have_little_padding() -> None:
    lengths = ted_like(160_000)
    # The distribution is what it is meant to be.
    assert 23 < lengths[0].mean() < 25
    assert np.corrcoef(lengths[0], lengths[1])[0, 1] > 0.9
    plan = BatchPlan(lengths, max_tokens=4096)
    assert plan.padding < 0.025
    epoch = plan.epoch(1, 0)
    longer = [int(np.maximum(*lengths)[epoch[i]].max()) * len(epoch[i]) for i in range(len(epoch))]
    assert np.mean(longer) > 0.97 * 4096


def test_planning_is_quick_and_small() -> None:
    lengths = ted_like(160_000)
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        plan = BatchPlan(lengths, max_tokens=4096)
        plan.epoch(1, 0).updates(tokens=4000)
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.2
    tracemalloc.start()
    BatchPlan(lengths, max_tokens=4096).epoch(1, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * 160_000  # 1.4 GB for 36 million


def test_the_order_follows_from_seed_and_epoch_alone() -> None:
    lengths = ted_like(20_000)
    first = batches(BatchPlan(lengths, max_tokens=1000).epoch(3, 7))
    np.random.seed(0)
    assert batches(BatchPlan(lengths, max_tokens=1000).epoch(3, 7)) == first
    plan = BatchPlan(lengths, max_tokens=1000)
    plan.epoch(0, 0)
    for other in (plan.epoch(3, 8), plan.epoch(4, 7), plan.epoch(7, 3)):
        # Other batches, not only another order of them.
        assert len({*map(frozenset, batches(other))} & {*map(frozenset, first)}) < 0.2 * len(first)
        assert [len(batch) for batch in batches(other)] != [len(batch) for batch in first]


def test_batches_are_shuffled_over_the_whole_epoch() -> None:
    lengths = ted_like(20_000)
    epoch = BatchPlan(lengths, max_tokens=1000).epoch(1, 0)
    means = [lengths[0][epoch[i]].mean() for i in range(len(epoch))]
    half = len(means) // 2
    assert abs(np.mean(means[:half]) - np.mean(means[half:])) < 0.15 * np.mean(means)


@settings(max_examples=100, deadline=None)
@given(rows=LENGTHS, tokens=st.integers(1, 800), count=st.integers(1, 9))
def test_updates(rows: list[tuple[int, ...]], tokens: int, count: int) -> None:
    epoch = BatchPlan(arrays(rows), max_tokens=80).epoch(0, 0)
    expected, found = [0], 0
    for index, batch in enumerate(batches(epoch), 1):
        found += sum(rows[row][-1] for row in batch)
        if found >= tokens or index == len(epoch):
            expected.append(index)
            found = 0
    assert epoch.updates(tokens=tokens) == expected
    by_count = epoch.updates(batches=count)
    assert [b - a for a, b in pairwise(by_count)][:-1] == [count] * (len(by_count) - 2)
    assert by_count[0] == 0
    assert by_count[-1] == len(epoch)
    assert 0 < by_count[-1] - by_count[-2] <= count


def test_an_update_ends_when_its_tokens_are_reached() -> None:
    epoch = BatchPlan([np.full(20, 10)], max_tokens=20).epoch(0, 0)  # 10 batches of 20
    assert epoch.updates(tokens=60) == [0, 3, 6, 9, 10]
    assert epoch.updates(tokens=61) == [0, 4, 8, 10]
    assert epoch.updates(tokens=59) == [0, 3, 6, 9, 10]


def test_a_batch_outside_the_epoch_is_no_batch() -> None:
    epoch = BatchPlan([np.array([3, 4])], max_tokens=4).epoch(0, 0)
    assert len(epoch) == 2
    for index in (-1, 2):
        with pytest.raises(IndexError, match=f"batch {index} of 2"):
            epoch[index]


LONG = [np.array([5, 70, 6, 9, 101]), np.array([5, 6, 65, 9, 8])]


def test_too_long_examples_are_an_error_with_the_numbers() -> None:
    message = (
        r"example 1 takes 70 positions with EOS \(longest of all 101, too long 3 of 5\), "
        r"expected at most max_tokens=64\. Raise max_tokens"
    )
    with pytest.raises(ValueError, match=message):
        BatchPlan(LONG, max_tokens=64)
    assert BatchPlan(LONG, max_tokens=101).skipped == 0


def test_too_long_examples_can_be_left_out_and_are_counted() -> None:
    plan = BatchPlan(LONG, max_tokens=64, too_long="skip")
    assert (plan.examples, plan.skipped) == (2, 3)
    assert sorted(chain.from_iterable(batches(plan.epoch(0, 0)))) == [0, 3]
    with pytest.raises(ValueError, match="all 5 examples are too long, the shortest takes 5"):
        BatchPlan(LONG, max_tokens=4, too_long="skip")


def test_too_long_examples_can_stand_alone() -> None:
    plan = BatchPlan(LONG, max_tokens=64, too_long="alone")
    assert plan.skipped == 0
    assert sorted(map(sorted, batches(plan.by_length()))) == [[0, 3], [1], [2], [4]]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"max_tokens": 0}, "max_tokens=0 must be at least 1"),
        ({"max_sentences": 0}, "max_sentences=0 must"),
        ({"multiple": 0}, "multiple=0 must"),
        ({"too_long": "drop"}, "too_long='drop' must be one of error, skip, alone"),
        ({"lengths": [np.zeros(0, dtype=np.uint32)]}, "no examples"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        BatchPlan(**{"lengths": LONG, "max_tokens": 200, **changes})


@pytest.mark.parametrize("size", [{"tokens": 0}, {"batches": 0}])
def test_an_update_has_something(size: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must have at least 1"):
        BatchPlan(LONG, max_tokens=200).epoch(0, 0).updates(**size)


def test_lengths_beyond_16_bits() -> None:
    lengths = [np.array([70_000, 3, 69_999, 5], dtype=np.uint32)]
    plan = BatchPlan(lengths, max_tokens=140_000)
    assert batches(plan.by_length()) == [[2, 0], [1, 3]]
    assert sorted(map(sorted, batches(plan.epoch(0, 0)))) == [[0, 2], [1, 3]]
