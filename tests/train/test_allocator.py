"""Freed memory is kept, and given back past a bound; in a process of its own, as it stays so."""

import json
import platform
import subprocess
import sys

import pytest

from lightconv.train.allocator import Allocator, machine_bytes, resident_bytes

CODE = """
import ctypes, json, sys
from lightconv.train.allocator import Allocator, resident_bytes

keep, most = json.loads(sys.argv[1])
allocator = Allocator(most)
kept = allocator.keep() if keep else False
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
before = resident_bytes()
size = 200 << 20
block = libc.malloc(ctypes.c_size_t(size))
ctypes.memset(block, 1, size)
libc.free(ctypes.c_void_p(block))
after = resident_bytes()
released = allocator.release()
print(json.dumps([kept, (after - before) >> 20, released, (resident_bytes() - before) >> 20]))
"""

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other C libraries are left as they are"
)


def outcome(keep: bool, most: int) -> list[object]:
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps([keep, most])], capture_output=True, check=True
    )
    found: list[object] = json.loads(done.stdout)
    return found


def test_without_it_memory_goes_back() -> None:
    kept, held, _, _ = outcome(keep=False, most=1 << 40)
    assert not kept
    assert held < 20  # type: ignore[operator]


def test_memory_is_kept_below_the_bound() -> None:
    kept, held, released, still = outcome(keep=True, most=1 << 40)
    assert kept
    assert held >= 180  # type: ignore[operator]
    assert not released
    assert still >= 180  # type: ignore[operator]


def test_memory_is_given_back_past_the_bound() -> None:
    kept, held, released, still = outcome(keep=True, most=1 << 20)
    assert kept
    assert held >= 180  # type: ignore[operator]
    assert released
    assert still < 20  # type: ignore[operator]


def test_the_bound_is_half_of_the_machine() -> None:
    assert Allocator().most == machine_bytes() // 2
    assert 0 < resident_bytes() < machine_bytes()
