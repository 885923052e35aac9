"""Several ranks compute what one would, share a model, and end or restart together."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import lightconv
from lightconv.data import PAD
from lightconv.models import AdaptiveConfig, DynamicConvConfig
from lightconv.models.folder import build
from lightconv.models.tensors import parameters
from lightconv.processes import PARENT
from lightconv.train import CosineConfig, Group
from lightconv.train.checkpoints import Checkpoints
from lightconv.train.distributed import join, meet, pieces
from lightconv.train.launch import EXIT_LOST, STORE, RankPlace, rank_environment
from lightconv.train.log import read_log
from lightconv.train.optim import batch_loss, empty_batch
from tests.harness.agent import RANKS
from tests.harness.examples import fingerprint, lm_config, model_config, prepare, write_recipe
from tests.harness.server import Answer as Row
from tests.harness.server import RankServer, environment
from tests.train.rank_cases import (
    difference,
    exchange,
    out_of_memory,
    overflow,
    updates,
    whole_run,
    without_key_biases,
)


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
        # One rank has a batch less, one has none.
        (2, 3, 1e-6, {"shard": True, "steps": 8, "optimizer": "nesterov", "ema": 0.9}),
        (3, 2, 1e-6, {"shard": True, "steps": 8, "text": True}),
        pytest.param(2, 4, 1e-6, {"shard": True}, marks=SLOW),
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
    one, every, shard = tmp_path / "one", tmp_path / "all", "shard" in changes
    alone_too = {**changes, "shard": False, "count": count}
    (alone,) = rank_server.call(updates, size=1, folder=str(one), **alone_too)
    losses = rank_server.call(updates, size=size, folder=str(every), count=count, **changes)
    assert all(found == losses[0] for found in losses)
    *trained, validated = losses[0]
    assert trained == pytest.approx(alone[:-1], rel=1e-5 if most else 0.0, abs=0.0)
    # The sums of a validation are in another order even where those of updates are not.
    assert validated == pytest.approx(alone[-1], rel=1e-5 if shard else 1e-6, abs=0.0)
    first = every / "0.safetensors"
    for rank in range(1, 1 if shard else size):
        assert difference(first, every / f"{rank}.safetensors", all_of_them=True) == 0.0
    assert difference(one / "0.safetensors", first, all_of_them=most == 0.0) <= most


def test_ranks_agree_on_skips(rank_server: RankServer) -> None:
    """R8: what is not finite on one rank reaches the parameters of none."""
    first, second = rank_server.call(overflow)
    assert first == second
    assert first["skipped"] == [True, False]
    assert first["kept"]
    assert (first["step"], first["count"]) == (12, 11)
    # Rank 0, whose batches are all good, knows it too.
    assert first["text"].startswith("diverged at step 13: 10 gradients in a row were not finite")
    assert "(batch 1 of 2, examples 5, 6)" in first["text"]


@pytest.mark.parametrize("late", [False, True])
def test_a_rank_without_memory_keeps_nobody_waiting(
    late: bool, rank_server: RankServer, tmp_path: Path
) -> None:
    """R9: rank 1 cuts its batches, and the update is the same."""
    rich = rank_server.call(out_of_memory, folder=f"{tmp_path}/rich", limit=None, late=late)
    poor = rank_server.call(out_of_memory, folder=f"{tmp_path}/poor", limit=5, late=late)
    if late:  # the last pass of an update has sent the decoder's gradients by then
        assert all(0 in found["sent"] and max(found["sent"]) > 3 for found in (*rich, *poor))
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


# --- Shards


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("data"))


def test_checkpoints_are_those_of_replicas(
    rank_server: RankServer, data: Path, tmp_path: Path
) -> None:
    """Begun with shards, gone on without, and the other way round; a metric sees a whole model."""
    arguments: dict[str, Any] = {"data": str(data), "ema": 0.9, "validate_every": 4}
    names = {"whole": (False, False), "a": (True, False), "b": (False, True)}
    for name, shards in names.items():
        arguments["folder"] = f"{tmp_path}/{name}"
        for shard, steps, scores in zip(shards, (4, 8), ([1.0, 2.0], [2.0]), strict=True):
            run = {"shard": shard, "max_steps": steps, "scores": scores, **arguments}
            rows = rank_server.call(whole_run, **run)
            assert [(row["code"], row["step"]) for row in rows] == [(0, steps)] * 2
    whole = Checkpoints(tmp_path / "whole" / "checkpoints")
    for name in names:
        found = Checkpoints(tmp_path / name / "checkpoints")
        assert found.steps() == whole.steps()
        a, b = whole.load(8), found.load(8)
        assert a.score == b.score == 2.0
        assert a.values["optimizer"] == b.values["optimizer"]
        assert a.tensors.keys() == b.tensors.keys() == {"model", "optimizer", "ema"}
        for part, tensors in a.tensors.items():
            others = without_key_biases(b.tensors[part])
            assert tensors.keys() == others.keys()
            for key, tensor in without_key_biases(tensors).items():
                torch.testing.assert_close(tensor, others[key], atol=1e-6, rtol=1e-4)
        exported = parameters(lightconv.load(tmp_path / name / "model"))
        assert all(torch.equal(exported[key], b.tensors["ema"][key]) for key in exported)


@pytest.mark.parametrize(
    "config",
    [model_config(), lm_config(), lm_config(adaptive=AdaptiveConfig(cutoffs=(6,)))],
    ids=["pairs", "texts", "bands"],
)
def test_a_pass_over_nothing_adds_nothing(config: Any) -> None:
    model = build(config).train()
    batch = empty_batch(model)
    assert bool((batch.target == PAD).all())
    found = batch_loss(model, batch)
    assert (found.loss.item(), found.nll.item(), found.tokens) == (0.0, 0.0, 0)
    torch.autograd.backward(found.loss)
    # Zeros, not None: gradients that ranks can add up.
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


# --- `lightconv train` as several ranks


# Every update has two batches: their sum does not depend on an order.
TWO = {"max_tokens": 60, "tokens_per_update": 92}


def recipe(folder: Path, **changes: Any) -> Path:
    return write_recipe(
        folder / "recipe.json", model_config(), **{"max_steps": 20, **TWO, **changes}
    )


def spoken(rows: list[Row]) -> str:
    """What all ranks have written to stderr, of which only one may have written anything."""
    (text,) = [row["err"] for row in rows if row["err"]] or [""]
    return text


def same(a: Path, b: Path) -> None:
    """Two runs that are equal, but for the number of processes."""
    one, two = fingerprint(a), fingerprint(b)
    for found in (one, two):
        for values in [found[key] for key in found if key.endswith(" values")]:
            del values["machine"]["processes"]
    assert one == two


def test_two_ranks_leave_the_files_of_one(
    rank_server: RankServer, data: Path, tmp_path: Path
) -> None:
    command = ("train", recipe(tmp_path, average_last=2), "--data", data, "--out")
    (alone,) = rank_server.run(*command, tmp_path / "one", size=1)
    assert alone["code"] == 0, alone["err"]
    rows = rank_server.run(*command, tmp_path / "two")
    assert [row["code"] for row in rows] == [0, 0], rows
    assert "at most 60 positions on 2 devices" in rows[0]["out"]
    assert "in 2.0 batches on average" in rows[0]["out"]
    assert "step 20/20" in rows[0]["err"]
    assert rows[1]["out"] == rows[1]["err"] == ""
    same(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_to_one_rank_stops_all(
    number: signal.Signals, code: int, rank_server: RankServer, data: Path, tmp_path: Path
) -> None:
    """And another number of ranks goes on, bit for bit."""
    command = ("train", recipe(tmp_path, log_every=1), "--data", data, "--out")
    (whole,) = rank_server.run(*command, tmp_path / "whole", size=1)
    assert whole["code"] == 0
    run = tmp_path / "parts"
    kill = {"rank": 1, "signal": number, "file": str(run / "log.jsonl"), "lines": 3}
    rows = rank_server.run(*command, run, kill=kill)
    assert [row["code"] for row in rows] == [code, code], rows
    step = Checkpoints(run / "checkpoints").steps()[-1]
    assert f"stopped at step {step}, saved as " in spoken(rows)
    assert 3 <= step < 20
    (rest,) = rank_server.run(*command, run, size=1)
    assert rest["code"] == 0
    assert f"resumed from step {step}" in rest["err"]
    assert "processes 2 -> 1" in rest["err"]
    for name in ("model", "optimizer"):
        assert fingerprint(run)[f"20 {name}"] == fingerprint(tmp_path / "whole")[f"20 {name}"]


def test_a_killed_rank_ends_the_others_and_the_run_goes_on(
    rank_server: RankServer, data: Path, tmp_path: Path
) -> None:
    path = recipe(tmp_path, log_every=1, save_every=3, max_steps=14)
    command = ("train", path, "--data", data, "--out")
    assert rank_server.run(*command, tmp_path / "whole")[0]["code"] == 0
    run = tmp_path / "parts"
    for rank, lines in ((1, 4), (0, 8)):
        kill = {"rank": rank, "signal": 9, "file": str(run / "log.jsonl"), "lines": lines}
        rows = rank_server.run(*command, run, kill=kill)
        # Whoever has started them says what happened.
        assert [row["code"] for row in rows][rank] == -9
        assert [row["code"] for row in rows][1 - rank] == EXIT_LOST
        assert "error" not in rows[0]["err"] + rows[1]["err"]
    rows = rank_server.run(*command, run)
    assert [row["code"] for row in rows] == [0, 0]
    assert "resumed from step " in rows[0]["err"]
    assert fingerprint(run) == fingerprint(tmp_path / "whole")


def refused(rows: list[Row], *words: str, code: int = 2) -> bool:
    """All ranks have this exit code, and one of them says why, in one line."""
    assert [row["code"] for row in rows] == [code] * len(rows), rows
    (line,) = [line for row in rows for line in row["err"].splitlines() if "error" in line]
    assert line.startswith("error: ")
    return all(word in line for word in words)


def test_mistakes_are_one_line(rank_server: RankServer, data: Path, tmp_path: Path) -> None:
    path, run = recipe(tmp_path, max_steps=2), tmp_path / "run"
    ends = ("--data", data, "--out", run)
    assert refused(
        rank_server.run("train", path, "--data", tmp_path, "--out", run), "no split 'train'"
    )
    assert not run.exists()
    # What only the first rank looks at.
    run.mkdir()
    (run / "letter.txt").touch()
    assert refused(rank_server.run("train", path, *ends, size=3), "exists and is not a run folder")
    (run / "letter.txt").unlink()
    both = rank_server.run("train", path, *ends, "--shard", "--compile")
    assert [row["code"] for row in both] == [2, 2]
    assert "--shard and train.compile=true do not go together" in both[0]["err"]


def test_divergence_is_exit_3(rank_server: RankServer, data: Path, tmp_path: Path) -> None:
    layers = (DynamicConvConfig(kernel=3, heads=2, normalize="none"),) * 2
    path = write_recipe(
        tmp_path / "recipe.json",
        model_config(encoder=layers, decoder=layers, pre_norm=True, final_norm=False),
        schedule=CosineConfig(peak=1e12, warmup=4, period=30),
        **TWO,
    )
    rows = rank_server.run("train", path, "--data", data, "--out", tmp_path / "run")
    assert refused(rows, "diverged at step ", "examples ", "The last checkpoint is ", code=3)


# --- A metric


METRIC: dict[str, Any] = {"max_steps": 40, "validate_every": 4, **TWO}


def test_the_first_rank_computes_the_metric_and_all_agree(
    rank_server: RankServer, data: Path, tmp_path: Path
) -> None:
    """No rank goes on when patience ends on another one."""
    scores = [1.0, 2.0, 1.5, 0.5]
    arguments = {"folder": f"{tmp_path}/run", "data": str(data), **METRIC}
    rows = rank_server.call(whole_run, scores=scores, patience=2, **arguments)
    expected = {"code": 0, "step": 16, "best": 8, "stale": 2}
    for found in rows:
        assert {name: found[name] for name in expected} == expected
    assert [found["calls"] for found in rows] == [4, 0]
    entries = [entry for entry in read_log(tmp_path / "run" / "log.jsonl") if "metric" in entry]
    assert [entry["metric"]["score"] for entry in entries] == scores


@pytest.mark.parametrize("shard", [False, True])
def test_a_rank_that_waits_for_the_metric_can_stop(
    shard: bool, rank_server: RankServer, data: Path, tmp_path: Path
) -> None:
    arguments = {"folder": f"{tmp_path}/run", "data": str(data), "shard": shard, **METRIC}
    rows = rank_server.call(whole_run, scores=[1.0, 9.0], stop_rank=1, **arguments)
    for found in rows:
        assert (found["code"], found["step"], found["best"]) == (75, 8, 4)


# --- R7: torchrun restarts dead workers


EACH = 4  # updates between two kills; there is a checkpoint after each two
LONGEST = 200.0  # seconds for what is left of a run


@pytest.mark.parametrize("kills", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_killed_and_restarted(kills: int, rank_server: RankServer, tmp_path: Path) -> None:
    """A worker of each attempt is killed, the first or the second in turn."""
    steps, run, pids = EACH * (kills + 4), tmp_path / "parts", tmp_path / "pids"
    recipe = write_recipe(
        tmp_path / "recipe.json", model_config(), max_steps=steps, save_every=2, log_every=1
    )
    command = ["train", str(recipe), "--data", str(prepare(tmp_path / "data")), "--overwrite"]
    rows = rank_server.run(*command, "--out", tmp_path / "whole", size=RANKS)
    assert rows[0]["code"] == 0, rows[0]["err"]
    pids.mkdir()
    # As for any process on this machine, without what our own launcher sets.
    env, _ = rank_environment(environment(), RANKS, Path())
    env = {name: value for name, value in env.items() if name not in (STORE, PARENT)}
    agent = [sys.executable, "-m", "tests.harness.agent", str(pids), str(kills)]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(
            [*agent, *command, "--out", str(run)], env=env, stdout=said, stderr=subprocess.STDOUT
        )
        try:
            for attempt in range(kills):
                kill_one(process, run, pids, attempt)
            process.wait(timeout=LONGEST)
        finally:
            process.kill()
            process.wait()
    text = (tmp_path / "said").read_text()
    assert process.returncode == 0, text[-2000:]
    assert len(list(pids.iterdir())) == RANKS * (kills + 1)
    # Resumed after each kill, and not more often.
    assert text.count("resumed from step ") == kills
    assert fingerprint(run) == fingerprint(tmp_path / "whole")


def kill_one(process: "subprocess.Popen[bytes]", run: Path, pids: Path, attempt: int) -> None:
    """Kills a worker as soon as the run has got so far in this attempt."""
    deadline = time.monotonic() + LONGEST
    victim = pids / f"{attempt}-{attempt % RANKS}.pid"
    while last_step(run) < EACH * attempt + 3 or not (victim.exists() and victim.read_text()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(int(victim.read_text()), signal.SIGKILL)


def last_step(run: Path) -> int:
    path = run / "log.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    with suppress(ValueError, IndexError):
        return int(json.loads(lines[-1])["step"])
    return 0
