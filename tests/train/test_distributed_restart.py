"""R7: torchrun restarts dead workers, and the run resumes, bit for bit."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from lightconv.processes import PARENT
from lightconv.train.launch import STORE, rank_environment
from tests.harness.agent import RANKS
from tests.harness.examples import fingerprint, model_config, prepare, write_recipe
from tests.harness.server import RankServer, environment

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
