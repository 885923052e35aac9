"""The machine's limits, measured: multiply-adds per second and bytes per second.

    python -m benchmarks.limits    both, and the clock with which a hand count has to agree

A processor multiplies one or two vectors in a cycle: any other number means a faulty measurement.
"""

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
COPIES = 4
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
        self._busy = clock is time.process_time
        self.threads = torch.get_num_threads()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "limits.so"
            source = Path(__file__).with_name("limits.cpp")
            flags = ["-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-pthread"]
            subprocess.run([*build.compiler(), *flags, str(source), "-o", str(path)], check=True)
            self._library = ctypes.CDLL(str(path))
        self.lanes = self._library.lanes()
        self._memory = [torch.zeros(COPIED, dtype=torch.uint8) for _ in range(2)]

    def copy(self) -> float:
        """Reads and writes COPIED bytes with stores that bypass the cache."""
        to, source = (ctypes.c_void_p(m.data_ptr()) for m in self._memory)
        return self._time("copy_bytes", to, source, ctypes.c_int64(COPIED), COPIES) / COPIES

    def fma(self) -> float:
        """Multiplies and adds from registers."""
        return self._time("multiply_add", ctypes.c_int64(ROUNDS))

    def clock(self) -> float:
        """Cycles per second, from products that take three cycles each."""
        count = 1 << 23
        return 3.0 * count / self._time("multiply_chain", ctypes.c_int64(count))

    def _time(self, name: str, *arguments: object) -> float:
        """Seconds from the start of the last thread on; each has a processor of its own."""
        time.sleep(IDLE)
        function = self._library[name]
        function.restype = ctypes.c_double
        return float(function(self.threads, self._busy, *arguments))

    def limits(self, copy_seconds: float, fma_seconds: float) -> Limits:
        """The limits, from the median times of the two calls."""
        flops = 2.0 * 12 * self.lanes * ROUNDS * self.threads / fma_seconds
        return Limits(self.threads, flops, 2.0 * COPIED / copy_seconds)


def measure_limits(probe: Probe, rounds: int = 9) -> Limits:
    """The limits, measured without a kernel."""
    seconds = interleave({"copy": probe.copy, "fma": probe.fma}, rounds)
    return probe.limits(seconds["copy"], seconds["fma"])


def main() -> None:
    probe = Probe()
    found, clock = measure_limits(probe), probe.clock()
    vectors = found.flops / (2.0 * probe.lanes * clock * found.threads)
    print(
        f"{found.flops / 1e9:.0f} GFLOP/s, {found.bytes / 1e9:.1f} GB/s; {found.threads} threads x "
        f"{clock / 1e9:.2f} GHz x {probe.lanes} numbers x 2 x {vectors:.2f} vectors a cycle"
    )


if __name__ == "__main__":
    main()
