"""Trained models, made once when a test first asks for one."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.trained import Trained


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
