"""The library of fp32 matrix products on a processor, and the precision that fits a machine.

torch multiplies fp32 with its BLAS, usually MKL, which takes a slow path on processors of other
makers. It gives products to oneDNN only if it may round them to bf16. oneDNN does so on processors
with AMX alone and is exact elsewhere, so the permission is given where a measurement shows that
nothing is rounded. LIGHTCONV_PRODUCTS=auto|default|onednn overrides the choice.
"""

import functools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import torch

from lightconv import files
from lightconv.device import processor_name

LIBRARIES = ("auto", "default", "onednn")
VARIABLE = "LIGHTCONV_PRODUCTS"
CACHE_FILE = "products.json"
SHAPE = (1024, 512)  # outputs and inputs of a matrix of the paper's IWSLT models
ROWS = 256
ROUNDS = 4
# A library must be this much faster to be chosen, so that noise does not choose it.
GAIN = 1.05
# bf16 also has to pay for conversions between the products.
GAIN_OF_BF16 = 1.5
# Largest error over the largest element; fp32 has 1e-6 here, bf16 4e-3.
MOST_ERROR = 2e-5


class ProductSpeeds(NamedTuple):
    """GFLOP/s of a product and its two gradients; error of oneDNN's, relative to the largest."""

    default: float
    onednn: float
    bf16: float
    error: float

    @property
    def fastest(self) -> str:
        """The faster library that is exact."""
        exact = self.error <= MOST_ERROR
        return "onednn" if exact and self.onednn >= GAIN * self.default else "default"


@functools.cache
def probe(shape: tuple[int, int] = SHAPE) -> ProductSpeeds:
    """Speeds of a matrix [outputs, inputs]: from the cache folder, else measured in 0.1 s.

    One thread, by its own clock: other programs that run meanwhile do not decide.
    """
    key = f"{processor_name()}, torch {torch.__version__}, one thread, {list(shape)}"
    known: dict[str, list[float]] = {}
    with suppress(OSError, ValueError, TypeError, LookupError):
        path = files.cache_folder() / CACHE_FILE
        known = json.loads(path.read_bytes())
        return ProductSpeeds(*map(float, known[key]))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = _measure(*shape)
    finally:
        torch.set_num_threads(threads)
    with suppress(OSError):
        path = files.cache_folder() / CACHE_FILE
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        known = known if isinstance(known, dict) else {}
        files.replace_file(path, json.dumps({**known, key: found}, indent=1).encode())
    return found


def _measure(outputs: int, inputs: int) -> ProductSpeeds:
    generator = torch.Generator().manual_seed(0)
    x, weight, slope = (
        torch.randn(shape, generator=generator)
        for shape in ((ROWS, inputs), (outputs, inputs), (ROWS, outputs))
    )
    halves = [each.bfloat16() for each in (x, weight, slope)]

    def multiply(x: torch.Tensor, weight: torch.Tensor, slope: torch.Tensor) -> list[torch.Tensor]:
        return [x @ weight.t(), slope @ weight, slope.t() @ x]

    def fast() -> list[torch.Tensor]:
        with using("onednn"):
            return multiply(x, weight, slope)

    sides: dict[str, Callable[[], list[torch.Tensor]]] = {
        "default": lambda: multiply(x, weight, slope),
        "onednn": fast,
        "bf16": lambda: multiply(*halves),
    }
    seconds = dict.fromkeys(sides, float("inf"))
    with torch.no_grad():
        exact = multiply(x.double(), weight.double(), slope.double())
        error = max(
            float((a - b).detach().abs().max() / b.detach().abs().max())
            for a, b in zip(fast(), exact, strict=True)
        )
        for _ in range(ROUNDS):
            for name, side in sides.items():
                began = time.thread_time()
                side()
                seconds[name] = min(seconds[name], time.thread_time() - began)
    work = 6e-9 * ROWS * outputs * inputs
    rates = {name: round(work / seconds[name], 1) for name in sides}
    return ProductSpeeds(**rates, error=error)


def choose_precision(precision: str, device: torch.device, shape: tuple[int, int] = SHAPE) -> str:
    """The given precision; for `auto` bf16 if the device multiplies it faster, else fp32."""
    if precision != "auto":
        return precision
    if device.type == "cpu":
        found = probe(shape)
        exact = max(found.default, found.onednn if found.error <= MOST_ERROR else 0.0)
        return "bf16" if found.bf16 >= GAIN_OF_BF16 * exact else "fp32"
    fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if fast else "fp32"


def choose(library: str = "auto", shape: tuple[int, int] = SHAPE) -> str:
    """`default` or `onednn`: the environment's, else the given one, else the faster.

    ValueError if oneDNN is asked for and rounds.
    """
    library = os.environ.get(VARIABLE, library)
    if library not in LIBRARIES:
        raise ValueError(f"{VARIABLE}={library!r}, expected one of {', '.join(LIBRARIES)}")
    if library == "default" or not torch.backends.mkldnn.is_available():
        return "default"
    found = probe(shape)
    if library == "onednn" and found.error > MOST_ERROR:
        raise ValueError(
            f"products=onednn: its error on this processor is {found.error:.1e}, at most "
            f"{MOST_ERROR} is fp32. Use default; train.precision=bf16 rounds knowingly"
        )
    return found.fastest if library == "auto" else library


_LOCK = threading.Lock()
_BEFORE: list[str] = []  # the setting that each user of oneDNN found


@contextmanager
def using(library: str) -> Iterator[None]:
    """fp32 products on the CPU are computed by `library`, as `choose` returns it.

    The setting belongs to the process: the first of several threads sets it, the last restores it.
    """
    if library == "default":
        yield
        return
    setting = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    with _LOCK:
        _BEFORE.append(setting.fp32_precision)
        setting.fp32_precision = "bf16"
    try:
        yield
    finally:
        with _LOCK:
            found = _BEFORE.pop()  # the first to enter is the last to be popped
            if not _BEFORE:
                setting.fp32_precision = found
