"""Work in several processes: order, errors, and how far ahead the input is read."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightconv.data.workers import chunked, spread


def double(number: int) -> int:
    if number == 13:
        raise ValueError("unlucky")
    return 2 * number


def test_chunks() -> None:
    assert list(chunked(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert list(chunked([], 2)) == []


def test_results_are_in_order_and_errors_arrive() -> None:
    for processes in (1, 2):
        assert list(spread(double, range(10), processes)) == list(range(0, 20, 2))
        results = spread(double, range(12, 30), processes)
        assert next(results) == 24
        with pytest.raises(ValueError, match="unlucky"):
            next(results)
    with pytest.raises(ValueError, match="processes=0 must be at least 1"):
        list(spread(double, [], 0))


def test_the_input_is_read_as_it_is_needed() -> None:
    read = []

    def numbers() -> Iterator[int]:
        for number in range(100, 200):
            read.append(number)
            yield number

    results = spread(double, numbers(), 2)
    assert next(results) == 200
    assert len(read) <= 4
    results.close()  # type: ignore[attr-defined]


ENDLESS = """
import itertools, os
from lightconv.data.workers import spread

def pid(number):
    return os.getpid()

if __name__ == "__main__":
    for found in spread(pid, itertools.count(), 2):
        print(found, flush=True)
"""


def test_processes_do_not_outlive_their_parent(tmp_path: Path) -> None:
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    workers = {int(parent.stdout.readline()) for _ in range(200)}
    parent.kill()
    parent.wait()
    parent.stdout.close()
    begin = time.monotonic()
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() - begin < 30
        time.sleep(0.1)
