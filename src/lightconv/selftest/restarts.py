"""R7: torchrun starts dead workers again, and the run goes on, bit for bit."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lightconv.processes import PARENT
from lightconv.selftest.agent import RANKS
from lightconv.selftest.examples import fingerprint, model_config, prepare, write_recipe
from lightconv.selftest.forks import environment
from lightconv.selftest.promise import Figures, expect
from lightconv.selftest.ranks import RankServer, shared_ranks
from lightconv.train.launch import STORE, rank_environment

EACH = 4  # updates between two kills; there is a checkpoint after each two
LONGEST = 200.0  # seconds for what is left of a run


class Attempts(NamedTuple):
    """What an agent and its workers have left.

    code, said  its exit code, and what all of them wrote
    workers     how many there were
    same        whether the run is the one that nobody disturbed
    """

    code: int
    said: str
    workers: int
    same: bool


def check_restarts(folder: Path, full: bool) -> Figures:
    """R7."""
    kills = 8 if full else 1
    found = kill_and_restart(shared_ranks(), folder, kills)
    return {"kills": kills, "restarts": judge(found, kills), "different": 0}


def judge(found: Attempts, kills: int) -> int:
    """How often the run was resumed: after each kill, and not more often."""
    expect(found.code == 0, f"torchrun ended with {found.code}: {found.said[-2000:]}")
    expected = RANKS * (kills + 1)
    expect(found.workers == expected, f"{found.workers} workers for {kills} kills, not {expected}")
    resumed = found.said.count("resumed from step ")
    expect(resumed == kills, f"resumed {resumed} times after {kills} kills")
    expect(found.same, f"other than undisturbed after {kills} kills")
    return resumed


def kill_and_restart(server: RankServer, folder: Path, kills: int) -> Attempts:
    """Kills a worker of each attempt, the first or the second in turn."""
    steps = EACH * (kills + 4)
    recipe = write_recipe(
        folder / "recipe.json", model_config(), max_steps=steps, save_every=2, log_every=1
    )
    command = ["train", str(recipe), "--data", str(prepare(folder / "data")), "--overwrite"]
    rows = server.run(*command, "--out", folder / "whole", size=RANKS)
    expect(rows[0]["code"] == 0, f"a run that nobody disturbed: {rows[0]['err']}")
    run, pids = folder / "parts", folder / "pids"
    pids.mkdir()
    agent = [sys.executable, "-m", "lightconv.selftest.agent", str(pids), str(kills)]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [*agent, *command, "--out", str(run)],
            env=_environment(),
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        try:
            for attempt in range(kills):
                _kill_one(process, run, pids, attempt)
            code = process.wait(timeout=LONGEST)
        finally:
            process.kill()
            process.wait()
        said.seek(0)
        text = said.read()
    same = code == 0 and fingerprint(run) == fingerprint(folder / "whole")
    return Attempts(code, text, len(list(pids.iterdir())), same)


def _environment() -> dict[str, str]:
    """That of any process on this machine, but for what our own launcher says."""
    env, _ = rank_environment(environment(), RANKS, Path())
    return {name: value for name, value in env.items() if name not in (STORE, PARENT)}


def _kill_one(process: "subprocess.Popen[bytes]", run: Path, pids: Path, attempt: int) -> None:
    """As soon as the run has got so far in this attempt."""
    deadline = time.monotonic() + LONGEST
    victim = pids / f"{attempt}-{attempt % RANKS}.pid"
    while _last_step(run) < EACH * attempt + 3 or not _written(victim):
        expect(process.poll() is None, f"torchrun ended with {process.returncode} before a kill")
        expect(time.monotonic() < deadline, f"attempt {attempt} did not get on")
        time.sleep(0.005)
    os.kill(int(victim.read_text()), signal.SIGKILL)


def _written(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _last_step(run: Path) -> int:
    path = run / "log.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    with suppress(ValueError, IndexError):
        return int(json.loads(lines[-1])["step"])
    return 0
