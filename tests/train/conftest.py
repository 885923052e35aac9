"""What several test files share."""

from collections.abc import Iterator

import pytest

from lightconv.selftest.ranks import RankServer


@pytest.fixture(scope="session")
def rank_server() -> Iterator[RankServer]:
    server = RankServer("tests.train.rank_cases")
    yield server
    server.close()
