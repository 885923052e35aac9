"""Batches made ahead: the order for any number of ranks, positions to resume at, and the end."""

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from itertools import chain, islice, product, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lightconv.data import (
    Batch,
    Batches,
    Loader,
    Pairs,
    Position,
    Store,
    StoreWriter,
)
from tests.data.stores import VOCAB, write_pairs
from tests.data.test_batches import SOURCE, TARGET, check_pairs, ted_like
from tests.data.test_batches import batches as listed


class Numbers:
    """Examples that are their own numbers; `fault` cannot be made, and each takes `seconds`."""

    def __init__(self, lengths: list[int], *, fault: int = -1, seconds: float = 0.0) -> None:
        self.sizes = np.array(lengths)
        self.fault, self.seconds = fault, seconds
        self.made: list[int] = []

    def lengths(self) -> tuple[NDArray[Any], ...]:
        return (self.sizes,)

    def make(self, rows: NDArray[Any]) -> Batch:
        time.sleep(self.seconds)
        if self.fault in rows:
            raise ValueError(f"example {self.fault} is damaged")
        self.made += rows.tolist()
        numbers = torch.from_numpy(rows.astype(np.int64))
        return Batch((numbers[:, None],), numbers[:, None], numbers)


def make(count: int = 60, max_tokens: int = 40, **options: Any) -> Batches:
    rng = np.random.default_rng(count)
    return Batches(Numbers(rng.integers(1, 20, count).tolist(), **options), max_tokens=max_tokens)


def rows(batches: list[Batch]) -> list[list[int]]:
    return [batch.rows.tolist() for batch in batches if batch.rows is not None]


def take(batches: Batches, updates: int, position: Position, **options: Any) -> list[Any]:
    """The rows of some updates, and the position after each."""
    with Loader(batches, position, **options) as loader:
        return [(rows(group), loader.position) for group in islice(loader, updates)]


def made(batches: Batches) -> list[int]:
    assert isinstance(batches.examples, Numbers)
    return batches.examples.made


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def in_order(batches: Batches, seed: int, epoch: int) -> list[list[int]]:
    return listed(batches.plan.epoch(seed, epoch))


def merge(shares: list[list[list[int]]]) -> list[list[int]]:
    """The batches of an update from those of its ranks: one of each in turn."""
    turns = chain.from_iterable(zip_longest(*shares))
    return [batch for batch in turns if batch is not None]


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=50),
    tokens=st.integers(1, 200),
)
def test_the_order_does_not_depend_on_ranks(lengths: list[int], tokens: int) -> None:
    """R3."""
    batches = Batches(Numbers(lengths), max_tokens=40)
    count = sum(len(batches.plan.epoch(5, epoch).updates(tokens=tokens)) - 1 for epoch in (0, 1))
    size = {"tokens_per_update": tokens}
    alone = take(batches, count, Position(5), **size)
    # Two epochs, each its batches in their order and every example once.
    both = list(chain.from_iterable(found for found, _ in alone))
    assert both == in_order(batches, 5, 0) + in_order(batches, 5, 1)
    for epoch in (both[: batches.plan.batches], both[batches.plan.batches :]):
        assert sorted(chain.from_iterable(epoch)) == list(range(len(lengths)))
    for ranks in (2, 3, 4):
        shares = [
            take(batches, len(alone), Position(5), rank=rank, ranks=ranks, **size)
            for rank in range(ranks)
        ]
        for (whole, after), *parts in zip(alone, *shares, strict=True):
            assert merge([found for found, _ in parts]) == whole
            assert {position for _, position in parts} == {after}
            if len(whole) % ranks == 0:
                assert {len(found) for found, _ in parts} == {len(whole) // ranks}


def test_a_run_resumes_at_every_batch() -> None:
    batches = make()
    bounds = [batches.plan.epoch(3, epoch).updates(tokens=90) for epoch in (0, 1)]
    order, following = (in_order(batches, 3, epoch) for epoch in (0, 1))
    for start in range(batches.plan.batches + 1):
        found = take(batches, 2, Position(3, 0, start), tokens_per_update=90)
        # The rest of the update it stands in, then the next.
        end = next((end for end in bounds[0] if end > start), None)
        first = following[: bounds[1][1]] if end is None else order[start:end]
        assert found[0][0] == first
        assert take(batches, 1, found[0][1], tokens_per_update=90) == found[1:]
        if end is not None:
            after = Position(3, 0, end) if end < len(order) else Position(3, 1, 0)
            assert found[0][1] == after


def test_a_rank_resumes_with_its_own_batches() -> None:
    batches = make()
    order = in_order(batches, 3, 0)
    end = batches.plan.epoch(3, 0).updates(tokens=200)[1]
    assert end > 4
    for start, rank in product(range(end), range(3)):
        position, options = Position(3, 0, start), {"rank": rank, "ranks": 3}
        [(share, _)] = take(batches, 1, position, tokens_per_update=200, **options)
        assert share == [order[i] for i in range(start, end) if i % 3 == rank]
    # One without work gets empty updates.
    found = take(batches, 50, Position(1), tokens_per_update=1, rank=1, ranks=2)
    assert [share for share, _ in found] == [[]] * 50


def test_the_position_is_that_of_what_was_handed_out() -> None:
    batches = make()
    with Loader(batches, Position(1, 2, 3), tokens_per_update=1) as loader:
        assert loader.position == (1, 2, 3)
        for number in range(4, 8):
            next(loader)
            assert loader.position == (1, 2, number)
        # More is made, and not counted.
        handed_out = sum(len(batches.plan.epoch(1, 2)[i]) for i in range(3, 7))
        wait_until(lambda: len(made(batches)) > handed_out)
        assert loader.position == (1, 2, 7)


def test_no_more_is_made_ahead_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightconv.data.loader.AHEAD", 5)
    batches = make(600)
    with Loader(batches, Position(1), tokens_per_update=1) as loader:
        next(loader)
        wanted = [row for batch in in_order(batches, 1, 0)[:6] for row in batch]
        wait_until(lambda: len(made(batches)) >= len(wanted))
        time.sleep(0.05)
        assert sorted(made(batches)) == sorted(wanted)


def test_a_rank_reads_only_its_own() -> None:
    """Of an epoch that is longer than what is read ahead."""
    batches = make(6000)
    take(batches, 2, Position(1), tokens_per_update=2_000, rank=1, ranks=2)
    mine = set(chain.from_iterable(in_order(batches, 1, 0)[1::2]))
    assert len(made(batches)) > 150 and set(made(batches)) < mine


def test_an_error_is_raised_where_the_batch_is_wanted() -> None:
    batches = make(fault=17)
    order = in_order(batches, 1, 0)
    place = next(i for i, batch in enumerate(order) if 17 in batch)
    with Loader(batches, Position(1), tokens_per_update=1) as loader:
        for number in range(place):
            assert rows(next(loader)) == [order[number]]
        with pytest.raises(ValueError, match="example 17 is damaged") as caught:
            next(loader)
        assert loader.position == (1, 0, place)
        lines = "".join(traceback.format_exception(caught.value))
        assert 'raise ValueError(f"example {self.fault} is damaged")' in lines
        with pytest.raises(ValueError, match="the loader is closed"):
            next(loader)


@pytest.mark.parametrize("error", [None, RuntimeError])
def test_nothing_runs_on_after_the_end(error: type[Exception] | None) -> None:
    before = threading.enumerate()
    with (
        pytest.raises(error) if error else nullcontext(),
        Loader(make(), Position(1), tokens_per_update=1) as loader,
    ):
        next(loader)
        if error:
            raise error
    assert threading.enumerate() == before
    loader.close()  # a second time
    assert loader.position == (1, 0, 1)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"rank": 2, "ranks": 2}, "rank=2 must be from 0 to ranks=2 - 1"),
        ({"rank": -1}, "rank=-1 must"),
        ({"position": Position(1, 0, 99)}, "the 1 batches of an epoch"),
        ({"position": Position(-1)}, "must be from 0"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, Any], match: str) -> None:
    options = {"position": Position(1), "tokens_per_update": 1, **changes}
    with pytest.raises(ValueError, match=match):
        Loader(make(2), **options)


SCRIPT = """
import signal, time
from lightconv.data import Loader, Position
from tests.data.test_loader import make
signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored in tests
loader = Loader(make(600, seconds=0.1), Position(1), tokens_per_update=1)
next(loader)
print("ready", flush=True)
time.sleep(600)
"""


def test_ctrl_c_ends_a_loop_that_did_not_close_its_loader() -> None:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command, home = [sys.executable, "-c", SCRIPT], Path(__file__).parents[2]
    process = subprocess.Popen(command, cwd=home, start_new_session=True, **pipes)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, errors = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGINT
    # One traceback, that of the loop.
    assert errors.count("Traceback") == 1
    assert errors.endswith("KeyboardInterrupt\n")


def test_an_epoch_of_a_store(tmp_path: Path) -> None:
    batches = Batches(Pairs(write_pairs(tmp_path, [SOURCE, TARGET])), max_tokens=100)
    order = in_order(batches, 1, 0) + in_order(batches, 1, 1)
    with Loader(batches, Position(1), tokens_per_update=1) as loader:
        for number, (rows, [batch]) in enumerate(zip(order, loader, strict=False), 1):
            check_pairs(batch, rows)
            assert loader.position == (1, *divmod(number, batches.plan.batches))
    assert number == len(order) > 60


def test_a_million_tokens_a_second(tmp_path: Path) -> None:
    sides = ted_like(20_000)
    with StoreWriter(tmp_path, "train", VOCAB) as writer:
        writer.append(*([np.arange(4, n + 3) for n in side.tolist()] for side in sides))
    batches = Batches(Pairs(Store(tmp_path, "train")), max_tokens=4096)
    rates = []
    with Loader(batches, Position(1), tokens_per_update=1) as loader:
        for _ in range(8):
            began = time.perf_counter()
            tokens = sum(batch.tokens for group in islice(loader, 40) for batch in group)
            rates.append(tokens / (time.perf_counter() - began))
    # The best of them: the machine may have other things to do.
    assert max(rates) > 1e6
