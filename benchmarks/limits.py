"""The machine's limits, measured: multiply-adds per second and bytes per second."""

import ctypes
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch

from lightconv.ops import build


class Limits(NamedTuple):
    """Of `threads` threads together."""

    threads: int
    flops: float
    bytes: float


def measure_limits(rounds: int = 7) -> Limits:
    """Medians over a few rounds, with as many threads as torch uses."""
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "limits.so"
        source = Path(__file__).with_name("limits.cpp")
        flags = ["-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-pthread"]
        subprocess.run([build.compiler(), *flags, str(source), "-o", str(path)], check=True)
        library = ctypes.CDLL(str(path))
    library.fma_per_second.restype = library.copied_per_second.restype = ctypes.c_double
    size = 64 << 20
    a, b = torch.zeros(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    pointers = (ctypes.c_void_p(b.data_ptr()), ctypes.c_void_p(a.data_ptr()))
    flops = [library.fma_per_second(threads) for _ in range(3)]
    copied = [
        library.copied_per_second(threads, *pointers, ctypes.c_int64(size)) for _ in range(rounds)
    ]
    return Limits(threads, statistics.median(flops), statistics.median(copied))
