"""R1, R2 and R6: a run that is killed, stopped or short of space, then resumed, bit for bit."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lightconv.train.checkpoints import Checkpoints
from lightconv.train.config import AdamConfig, CosineConfig, NesterovConfig
from tests.harness.crash import worth_it
from tests.harness.examples import MIXERS, fingerprint, model_config, prepare, write_recipe
from tests.harness.server import Answer, Server, shared
from tests.train.test_crash import FEWEST_POINTS

# Three updates are about an epoch, and there is a checkpoint after each three.
STEPS = 15
# Saving this checkpoint removes the oldest.
CRASH_STEP = 12
# One layer with everything random in it on each side: a run takes half a second.
_MODEL = model_config(encoder=MIXERS[:1], decoder=MIXERS[1:])
_COSINE = CosineConfig(peak=0.1, warmup=5, period=10)
# Dropout, DropConnect and accumulation are on in all of them.
RUNS: dict[str, dict[str, Any]] = {
    "adam-fp32": {"average_last": 3},
    "adam-bf16": {"precision": "bf16", "ema": 0.9, "optimizer": AdamConfig(weight_decay=0.01)},
    "nesterov-fp32": {
        "optimizer": NesterovConfig(momentum=0.9),
        "schedule": _COSINE,
        "clip_norm": 0.5,
        "average_last": 2,
    },
    "nesterov-bf16": {
        "optimizer": NesterovConfig(momentum=0.9),
        "schedule": _COSINE,
        "precision": "bf16",
        "ema": 0.9,
    },
}


class Undisturbed(NamedTuple):
    """The command without its run folder, the run's fingerprint, its duration."""

    command: tuple[object, ...]
    left: dict[str, Any]
    seconds: float


@pytest.fixture(scope="module")
def server() -> Server:
    return shared()


def undisturbed(server: Server, folder: Path, name: str, steps: int = STEPS) -> Undisturbed:
    changes = {"max_steps": steps, "save_every": 3, "validate_every": 6, "log_every": 1}
    recipe = write_recipe(folder / "recipe.json", _MODEL, **changes, **RUNS[name])
    command = ("train", recipe, "--data", prepare(folder / "data"), "--out")
    answer = server.run(*command, folder / "whole")
    assert answer["code"] == 0, answer["err"]
    left = fingerprint(folder / "whole")
    assert left[f"{steps} values"]["progress"]["position"][1] >= 2  # epochs
    return Undisturbed(command, left, answer["seconds"])


def finish(server: Server, whole: Undisturbed, run: Path) -> None:
    """Resumes a run to its end; it must equal the undisturbed one."""
    answer = server.run(*whole.command, run)
    assert answer["code"] == 0, answer["err"]
    assert fingerprint(run) == whole.left


SLOW = pytest.mark.slow
QUICK_KILLS = [("adam-fp32", 3), ("nesterov-bf16", 3)]


@pytest.mark.parametrize(
    "name, kills", [*QUICK_KILLS, *(pytest.param(name, 13, marks=SLOW) for name in RUNS)]
)
def test_killed_and_resumed(name: str, kills: int, server: Server, tmp_path: Path) -> None:
    """At random times; a run that ends before all kills are done is begun anew."""
    draw, whole = random.Random(kills), undisturbed(server, tmp_path, name)
    said: list[str] = []
    parts, number = tmp_path / "parts-0", 0
    while len(said) < kills:
        answer = server.run(*whole.command, parts, after=draw.uniform(0.2, 0.9) * whole.seconds)
        if answer["code"] == -signal.SIGKILL:
            said.append(answer["err"])
            continue
        assert answer["code"] == 0, answer["err"]
        assert fingerprint(parts) == whole.left
        number += 1
        parts = tmp_path / f"parts-{number}"
    finish(server, whole, parts)
    assert any("step" in text for text in said)


@pytest.mark.parametrize(
    "name, every", [("adam-bf16", 6), *(pytest.param(name, 1, marks=SLOW) for name in RUNS)]
)
def test_killed_while_it_saves(name: str, every: int, server: Server, tmp_path: Path) -> None:
    """At every kind of operation of a save, or at every sixth."""
    whole = undisturbed(server, tmp_path, name)
    before, parts = tmp_path / "before", tmp_path / "parts"
    # Killed before the first operation: all later attempts begin with the checkpoint before.
    answer = server.run(*whole.command, before, crash=[CRASH_STEP, 0, False])
    assert answer["code"] == -signal.SIGKILL, answer["err"]

    def attempt(point: int, halfway: bool) -> Answer:
        shutil.rmtree(parts, ignore_errors=True)
        shutil.copytree(before, parts)
        return server.run(*whole.command, parts, crash=[CRASH_STEP, point, halfway])

    counted = attempt(-1, False)
    assert counted["code"] == 0, counted["err"]
    names = json.loads(counted["out"][counted["out"].rindex("[") :])
    points = worth_it(names)[::every]
    assert len(points) >= FEWEST_POINTS // every
    for point in points:
        answer = attempt(point, names[point] == "write" and point % 2 == 0)
        assert answer["code"] == -signal.SIGKILL, f"point {point}: {answer['err']}"
        finish(server, whole, parts)


def test_operations_worth_a_kill() -> None:
    names = ["open", *["write"] * 6, "fsync", "open", "write", "fsync"]
    assert worth_it(names) == [0, 1, 2, 6, 7, 8, 9, 10]


# --- R2


def test_seeds_make_the_same_run_twice(server: Server, tmp_path: Path) -> None:
    finish(server, undisturbed(server, tmp_path, "adam-bf16"), tmp_path / "again")


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_the_same_run_on_busy_processors(name: str, server: Server, tmp_path: Path) -> None:
    whole = undisturbed(server, tmp_path, name, steps=50)
    with busy_processors():
        finish(server, whole, tmp_path / "again")


@contextmanager
def busy_processors() -> Iterator[None]:
    """One process more than there are processors, none of which ever waits."""
    count = (os.cpu_count() or 1) + 1
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


# --- R6


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_stopped_at_any_time_and_resumed(rounds: int, server: Server, tmp_path: Path) -> None:
    draw, whole = random.Random(6), undisturbed(server, tmp_path, "adam-fp32")
    kinds = [(signal.SIGTERM, 75), (signal.SIGINT, 130)] * rounds
    for place, (number, code) in enumerate(kinds):
        parts = tmp_path / f"parts-{place}"
        # Before the command has begun its work a signal ends it like any other program.
        begun, delay = str(parts / "checkpoints" / ".lock"), draw.uniform(0.0, 0.6) * whole.seconds
        answer = server.run(*whole.command, parts, signal=int(number), when=begun, after=delay)
        assert answer["code"] in (0, code), answer["err"]
        assert answer["code"] == 0 or "saved as" in answer["err"]
        assert answer["stopping"] < 30.0
        answer = server.run(*whole.command, parts)
        assert answer["code"] == 0, answer["err"]
        left = fingerprint(parts)
        assert f"{STEPS} model" in left
        # The stop has left a checkpoint of its own, which may have replaced an older one.
        for key in left.keys() & whole.left.keys() - {"steps", "best"}:
            assert left[key] == whole.left[key], f"{key} after {number.name}"


def test_a_full_disk(server: Server, tmp_path: Path) -> None:
    """No file may grow as large as a checkpoint's; then there is room again."""
    whole, parts = undisturbed(server, tmp_path, "adam-fp32"), tmp_path / "full"
    server.run(*whole.command, parts, crash=[CRASH_STEP, 0, False])
    last = Checkpoints(parts / "checkpoints").steps()[-1]
    answer = server.run(*whole.command, parts, file_limit=12_000)
    line = answer["err"].splitlines()[-1]
    assert answer["code"] == 1
    assert line.startswith("error: ") and f"step-{last:08d}" in line
    finish(server, whole, parts)
