"""`lightconv train` as several ranks: files, resuming, stops, errors."""

import signal
from pathlib import Path
from typing import Any

import pytest

from lightconv.models import DynamicConvConfig
from lightconv.train import CosineConfig
from lightconv.train.checkpoints import Checkpoints
from lightconv.train.launch import EXIT_LOST
from lightconv.train.log import read_log
from tests.harness.examples import fingerprint, model_config, prepare, write_recipe
from tests.harness.server import Answer as Row
from tests.harness.server import RankServer
from tests.train.rank_cases import whole_run

# Every update has two batches: their sum does not depend on an order.
TWO = {"max_tokens": 60, "tokens_per_update": 92}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("data"))


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


def test_the_first_rank_computes_the_metric_and_all_agree(
    rank_server: RankServer, data: Path, tmp_path: Path
) -> None:
    """No rank goes on when patience ends on another one."""
    arguments: dict[str, Any] = {"data": str(data), "max_steps": 40, "validate_every": 4, **TWO}
    rows = rank_server.call(
        whole_run, folder=f"{tmp_path}/run", scores=[1.0, 2.0, 1.5, 0.5], patience=2, **arguments
    )
    expected = {"code": 0, "step": 16, "best": 8, "stale": 2}
    for found in rows:
        assert {name: found[name] for name in expected} == expected
    assert [found["calls"] for found in rows] == [4, 0]
    entries = [entry for entry in read_log(tmp_path / "run" / "log.jsonl") if "metric" in entry]
    assert [entry["metric"]["score"] for entry in entries] == [1.0, 2.0, 1.5, 0.5]


def test_a_rank_that_waits_for_the_metric_can_stop(
    rank_server: RankServer, data: Path, tmp_path: Path
) -> None:
    arguments: dict[str, Any] = {"data": str(data), "max_steps": 12, "validate_every": 4, **TWO}
    rows = rank_server.call(
        whole_run, folder=f"{tmp_path}/run", scores=[1.0, 9.0], stop_rank=1, **arguments
    )
    for found in rows:
        assert (found["code"], found["step"], found["best"]) == (75, 8, 4)
