"""Batches: the order of an epoch, the rows of a batch, and tensors, against plain lists."""

import time
import tracemalloc
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lightconv.data import Batch, Batches, BatchPlan, Pairs, Sentences
from lightconv.data.batches import Epoch
from tests.data.stores import EOS, PAD, Sentence, pad, sentences, write_pairs, write_text

SOURCE, TARGET = sentences(200, seed=1), sentences(200, seed=2, vocab=400)
LENGTHS = st.integers(1, 2).flatmap(
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
@given(rows=LENGTHS, max_tokens=st.integers(40, 400), seed=st.integers(0, 5))
def test_every_example_once_within_the_limits(
    rows: list[tuple[int, ...]], max_tokens: int, seed: int
) -> None:
    plan = BatchPlan(arrays(rows), max_tokens=max_tokens)
    for epoch in (plan.epoch(seed, 0), plan.epoch(seed, 1), plan.by_length()):
        found = batches(epoch)
        assert sorted(chain.from_iterable(found)) == list(range(len(rows)))
        assert len(found) == len(epoch) == plan.batches
        for index, batch in enumerate(found):
            longest = max(max(rows[row]) for row in batch)
            assert len(batch) * longest <= max_tokens
            assert epoch.tokens[index] == sum(rows[row][-1] for row in batch)
        positions = sum(
            len(batch) * max(rows[row][side] for row in batch)
            for batch in found
            for side in range(len(rows[0]))
        )
        assert plan.padding == pytest.approx(1 - sum(map(sum, rows)) / positions)
    # By length the longest come first, and batches are as full as that order allows.
    sizes = []
    size = 0
    for longest in sorted(map(max, rows)):
        if (size + 1) * longest > max_tokens:
            sizes.append(size)
            size = 0
        size += 1
    assert [len(batch) for batch in reversed(found)] == [*sizes, size]
    lengths = [[max(rows[row]) for row in batch] for batch in found]
    assert all(min(first) >= max(second) for first, second in pairwise(lengths))


def test_a_batch_that_longer_sentences_would_overfill_is_closed() -> None:
    lengths = [np.repeat([27, 28], [150, 10])]
    found = batches(BatchPlan(lengths, max_tokens=4096).by_length())
    assert [len(batch) for batch in found] == [10, 150]  # 151 of 27, but 146 of 28


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
    # Shuffled over the whole epoch.
    epoch = BatchPlan(lengths, max_tokens=1000).epoch(1, 0)
    means = [lengths[0][epoch[i]].mean() for i in range(len(epoch))]
    half = len(means) // 2
    assert abs(np.mean(means[:half]) - np.mean(means[half:])) < 0.15 * np.mean(means)


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


@settings(max_examples=100, deadline=None)
@given(rows=LENGTHS, tokens=st.integers(1, 800))
def test_updates(rows: list[tuple[int, ...]], tokens: int) -> None:
    epoch = BatchPlan(arrays(rows), max_tokens=80).epoch(0, 0)
    expected, found = [0], 0
    for index, batch in enumerate(batches(epoch), 1):
        found += sum(rows[row][-1] for row in batch)
        if found >= tokens or index == len(epoch):
            expected.append(index)
            found = 0
    assert epoch.updates(tokens=tokens) == expected


def test_bounds_of_updates_and_batches() -> None:
    epoch = BatchPlan([np.full(20, 10)], max_tokens=20).epoch(0, 0)  # 10 batches of 20
    assert epoch.updates(tokens=60) == epoch.updates(tokens=59) == [0, 3, 6, 9, 10]
    assert epoch.updates(tokens=61) == [0, 4, 8, 10]
    assert epoch.updates(batches=3) == [0, 3, 6, 9, 10]
    assert epoch.updates(batches=5) == [0, 5, 10]
    assert epoch.updates(batches=128) == [0, 10]
    for wrong in ({}, {"tokens": 0}, {"tokens": 1, "batches": 1}, {"tokens": 1, "batches": -1}):
        with pytest.raises(ValueError, match=r"tokens=.* and batches=.* one of them above 0"):
            epoch.updates(**wrong)
    for index in (-1, 10):
        with pytest.raises(IndexError, match=f"batch {index} of 10"):
            epoch[index]


LONG = [np.array([5, 70, 6, 9, 101]), np.array([5, 6, 65, 9, 8])]


def test_too_long_examples_can_stand_alone() -> None:
    plan = BatchPlan(LONG, max_tokens=64, too_long="alone")
    assert sorted(map(sorted, batches(plan.by_length()))) == [[0, 3], [1], [2], [4]]
    assert len(batches(BatchPlan(LONG, max_tokens=101).by_length())) == 4


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"max_tokens": 64}, r"example 1 takes 70 .* 101, too long 3 of 5\), .* max_tokens=64"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"too_long": "drop"}, "too_long='drop' must be one of error, alone"),
        ({"lengths": [np.zeros(0, dtype=np.uint32)]}, "no examples"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        BatchPlan(**{"lengths": LONG, "max_tokens": 200, **changes})


def test_lengths_beyond_16_bits() -> None:
    lengths = [np.array([70_000, 3, 69_999, 5], dtype=np.uint32)]
    plan = BatchPlan(lengths, max_tokens=140_000)
    assert batches(plan.by_length()) == [[2, 0], [1, 3]]
    assert sorted(map(sorted, batches(plan.epoch(0, 0)))) == [[0, 2], [1, 3]]


@pytest.fixture
def pairs(tmp_path: Path) -> Pairs:
    return Pairs(write_pairs(tmp_path, [SOURCE, TARGET]))


def check_pairs(batch: Batch, rows: list[int]) -> None:
    source, target_in = batch.inputs
    assert batch.rows is not None and batch.rows.tolist() == rows
    assert source.tolist() == pad([[*SOURCE[row], EOS] for row in rows])
    assert target_in.tolist() == pad([[EOS, *TARGET[row]] for row in rows])
    assert batch.target.tolist() == pad([[*TARGET[row], EOS] for row in rows])
    assert source.dtype == target_in.dtype == batch.target.dtype == torch.int64


def test_a_batch_is_what_the_rows_say(pairs: Pairs) -> None:
    epoch = BatchPlan(pairs.lengths(), max_tokens=100).epoch(1, 0)
    for index, rows in enumerate(batches(epoch)):
        batch = pairs.make(epoch[index])
        check_pairs(batch, rows)
        assert max(part.numel() for part in batch.inputs) <= 100
        assert batch.tokens == epoch.tokens[index] == sum(len(TARGET[row]) + 1 for row in rows)
    check_pairs(pairs.make(np.array([7, 0, 39, 7, 12], dtype=np.uint32)), [7, 0, 39, 7, 12])
    assert [side.tolist() for side in pairs.lengths()] == [
        [len(sentence) + 1 for sentence in side] for side in (SOURCE, TARGET)
    ]


def test_a_batch_goes_to_a_device(pairs: Pairs) -> None:
    batch = pairs.make(np.arange(4))
    moved = batch.to("meta", non_blocking=True)
    assert [part.device.type for part in (*moved.inputs, moved.target)] == ["meta"] * 3
    assert moved.rows is batch.rows
    assert Batch((), torch.tensor([[5, PAD], [EOS, 7]])).tokens == 3
    batch.inputs[0].zero_()
    check_pairs(pairs.make(np.arange(1)), [0])  # the file is as it was


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_results_by_length_can_be_put_back_in_order(pairs: Pairs, ranks: int) -> None:
    # No example is left out, however long.
    batches = Batches(pairs, max_tokens=15, too_long="alone")
    found: list[Sentence | None] = [None] * 200
    for rank in range(ranks):
        widths = []
        for batch in batches.by_length(rank=rank, ranks=ranks):
            assert batch.rows is not None
            for row, target in zip(batch.rows.tolist(), batch.target.tolist(), strict=True):
                assert found[row] is None
                found[row] = [token for token in target if token not in (EOS, PAD)]
            widths.append(max(part.shape[1] for part in (*batch.inputs, batch.target)))
        assert widths == sorted(widths, reverse=True)
    assert found == TARGET


# Text may hold the words that stand for special ids: the end of a row is its length.
@settings(max_examples=25, deadline=None)
@given(
    text=st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=40),
    seed=st.integers(0, 3),
)
def test_language_models_say_every_token_once(
    tmp_path_factory: pytest.TempPathFactory, text: list[Sentence], seed: int
) -> None:
    data = Batches(Sentences(write_text(tmp_path_factory.mktemp("text"), text)), max_tokens=21)
    found = batches(data.plan.epoch(seed, 0))
    assert sorted(chain.from_iterable(found)) == list(range(len(text)))
    for rows in found:
        batch = data.examples.make(np.array(rows))
        (tokens,) = batch.inputs
        assert tokens.tolist() == pad([[EOS, *text[row]] for row in rows])
        assert batch.target.tolist() == pad([[*text[row], EOS] for row in rows])


def test_pairs_of_odd_stores(tmp_path: Path, pairs: Pairs) -> None:
    found = Pairs(write_pairs(tmp_path, [[[], []], [[], []]], "test")).make(np.arange(2))
    assert [part.tolist() for part in (*found.inputs, found.target)] == [[[EOS], [EOS]]] * 3
    with pytest.raises(ValueError, match="has the sides text, no 'source'"):
        Pairs(write_text(tmp_path, [[5]], "valid"))
    with pytest.raises(ValueError, match="max_tokens=10"):
        Batches(pairs, max_tokens=10)
