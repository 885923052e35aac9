"""Signals and time limits of all tests, and trained models, made when a test first asks for one."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness.signals import restore_signals, time_limit

if TYPE_CHECKING:
    from tests.trained import Trained

restore_signals()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[Any]:
    with time_limit(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[Any]:
    with time_limit(item):
        return (yield)


@pytest.fixture(scope="session")
def copies(tmp_path_factory: pytest.TempPathFactory) -> "Trained":
    """A model that repeats what it reads."""
    from tests.trained import train_copies

    return train_copies(tmp_path_factory.mktemp("copies"))


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> "Trained":
    """A language model."""
    from tests.trained import train_texts

    return train_texts(tmp_path_factory.mktemp("texts"))
