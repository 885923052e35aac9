"""Processes that several test files share."""

import pytest

from tests.harness.server import RankServer


@pytest.fixture(scope="session")
def rank_server() -> RankServer:
    return RankServer()
