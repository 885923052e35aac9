"""Freed memory is kept, and given back past a bound and at the end; in processes of their own."""

import json
import platform
import subprocess
import sys
from typing import NamedTuple

import pytest

from lightconv.train.memory import SETTING, Allocator, machine_bytes, most_kept, resident_bytes

CODE = """
import ctypes, json, sys
from lightconv.train.memory import Allocator, resident_bytes

keep, most = json.loads(sys.argv[1])
allocator = Allocator(most)
if keep:
    allocator.__enter__()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
before = resident_bytes()
size = 200 << 20
block = libc.malloc(ctypes.c_size_t(size))
ctypes.memset(block, 1, size)
libc.free(ctypes.c_void_p(block))
after = resident_bytes()
kept, released = allocator.kept, allocator.release()
still = resident_bytes()
allocator.__exit__(None, None, None)
left = resident_bytes()
block = libc.malloc(ctypes.c_size_t(size))
ctypes.memset(block, 1, size)
libc.free(ctypes.c_void_p(block))
sizes = [(found - before) >> 20 for found in (after, still, left, resident_bytes())]
print(json.dumps([kept, released, *sizes]))
"""

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other C libraries are left as they are"
)


class Outcome(NamedTuple):
    """MB that a process had more than before: freed, asked to release, closed, freed once more."""

    kept: bool
    released: bool
    freed: int
    asked: int
    closed: int
    later: int


def outcome(keep: bool, most: int) -> Outcome:
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps([keep, most])],
        capture_output=True,
        check=True,
        timeout=60,
    )
    return Outcome(*json.loads(done.stdout))


@pytest.mark.parametrize(
    "keep, most, kept, released, freed, asked",
    [
        pytest.param(False, 1 << 40, False, False, False, False, id="without it"),
        pytest.param(True, 1 << 40, True, False, True, True, id="below the bound"),
        pytest.param(True, 1 << 20, True, True, True, False, id="past the bound"),
        pytest.param(True, 0, False, False, False, False, id="switched off"),
    ],
)
def test_memory_is_kept_below_the_bound_and_given_back_at_the_end(
    keep: bool, most: int, kept: bool, released: bool, freed: bool, asked: bool
) -> None:
    found = outcome(keep, most)
    assert (found.kept, found.released) == (kept, released)
    assert found.freed >= 180 if freed else found.freed < 20
    assert found.asked >= 180 if asked else found.asked < 20
    assert found.closed < 20 and found.later < 20


def test_the_bound_is_half_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SETTING, raising=False)
    assert Allocator().most == most_kept() == machine_bytes() // 2
    assert most_kept(processes=4) == machine_bytes() // 8
    assert most_kept("cuda") == 0
    assert 0 < resident_bytes() < machine_bytes()


def test_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "300")
    assert Allocator().most == 300 << 20
    assert most_kept(processes=3) == 100 << 20
    monkeypatch.setenv(SETTING, "much")
    with pytest.raises(ValueError, match="LIGHTCONV_TRAIN_KEEP_MB='much' must be a whole number"):
        most_kept()
