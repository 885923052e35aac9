"""The same bits every time, whatever the number of threads and the order of their work."""

import ctypes
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from lightconv.ops.library import _torch_parallel_for

from . import cases
from .cases import OPERATORS, Results, Shape, all_same_bits, every_op, f32, make_inputs, run

pytestmark = pytest.mark.usefixtures("kernels", "poisoned", "threads")

# Enough work for several threads, many tiles, heads that share vectors, and tiles cut short.
SHAPE = Shape(3, 150, 4, 20, 9, 8)
every_option = cases.every_option(70, 0, 3, 140, 37)


def results(op: str, options: dict[str, Any]) -> Results:
    shape = SHAPE._replace(B=1, T=250) if "cu_seqlens" in options else SHAPE
    return run(op, make_inputs(op, shape, f32), shape.left, **options)


@every_option
@every_op
def test_any_number_of_threads(op: str, options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    expected = results(op, options)
    for count in (3, *(2,) * (5 if options else 50)):
        torch.set_num_threads(count)
        assert all_same_bits(results(op, options), expected), f"{count} threads"


BODY = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
PARALLEL_FOR = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, BODY, ctypes.c_void_p
)


@pytest.fixture
def shuffled(kernels: ctypes.CDLL) -> Iterator[Callable[[], int]]:
    """Runs every task alone, in random order, on four threads; returns how many there were."""
    count = 0
    draw = random.Random(0)
    with ThreadPoolExecutor(4) as pool:

        @PARALLEL_FOR
        def parallel_for(begin: int, end: int, _grain: int, body: Any, context: int) -> int:
            nonlocal count
            tasks = list(range(begin, end))
            draw.shuffle(tasks)
            list(pool.map(lambda task: body(task, task + 1, context), tasks))
            count += len(tasks)
            return 0

        kernels.lightconv_use_threads(ctypes.cast(parallel_for, ctypes.c_void_p))
        yield lambda: count
        kernels.lightconv_use_threads(_torch_parallel_for())


@every_option
@every_op
def test_any_order_of_tasks(
    op: str, options: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    torch.set_num_threads(1)
    expected = results(op, options)
    tasks = request.getfixturevalue("shuffled")
    for _ in range(5):
        assert all_same_bits(results(op, options), expected)
    assert tasks() > 50


@pytest.mark.parametrize("op", ["dynamicconv_step", "lightconv_step"])
def test_steps_on_any_number_of_threads(op: str) -> None:
    B, K, H, R = 16, 31, 4, 16
    torch.manual_seed(0)
    x, window = torch.randn(B, 5, H * R), torch.randn(B, K - 1, H * R)
    weight = torch.randn(B, 5, H, K) if op == "dynamicconv_step" else torch.randn(H, K)
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(torch.cat(OPERATORS[op](x, window.clone(), 7, weight), 1))
        assert torch.equal(found[-1], found[0])
