"""Signals and time limits of all tests, the C++ library, and trained models, made on demand."""

import ctypes
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


@pytest.fixture
def kernels() -> ctypes.CDLL:
    """The C++ library; tests that are about it fail without it, they are not skipped."""
    from lightconv.ops.library import native

    library = native().library
    assert library is not None, f"the C++ kernels are missing: {native().reason}"
    return library


@pytest.fixture
def instruction_sets(kernels: ctypes.CDLL) -> Iterator[list[str]]:
    """The names that `kernels.lightconv_choose` accepts on this machine."""
    from lightconv.ops.build import instruction_sets
    from lightconv.ops.library import native

    yield [name for name in instruction_sets() if kernels.lightconv_choose(name.encode())]
    kernels.lightconv_choose(native().isa.encode())


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Uninitialised memory is NaN, so that a forgotten element shows."""
    import torch

    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture
def threads() -> Iterator[None]:
    """Restores the number of threads."""
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
