"""R7: torchrun starts dead workers again, and the run goes on, bit for bit."""

from pathlib import Path

import pytest

from lightconv.selftest.ranks import RankServer
from lightconv.selftest.restarts import judge, kill_and_restart


def test_killed_twice(rank_server: RankServer, tmp_path: Path) -> None:
    assert judge(kill_and_restart(rank_server, tmp_path, 2), 2) == 2


@pytest.mark.slow
def test_killed_eight_times(rank_server: RankServer, tmp_path: Path) -> None:
    assert judge(kill_and_restart(rank_server, tmp_path, 8), 8) == 8
