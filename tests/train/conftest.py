"""What several test files share."""

from collections.abc import Iterator

import pytest

from tests.train.ranks import RankServer


@pytest.fixture(scope="session")
def rank_server() -> Iterator[RankServer]:
    with RankServer() as found:
        yield found
