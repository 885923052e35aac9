"""R1: killed at any time and resumed, a run is the one that nobody killed, bit for bit."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightconv.train import AdamConfig, CosineConfig, NesterovConfig
from tests.train.examples import fingerprint, model_config, prepare, write_recipe
from tests.train.server import Server

STEPS = 25
# Dropout, DropConnect and accumulation are on in all of them; one average or the other.
RUNS: dict[str, dict[str, Any]] = {
    "adam-fp32": {"average_last": 3},
    "adam-bf16": {"precision": "bf16", "ema": 0.9, "optimizer": AdamConfig(weight_decay=0.01)},
    "nesterov-fp32": {
        "optimizer": NesterovConfig(momentum=0.9),
        "schedule": CosineConfig(peak=0.1, warmup=5, period=20),
        "clip_norm": 0.5,
        "ema": 0.9,
    },
    "nesterov-bf16": {
        "optimizer": NesterovConfig(momentum=0.9),
        "schedule": CosineConfig(peak=0.1, warmup=5, period=20),
        "precision": "bf16",
        "average_last": 2,
    },
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as found:
        yield found


def kill_and_resume(server: Server, folder: Path, name: str, kills: int, seed: int) -> list[str]:
    """Runs once undisturbed and once with so many kills; what each killed process had said last.

    A run that has come to its end before all kills were done is begun anew.
    """
    draw = random.Random(seed)
    recipe = write_recipe(folder / "recipe.json", model_config(), max_steps=STEPS, **RUNS[name])
    command = ("train", recipe, "--data", prepare(folder / "data"), "--out")
    whole = server.run(*command, folder / "whole")
    assert whole["code"] == 0, whole["err"]
    expected = fingerprint(folder / "whole")
    assert expected[f"{STEPS} values"]["progress"]["position"][1] >= 2
    said: list[str] = []
    parts, number = folder / "parts-0", 0
    while len(said) < kills:
        answer = server.run(*command, parts, after=draw.uniform(0.0, 0.6 * whole["seconds"]))
        if answer["code"] == -9:
            said.append(answer["err"].splitlines()[-1] if answer["err"] else "")
            continue
        assert answer["code"] == 0, answer["err"]
        assert fingerprint(parts) == expected
        number += 1
        parts = folder / f"parts-{number}"
    answer = server.run(*command, parts)
    assert answer["code"] == 0, answer["err"]
    assert fingerprint(parts) == expected
    return said


@pytest.mark.parametrize("name, kills", [("adam-fp32", 3), ("nesterov-bf16", 3)])
def test_killed_and_resumed(name: str, kills: int, server: Server, tmp_path: Path) -> None:
    said = kill_and_resume(server, tmp_path, name, kills, seed=kills)
    assert any("step" in line for line in said)


@pytest.mark.slow
@pytest.mark.parametrize("name, kills", [(name, 13) for name in RUNS])
def test_killed_fifty_times_and_resumed(
    name: str, kills: int, server: Server, tmp_path: Path
) -> None:
    kill_and_resume(server, tmp_path, name, kills, seed=100)
