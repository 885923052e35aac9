"""R1: killed at any time and resumed, a run is the one that nobody killed, bit for bit."""

from pathlib import Path

import pytest

from lightconv.selftest.forks import Server, shared
from lightconv.selftest.kills import RUNS, at_crash_points, at_random_times
from lightconv.selftest.writers import FEWEST_POINTS


@pytest.fixture(scope="module")
def server() -> Server:
    return shared()


@pytest.mark.parametrize("name, kills", [("adam-fp32", 3), ("nesterov-bf16", 3)])
def test_killed_and_resumed(name: str, kills: int, server: Server, tmp_path: Path) -> None:
    said = at_random_times(server, tmp_path, name, kills, seed=kills)
    assert any("step" in line for line in said)


def test_killed_while_it_saves(server: Server, tmp_path: Path) -> None:
    assert at_crash_points(server, tmp_path, "adam-bf16", every=6) >= 7


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_killed_fifty_times_and_resumed(name: str, server: Server, tmp_path: Path) -> None:
    at_random_times(server, tmp_path, name, 13, seed=100)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_killed_at_every_point_of_a_save(name: str, server: Server, tmp_path: Path) -> None:
    assert at_crash_points(server, tmp_path, name) >= FEWEST_POINTS
