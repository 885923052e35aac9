"""R1, R2 and R6 for whole runs: killed, stopped or short of room, then as if nothing had been."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from lightconv.selftest.examples import MIXERS, fingerprint, model_config, prepare, write_recipe
from lightconv.selftest.forks import Answer, Server, shared
from lightconv.selftest.points import worth_it
from lightconv.selftest.promise import Figures, expect
from lightconv.selftest.writers import check_failing, check_killed
from lightconv.train.checkpoints import Checkpoints
from lightconv.train.config import AdamConfig, CosineConfig, NesterovConfig

# Three updates are about an epoch, and there is a checkpoint after each three.
STEPS = 15
# With this one an older one goes.
CRASH_STEP = 12
# One layer with everything random in it on each side: a run takes half a second.
_MODEL = model_config(encoder=MIXERS[:1], decoder=MIXERS[1:])
_COSINE = CosineConfig(peak=0.1, warmup=5, period=10)
# Dropout, DropConnect and accumulation are on in all of them; one average or the other.
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
    """A run that nobody disturbed: how to start it elsewhere, what it left, how long it took."""

    command: tuple[object, ...]
    left: dict[str, Any]
    seconds: float


def undisturbed(server: Server, folder: Path, name: str, steps: int = STEPS) -> Undisturbed:
    """Trains one of RUNS in `folder`/whole."""
    folder.mkdir(parents=True, exist_ok=True)
    changes = {"max_steps": steps, "save_every": 3, "validate_every": 6, "log_every": 1}
    recipe = write_recipe(folder / "recipe.json", _MODEL, **changes, **RUNS[name])
    command = ("train", recipe, "--data", prepare(folder / "data"), "--out")
    answer = server.run(*command, folder / "whole")
    _ended(answer)
    left = fingerprint(folder / "whole")
    epoch = left[f"{steps} values"]["progress"]["position"][1]
    expect(epoch >= 2, f"the run ended in epoch {epoch}, expected a later one")
    return Undisturbed(command, left, answer["seconds"])


def at_random_times(server: Server, folder: Path, name: str, kills: int, seed: int) -> list[str]:
    """So many kills, each followed by a resume; what each killed process had said last.

    A run that has come to its end before all kills were done is begun anew.
    """
    draw = random.Random(seed)
    whole = undisturbed(server, folder, name)
    said: list[str] = []
    parts, number = folder / "parts-0", 0
    while len(said) < kills:
        answer = server.run(*whole.command, parts, after=draw.uniform(0.2, 0.9) * whole.seconds)
        if answer["code"] == -signal.SIGKILL:
            said.append(answer["err"].splitlines()[-1] if answer["err"] else "")
            continue
        _ended(answer)
        _same(parts, whole, f"{name} after {len(said)} kills")
        number += 1
        parts = folder / f"parts-{number}"
    _ended(server.run(*whole.command, parts))
    _same(parts, whole, f"{name} after {kills} kills")
    return said


def at_crash_points(server: Server, folder: Path, name: str, every: int = 1) -> int:
    """A kill at every so many operations of a save; how many there were."""
    whole = undisturbed(server, folder, name)
    before = folder / "before"
    # Killed before the first operation: all later attempts begin with the checkpoint before.
    answer = server.run(*whole.command, before, crash=[CRASH_STEP, 0, False])
    expect(answer["code"] == -signal.SIGKILL, f"not killed: {answer['err']}")
    counted = _attempt(server, whole, before, -1, halfway=False)
    expect(counted["code"] == 0, f"not saved: {counted['err']}")
    names = json.loads(counted["out"][counted["out"].rindex("[") :])
    points = worth_it(names)[::every]
    for point in points:
        halfway = names[point] == "write" and point % 2 == 0
        answer = _attempt(server, whole, before, point, halfway=halfway)
        expect(answer["code"] == -signal.SIGKILL, f"point {point}: {answer['err']}")
        _ended(server.run(*whole.command, folder / "parts"))
        _same(folder / "parts", whole, f"{name} killed at operation {point}, {names[point]}")
    return len(points)


def check_kills(folder: Path, full: bool) -> Figures:
    """R1."""
    kills = dict.fromkeys(RUNS, 13) if full else {"adam-fp32": 2, "nesterov-bf16": 2}
    points = dict.fromkeys(RUNS, 1) if full else {"adam-bf16": 8}
    server = shared()
    at_points = [
        at_crash_points(server, folder / f"points-{name}", name, every)
        for name, every in points.items()
    ]
    for name, count in kills.items():
        at_random_times(server, folder / f"random-{name}", name, count, seed=count)
    return {
        "writer_points": check_killed(folder / "writer", full),
        "crash_points": sum(at_points),
        "random_kills": sum(kills.values()),
        "runs": sorted({*kills, *points}),
        "different": 0,
    }


def check_twice(folder: Path, full: bool) -> Figures:
    """R2; if `full`, the second time on processors that others use too."""
    names, steps = (list(RUNS), 50) if full else (["adam-bf16"], STEPS)
    for name in names:
        whole = undisturbed(shared(), folder / name, name, steps)
        with _stress() if full else nullcontext():
            _ended(shared().run(*whole.command, folder / name / "again"))
        _same(folder / name / "again", whole, f"{name} run a second time")
    return {"runs": names, "steps": steps, "different": 0}


@contextmanager
def _stress() -> Iterator[None]:
    """A process more than there are processors, none of which ever waits."""
    count = (os.cpu_count() or 1) + 1
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def check_stops(folder: Path, full: bool) -> Figures:
    """R6 for a whole run: signals at random times, and a disk that is full."""
    draw, slowest, stopped = random.Random(6), 0.0, 0
    kinds = {signal.SIGTERM: 75, signal.SIGINT: 130}
    server = shared()
    whole = undisturbed(server, folder, "adam-fp32")
    for number, code in [*kinds.items()] * (10 if full else 2):
        parts = folder / f"parts-{stopped}"
        # Before the command has begun its work a signal ends it like any other program.
        begun, delay = str(parts / "checkpoints" / ".lock"), draw.uniform(0.0, 0.6) * whole.seconds
        answer = server.run(*whole.command, parts, signal=int(number), when=begun, after=delay)
        saved = answer["code"] == 0 or (answer["code"] == code and "saved as" in answer["err"])
        expect(saved, f"{number.name}: {answer}")
        slowest = max(slowest, answer.get("stopping", 0.0))
        _ended(server.run(*whole.command, parts))
        _resumed(parts, whole, f"after {number.name}")
        stopped += 1
    expect(slowest < 30.0, f"a stop took {slowest:.1f} s")
    _full_disk(server, folder, whole)
    return {
        "signals": stopped,
        "slowest_seconds": round(slowest, 2),
        "failed_operations": check_failing(folder / "writer", full),
        "lost": 0,
    }


def _full_disk(server: Server, folder: Path, whole: Undisturbed) -> None:
    """No file may grow as large as a checkpoint's; then there is room again."""
    parts = folder / "full"
    server.run(*whole.command, parts, crash=[CRASH_STEP, 0, False])
    last = Checkpoints(parts / "checkpoints").steps()[-1]
    answer = server.run(*whole.command, parts, file_limit=12_000)
    line = answer["err"].splitlines()[-1]
    expect(answer["code"] == 1, f"a full disk gave exit {answer['code']}: {line}")
    expect(line.startswith("error: ") and f"step-{last:08d}" in line, f"a full disk: {line}")
    _ended(server.run(*whole.command, parts))
    _same(parts, whole, "after a full disk")


def _attempt(
    server: Server, whole: Undisturbed, before: Path, point: int, *, halfway: bool
) -> Answer:
    """The save of CRASH_STEP in a fresh copy of `before`, killed at a point."""
    parts = before.parent / "parts"
    shutil.rmtree(parts, ignore_errors=True)
    shutil.copytree(before, parts)
    return server.run(*whole.command, parts, crash=[CRASH_STEP, point, halfway])


def _ended(answer: Answer) -> None:
    expect(answer["code"] == 0, f"a run ended with {answer['code']}: {answer['err']}")


def _same(run: Path, whole: Undisturbed, what: str) -> None:
    left = fingerprint(run)
    odd = sorted(key for key in {*left, *whole.left} if left.get(key) != whole.left.get(key))
    expect(not odd, f"{what}: other than undisturbed in {', '.join(odd)}")


def _resumed(run: Path, whole: Undisturbed, what: str) -> None:
    """The same, but for a checkpoint that the stop has left."""
    left = fingerprint(run)
    keys = [key for key in whole.left if key not in ("steps", "best")]
    # What a stop has left may have pushed out an older one that is kept only to fall back to.
    odd = [key for key in keys if key in left and left[key] != whole.left[key]]
    expect(not odd, f"{what}: other than undisturbed in {', '.join(odd)}")
    expect(f"{STEPS} model" in left, f"{what}: the last checkpoint is missing")
