"""Fixtures of the operators' tests."""

import ctypes
from collections.abc import Iterator

import pytest
import torch

from lightconv.ops import build
from lightconv.ops.library import native


@pytest.fixture
def kernels() -> ctypes.CDLL:
    """The C++ library; tests that are about it fail without it, they are not skipped."""
    library = native().library
    assert library is not None, f"the C++ kernels are missing: {native().reason}"
    return library


@pytest.fixture
def instruction_sets(kernels: ctypes.CDLL) -> Iterator[list[str]]:
    """The names that `kernels.lightconv_choose` accepts on this machine."""
    yield [name for name in build.instruction_sets() if kernels.lightconv_choose(name.encode())]
    kernels.lightconv_choose(native().isa.encode())


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Uninitialised memory is NaN, so that a forgotten element shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture
def threads() -> Iterator[None]:
    """Restores the number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
