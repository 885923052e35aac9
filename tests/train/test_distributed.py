"""Several ranks exchange values, and compute what one rank would."""

import math
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from lightconv.train import Group
from lightconv.train.distributed import join, meet, pieces
from lightconv.train.launch import RankPlace
from tests.harness.server import RankServer
from tests.train.rank_cases import difference, exchange, out_of_memory, overflow, updates


def test_what_ranks_tell_each_other(rank_server: RankServer) -> None:
    for rank, found in enumerate(rank_server.call(exchange, size=3)):
        assert found["rank"] == [rank, 3]
        assert found["sum"] == [0 + 1 + 2, 1.5]
        assert found["agree"] == 75
        assert found["tell"] == "one"
        assert found["silence"] is None
        assert found["first"] == 0.1
        # Rank 1 had none.
        assert found["weight"] == [[1.0 + 3.0] * 3] * 2
        assert found["bias"] == [3.0, 30.0]
        assert found["norm"] == pytest.approx(math.sqrt(6 * 16.0 + 9.0 + 900.0))
        assert found["hurried"] == ["nan", [True] if rank == 0 else []]


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "size, count, most, changes",
    [
        (2, 2, 0.0, {}),
        (2, 4, 1e-6, {}),
        (2, 2, 0.0, {"optimizer": "nesterov", "precision": "bf16", "ema": 0.9}),
        pytest.param(2, 2, 0.0, {"precision": "fp16"}, marks=SLOW),
        (3, 2, 0.0, {}),  # the third rank has no batch
        pytest.param(4, 4, 1e-6, {}, marks=SLOW),
    ],
)
def test_ranks_equal_one_that_accumulates(
    size: int,
    count: int,
    most: float,
    changes: dict[str, Any],
    rank_server: RankServer,
    tmp_path: Path,
) -> None:
    """R4: 20 updates with every kind of dropout and clipping, then a validation."""
    one, every = tmp_path / "one", tmp_path / "all"
    (alone,) = rank_server.call(updates, size=1, folder=str(one), count=count, **changes)
    losses = rank_server.call(updates, size=size, folder=str(every), count=count, **changes)
    assert all(found == losses[0] for found in losses)
    *trained, validated = losses[0]
    assert trained == pytest.approx(alone[:-1], rel=1e-5 if most else 0.0, abs=0.0)
    # The sums of a validation are in another order even where those of updates are not.
    assert validated == pytest.approx(alone[-1], rel=1e-6, abs=0.0)
    first = every / "0.safetensors"
    for rank in range(1, size):
        assert difference(first, every / f"{rank}.safetensors", all_of_them=True) == 0.0
    assert difference(one / "0.safetensors", first, all_of_them=most == 0.0) <= most


def test_ranks_agree_on_skips(rank_server: RankServer) -> None:
    """R8: what is not finite on one rank reaches the parameters of none."""
    first, second = rank_server.call(overflow)
    assert first == second
    assert first["skipped"] == [True, False]
    assert first["kept"]
    assert (first["step"], first["count"]) == (13, 11)
    # Rank 0, whose batches are all good, knows it too.
    assert first["text"].startswith("diverged at step 13: 10 gradients in a row were not finite")
    assert "(batch 1 of 2, examples 5, 6)" in first["text"]


def test_a_rank_without_memory_keeps_nobody_waiting(
    rank_server: RankServer, tmp_path: Path
) -> None:
    """R9: rank 1 cuts its batches, and the update is the same."""
    rich = rank_server.call(out_of_memory, folder=f"{tmp_path}/rich", limit=None)
    poor = rank_server.call(out_of_memory, folder=f"{tmp_path}/poor", limit=5)
    assert [found["own"] for found in rich] == [found["agreed"] for found in rich] == [None, None]
    assert poor[0]["own"] is None
    assert poor[0]["agreed"] == poor[1]["agreed"] == poor[1]["own"] > 0
    assert poor[0]["digest"] == poor[1]["digest"]
    assert (
        difference(tmp_path / "rich" / "0.safetensors", tmp_path / "poor" / "0.safetensors") <= 1e-6
    )


# --- Meeting


def attempt(path: Path, size: int, late: int | None = None) -> list[dist.PrefixStore]:
    """So many ranks that meet in one file, one of them later than the others."""
    found: dict[int, dist.PrefixStore] = {}

    def begin(rank: int) -> None:
        store = dist.FileStore(str(path), -1)
        found[rank] = meet(store, RankPlace(rank, size, rank, size))

    threads = [threading.Thread(target=begin, args=(rank,)) for rank in range(size)]
    for rank, thread in enumerate(threads):
        if rank != late:
            thread.start()
    if late is not None:
        time.sleep(0.2)
        assert not found  # the words of the dead are there, but nobody goes
        threads[late].start()
    for thread in threads:
        thread.join(60)
    return [found[rank] for rank in range(size)]


def test_those_who_meet_share_what_no_earlier_attempt_had(tmp_path: Path) -> None:
    """R7: a restarted process finds the addresses of the dead in the store of torchrun."""
    path = tmp_path / "store"
    before = attempt(path, 3)
    before[0].set("address", "of the dead")
    assert all(store.get("address") == b"of the dead" for store in before)
    for size, late in ((3, 0), (3, 2), (2, 1), (4, None)):
        stores = attempt(path, size, late)
        assert not any(store.check(["address"]) for store in stores)
        stores[-1].set("address", f"{size} {late}")
        assert all(store.get("address") == f"{size} {late}".encode() for store in stores)


def test_a_stop_before_all_have_met(tmp_path: Path) -> None:
    store = dist.FileStore(str(tmp_path / "store"), -1)
    with pytest.raises(SystemExit) as stopped:
        meet(store, RankPlace(1, 2, 1, 2), stop=lambda: 75)
    assert stopped.value.code == 75


def test_one_process_is_a_group_of_one() -> None:
    for place in (None, RankPlace(0, 1, 0, 1)):
        with join(place, torch.device("cpu"), {}) as group:
            assert type(group) is Group
        assert not dist.is_initialized()


# --- Alone


def test_pieces_are_large_and_of_one_type() -> None:
    tensors: list[Tensor] = [torch.zeros(size) for size in (1, 2, 3, 9, 1)]
    tensors += [torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)]
    found = [[t.nbytes for t in piece] for piece in pieces(tensors, 20)]
    assert found == [[4, 8], [12], [36], [4], [8, 8]]
    assert list(pieces([], 20)) == []
