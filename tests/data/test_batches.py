"""Batches of tensors from a split on the disk."""

from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightconv.data import Batch, Batches, Blocks, Pairs, Sentences
from tests.data.stores import EOS, PAD, Sentence, pad, sentences, write_pairs, write_text

SOURCE, TARGET = sentences(200, seed=1), sentences(200, seed=2, vocab=400)


@pytest.fixture
def pairs(tmp_path: Path) -> Pairs:
    return Pairs(write_pairs(tmp_path, [SOURCE, TARGET]))


def test_a_batch_is_what_the_rows_say(pairs: Pairs) -> None:
    batches = Batches(pairs, max_tokens=100)
    epoch = batches.epoch(1, 0)
    seen = []
    for index in range(len(epoch)):
        batch = batches.make(epoch[index])
        assert batch.rows is not None
        rows = batch.rows.tolist()
        source, target_in = batch.inputs
        assert source.tolist() == pad([[*SOURCE[row], EOS] for row in rows])
        assert target_in.tolist() == pad([[EOS, *TARGET[row]] for row in rows])
        assert batch.target.tolist() == pad([[*TARGET[row], EOS] for row in rows])
        assert source.dtype == target_in.dtype == batch.target.dtype == torch.int64
        assert max(source.numel(), target_in.numel()) <= 100
        assert batch.tokens == epoch.tokens[index] == sum(len(TARGET[row]) + 1 for row in rows)
        seen += rows
    assert sorted(seen) == list(range(200))


def test_a_batch_goes_to_a_device(pairs: Pairs) -> None:
    batch = Batches(pairs, max_tokens=100).make(np.arange(4))
    moved = batch.to("meta", non_blocking=True)
    assert [part.device.type for part in (*moved.inputs, moved.target)] == ["meta"] * 3
    assert moved.rows is batch.rows
    assert Batch((), torch.tensor([[5, PAD], [EOS, 7]])).tokens == 3


def test_writing_into_a_batch_leaves_the_file(pairs: Pairs) -> None:
    batches = Batches(pairs, max_tokens=100)
    batches.make(np.arange(4)).inputs[0].zero_()
    assert batches.make(np.arange(1)).inputs[0].tolist() == [[*SOURCE[0], EOS]]


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


@settings(max_examples=25, deadline=None)
@given(
    text=st.lists(st.lists(st.integers(4, 299), max_size=6), min_size=1, max_size=40),
    width=st.integers(1, 20),
    seed=st.integers(0, 3),
)
def test_language_models_say_every_token_once(
    tmp_path_factory: pytest.TempPathFactory, text: list[Sentence], width: int, seed: int
) -> None:
    store = write_text(tmp_path_factory.mktemp("text"), text)
    wanted = sorted([*chain.from_iterable(text), *[EOS] * len(text)])
    for examples in (Sentences(store), Blocks(store, width)):
        batches = Batches(examples, max_tokens=3 * max(width, 7))
        epoch = batches.epoch(seed, 0)
        targets = [batches.make(epoch[i]) for i in range(len(epoch))]
        said = chain.from_iterable(batch.target.flatten().tolist() for batch in targets)
        assert sorted(token for token in said if token != PAD) == wanted
        assert all(len(batch.inputs) == 1 for batch in targets)


def test_blocks_make_batches_of_as_many(tmp_path: Path) -> None:
    batches = Batches(Blocks(write_text(tmp_path, SOURCE), 8), max_tokens=32)
    shapes = {
        tuple(batches.make(rows).target.shape)
        for rows in (batches.epoch(0, 0)[i] for i in range(20))
    }
    assert (4, 8) in shapes
    assert batches.plan.padding < 0.01
    few = Batches(Blocks(write_text(tmp_path, SOURCE), 8), max_tokens=1000, max_sentences=3)
    assert few.make(few.epoch(0, 0)[0]).target.shape == (3, 8)


def test_options_reach_the_plan(pairs: Pairs) -> None:
    with pytest.raises(ValueError, match=r"expected at most max_tokens=10"):
        Batches(pairs, max_tokens=10)
    batches = Batches(pairs, max_tokens=12, max_sentences=2, too_long="skip")
    long = sum(max(len(s), len(t)) > 11 for s, t in zip(SOURCE, TARGET, strict=True))
    assert batches.plan.skipped == long
    assert all(len(batches.epoch(0, 0)[i]) <= 2 for i in range(batches.plan.batches))
    by_eight = Batches(pairs, max_tokens=300, multiple=8)
    sizes = [len(by_eight.epoch(0, 0)[i]) for i in range(by_eight.plan.batches)]
    assert sum(size % 8 > 0 for size in sizes) <= 1
