"""The machine's limits, measured: multiply-adds per second and bytes per second."""

import ctypes
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.measure import interleave
from lightconv.ops import build

COPIED = 64 << 20  # bytes; with the target, more than any cache holds
ROUNDS = 8_000_000  # of twelve fused multiply-adds on vectors
IDLE = 0.02  # seconds in which the threads of torch, which wait by spinning, give up their cores


class Limits(NamedTuple):
    """Operations and bytes per second of `threads` threads together."""

    threads: int
    flops: float
    bytes: float


class Probe:
    """Two calls that return their seconds, in turns with the kernels that they limit."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.threads = torch.get_num_threads()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "limits.so"
            source = Path(__file__).with_name("limits.cpp")
            flags = ["-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-pthread"]
            subprocess.run([*build.compiler(), *flags, str(source), "-o", str(path)], check=True)
            self._library = ctypes.CDLL(str(path))
        self._lanes = self._library.lanes()
        self._memory = [torch.zeros(COPIED, dtype=torch.uint8) for _ in range(2)]

    def copy(self) -> float:
        """Reads and writes COPIED bytes with stores that bypass the cache."""
        to, source = (ctypes.c_void_p(m.data_ptr()) for m in self._memory)
        return self._time("copy_bytes", to, source, ctypes.c_int64(COPIED))

    def fma(self) -> float:
        """Multiplies and adds from registers."""
        return self._time("multiply_add", ctypes.c_int64(ROUNDS))

    def _time(self, name: str, *arguments: object) -> float:
        time.sleep(IDLE)
        begin = self._clock()
        self._library[name](self.threads, *arguments)
        return self._clock() - begin

    def limits(self, copy_seconds: float, fma_seconds: float) -> Limits:
        """The limits, from the median times of the two calls."""
        flops = 2.0 * 12 * self._lanes * ROUNDS * self.threads / fma_seconds
        return Limits(self.threads, flops, 2.0 * COPIED / copy_seconds)


def measure_limits(probe: Probe, rounds: int = 9) -> Limits:
    """The limits, measured without a kernel."""
    seconds = interleave({"copy": probe.copy, "fma": probe.fma}, rounds)
    return probe.limits(seconds["copy"], seconds["fma"])
