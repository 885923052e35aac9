"""Measurement of time and memory for all benchmarks.

All sides of a comparison run in one process, in turns, after a warm-up; the figure is the median.
Peak memory is the increase of the process's resident size during the call.
"""

import ctypes
import gc
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

Call = Callable[[], object]


def interleave(
    sides: Mapping[str, Call],
    rounds: int = 9,
    patience: float = 0.3,
    *,
    least: int = 3,
    warm: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Seconds per call of each side: the median of `rounds` turns.

    least  turns of calls that take more than `patience` seconds
    warm   call each side once before; False if the caller has done so
    clock  time.process_time on a machine that is not idle; a side that returns a float has measured
           itself
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    for call in sides.values() if warm else ():
        call()
    for turn in range(rounds):
        for name, call in sides.items():
            if turn >= least and times[name][0] > patience:
                continue
            start = clock()
            found = call()
            seconds = found if isinstance(found, float) else clock() - start
            times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


class Rows:
    """Measured rows, which a file keeps for the next call; none are added after `seconds`."""

    def __init__(self, path: Path | None, seconds: float) -> None:
        self.path, self.end = path, time.monotonic() + seconds
        kept = path.read_text().splitlines() if path and path.exists() else []
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in kept]

    def add(self, measured: Callable[[], dict[str, Any]]) -> bool:
        """Measures, prints and keeps one more row; False if the time is over."""
        if time.monotonic() > self.end:
            print("there is more to measure: run this again", file=sys.stderr)
            return False
        self.rows.append(measured())
        print(line := json.dumps(self.rows[-1]), flush=True)
        if self.path:
            with self.path.open("a") as file:
                file.write(line + "\n")
        return True


def peak_bytes(call: Call) -> int:
    """Increase of the resident size during call(); freed memory is returned to the system first."""
    from lightconv.ops.library import POOL

    gc.collect()
    POOL.clear()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _status("VmRSS")
    kept = call()
    peak = _status("VmHWM")
    del kept
    return max(0, peak - before)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def machine() -> str:
    """One line that says what a figure was measured on."""
    from lightconv.device import processor_name
    from lightconv.ops.library import native

    kernels = native().isa or "no C++ kernels"
    return (
        f"{processor_name()}, {torch.get_num_threads()} threads, {kernels}, "
        f"torch {torch.__version__}, Python {platform.python_version()}"
    )
