"""What several test files share."""

import signal
from collections.abc import Iterator

import pytest

from lightconv.selftest.ranks import RankServer


@pytest.fixture(scope="session")
def rank_server() -> Iterator[RankServer]:
    server = RankServer("tests.train.rank_cases")
    yield server
    server.close()


@pytest.fixture(autouse=True, scope="session")
def usual_signals() -> Iterator[None]:
    """A background job ignores Ctrl-C, and so would everything that tests start."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
