"""The C++ kernels: found or built, loaded once, and registered for CPU tensors.

The library is looked for beside this file (an install puts it there), then in the user's cache
($LIGHTCONV_CACHE, else $XDG_CACHE_HOME/lightconv or ~/.cache/lightconv), and else compiled into
that cache at the first call that needs it; a damaged one there is compiled again. Without it the
formulas run, after one warning that says why and what to do; LIGHTCONV_REQUIRE_NATIVE=1 makes that
an error. LIGHTCONV_NATIVE=0 turns the kernels off, LIGHTCONV_ISA=base|avx2|avx512 chooses an
instruction set. `lightconv doctor` shows the outcome.
"""

import atexit
import contextlib
import ctypes
import functools
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightconv.ops import build, reference, schema
from lightconv.ops.check import (
    check_boundaries,
    check_dynamicconv,
    check_grad,
    check_lightconv,
    check_step,
)
from lightconv.ops.random import drop_threshold

_DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
_POINTERS = ("x", "weight", "grad", "out", "grad_x", "grad_weight", "offsets")
_INTEGERS = (
    *("sequences", "B", "T", "D", "H", "K", "left"),
    *("x_batch", "x_row", "grad_batch", "grad_row"),
    *("dtype", "weight_dtype", "shared", "softmax", "drop"),
)


class _Problem(ctypes.Structure):
    """csrc/problem.h's Problem, field for field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _INTEGERS),
        ("keep_scale", ctypes.c_double),
        ("seed", ctypes.c_int64),
    )


class Native(NamedTuple):
    """What became of the kernels: the loaded library or None, and the sentence that says why."""

    library: ctypes.CDLL | None
    isa: str
    reason: str


@functools.cache
def native() -> Native:
    """Finds, builds or gives up, once per process."""
    if os.environ.get("LIGHTCONV_NATIVE") == "0":
        return Native(None, "", "turned off by LIGHTCONV_NATIVE=0")
    try:
        path = _find_or_build()
        library = ctypes.CDLL(str(path))
        return Native(library, _prepare(library), f"C++ library {path}")
    except (build.BuildError, OSError, AttributeError) as error:  # Attribute: a missing function
        reason = str(error)
    if os.environ.get("LIGHTCONV_REQUIRE_NATIVE") == "1":
        raise RuntimeError(f"LIGHTCONV_REQUIRE_NATIVE=1, but the C++ kernels are missing: {reason}")
    warnings.warn(
        f"lightconv's C++ kernels are missing, slow formulas run instead: {reason}. "
        "`lightconv doctor` explains; LIGHTCONV_NATIVE=0 silences this.",
        stacklevel=2,
    )
    return Native(None, "", reason)


def cache_folder() -> Path:
    """Where a library built at first use is kept."""
    if chosen := os.environ.get("LIGHTCONV_CACHE"):
        return Path(chosen)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "lightconv"
    try:
        return Path.home() / ".cache" / "lightconv"
    except RuntimeError as error:  # a user without an entry in the system's list and without $HOME
        raise OSError(str(error)) from None


def _find_or_build() -> Path:
    name = build.library_name()
    installed = Path(__file__).parent / name
    if installed.exists():
        return installed
    try:
        cached = cache_folder() / name
        if not build.is_sealed(cached):
            with _lock(cached.parent):
                if not build.is_sealed(cached):  # another process may have built it meanwhile
                    why = "damaged" if cached.exists() else "missing"
                    _say(f"compiling the CPU kernels, once (about 20 s): {cached} is {why}")
                    build.build(cached)
        return cached
    except OSError as error:
        folder = Path(tempfile.mkdtemp(prefix="lightconv-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _say(
            f"the cache cannot be used ({error}); compiling the CPU kernels into {folder} for this "
            "process only. Set LIGHTCONV_CACHE to a writable folder to keep them"
        )
        build.build(folder / name)
        return folder / name


def _say(text: str) -> None:
    print(f"lightconv: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """One builder at a time; the lock goes with the process that holds it."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _prepare(library: ctypes.CDLL) -> str:
    """Declares the functions, hands over torch's thread pool, and returns the instruction set."""
    library.lightconv_problem_bytes.restype = ctypes.c_int64
    if library.lightconv_problem_bytes() != ctypes.sizeof(_Problem):
        raise OSError("the library was built from other sources; delete it and try again")
    library.lightconv_choose.restype = ctypes.c_char_p
    wanted = os.environ.get("LIGHTCONV_ISA", "")
    isa = library.lightconv_choose(wanted.encode())
    if isa is None:
        known = ", ".join(build.instruction_sets())
        raise RuntimeError(
            f"LIGHTCONV_ISA={wanted} does not run on this machine or is unknown; known: {known}"
        )
    library.lightconv_step.argtypes = (ctypes.c_void_p,) * 4 + (ctypes.c_int64,) * 10
    library.lightconv_use_threads.argtypes = (ctypes.c_void_p,)
    library.lightconv_use_threads(_torch_parallel_for())
    return str(isa.decode())


def _torch_parallel_for() -> ctypes.c_void_p | None:
    """torch's own parallel loop (its stable C interface), so that there is one thread pool."""
    for folder in Path(torch.__file__).parent.glob("lib/libtorch_cpu.*"):
        with contextlib.suppress(AttributeError, OSError):
            return ctypes.cast(ctypes.CDLL(str(folder)).torch_parallel_for, ctypes.c_void_p)
    warnings.warn("torch offers no parallel loop: lightconv runs on one thread", stacklevel=2)
    return None


# --- calls ----------------------------------------------------------------------------------------


def _call(name: str, problem: _Problem) -> None:
    library = native().library
    assert library is not None
    if getattr(library, name)(ctypes.byref(problem)) != 0:
        raise MemoryError(f"{name} could not allocate its scratch memory")


def _by_rows(x: Tensor) -> Tensor:
    """x itself when its channels are contiguous, else a contiguous copy."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _problem(
    x: Tensor,
    weight: Tensor,
    left: int,
    offsets: Tensor | None,
    dropconnect: float,
    seed: Tensor | None,
    *,
    softmax: bool,
) -> _Problem:
    B, T, D = x.shape
    H, K = weight.shape[-2:]
    problem = _Problem(
        x=x.data_ptr(),
        weight=weight.data_ptr(),
        B=B,
        T=T,
        D=D,
        H=H,
        K=K,
        left=min(left, T + K),  # there is nothing further back, and sums with it stay in 64 bits
        x_batch=x.stride(0),
        x_row=x.stride(1),
        dtype=_DTYPES[x.dtype],
        weight_dtype=_DTYPES[weight.dtype],
        shared=weight.dim() == 2,
        softmax=softmax,
    )
    if offsets is not None:
        problem.offsets = offsets.data_ptr()
        problem.sequences = offsets.shape[0] - 1
    if dropconnect > 0.0:
        assert seed is not None
        problem.drop = drop_threshold(dropconnect)
        problem.keep_scale = 1.0 / (1.0 - dropconnect)
        problem.seed = int(seed)
    return problem


def _offsets(op: str, x: Tensor, cu_seqlens: Tensor | None) -> Tensor | None:
    if cu_seqlens is None:
        return None
    check_boundaries(op, cu_seqlens.tolist(), x.shape[1])
    return cu_seqlens.to(torch.int64).contiguous()


def forward_into(
    out: Tensor, x: Tensor, weight: Tensor, left: int, *, softmax: bool = False
) -> Callable[[], None]:
    """A call that computes the convolution of x [B, T, D] into `out`, for benchmarks.

    weight is [B, T, H, K] or [H, K]; all tensors contiguous.
    """
    problem = _problem(x, weight, left, None, 0.0, None, softmax=softmax)
    problem.out = out.data_ptr()

    def call(kept: tuple[Tensor, ...] = (out, x, weight)) -> None:
        _call("lightconv_forward", problem)

    return call


def _forward(
    op: str,
    x: Tensor,
    weight: Tensor,
    left: int,
    softmax: bool,
    cu_seqlens: Tensor | None,
    dropconnect: float,
    seed: Tensor | None,
) -> Tensor:
    x, weight, offsets = _by_rows(x), weight.contiguous(), _offsets(op, x, cu_seqlens)
    problem = _problem(x, weight, left, offsets, dropconnect, seed, softmax=softmax)
    out = x.new_empty(x.shape)
    problem.out = out.data_ptr()
    _call("lightconv_forward", problem)
    return out


def _backward(
    op: str,
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    left: int,
    softmax: bool,
    cu_seqlens: Tensor | None,
    dropconnect: float,
    seed: Tensor | None,
    need_x: bool,
    need_weight: bool,
) -> tuple[Tensor, Tensor]:
    x, weight, offsets = _by_rows(x), weight.contiguous(), _offsets(op, x, cu_seqlens)
    grad = _by_rows(grad)
    problem = _problem(x, weight, left, offsets, dropconnect, seed, softmax=softmax)
    problem.grad, problem.grad_batch, problem.grad_row = grad.data_ptr(), *grad.stride()[:2]
    grad_x = x.new_empty(x.shape if need_x else 0)
    grad_weight = weight.new_empty(weight.shape if need_weight else 0)
    problem.grad_x = grad_x.data_ptr() if need_x else None
    problem.grad_weight = grad_weight.data_ptr() if need_weight else None
    _call("lightconv_backward", problem)
    return grad_x, grad_weight


def _cpu_dynamicconv(x: Tensor, weight: Tensor, left: int, softmax: bool, *extras: Any) -> Tensor:
    check_dynamicconv(x, weight, left, *extras)
    if native().library is None:
        return reference.dynamicconv(x, weight, left, softmax, *extras)
    return _forward("dynamicconv", x, weight, left, softmax, *extras)


def _cpu_lightconv(x: Tensor, weight: Tensor, left: int, *extras: Any) -> Tensor:
    check_lightconv(x, weight, left, *extras)
    if native().library is None:
        return reference.lightconv(x, weight, left, *extras)
    return _forward("lightconv", x, weight, left, False, *extras)


def _cpu_dynamicconv_backward(
    grad: Tensor, x: Tensor, weight: Tensor, left: int, softmax: bool, *rest: Any
) -> tuple[Tensor, Tensor]:
    check_dynamicconv(x, weight, left, *rest[:-2])
    check_grad(grad, x)
    if native().library is None:
        return schema.reference_dynamicconv_backward(grad, x, weight, left, softmax, *rest)
    return _backward("dynamicconv", grad, x, weight, left, softmax, *rest)


def _cpu_lightconv_backward(
    grad: Tensor, x: Tensor, weight: Tensor, left: int, *rest: Any
) -> tuple[Tensor, Tensor]:
    check_lightconv(x, weight, left, *rest[:-2])
    check_grad(grad, x)
    if native().library is None:
        return schema.reference_lightconv_backward(grad, x, weight, left, *rest)
    return _backward("lightconv", grad, x, weight, left, False, *rest)


def _step(x: Tensor, window: Tensor, position: int, weight: Tensor, softmax: bool) -> Tensor:
    library = native().library
    assert library is not None
    x, weight, ring = x.contiguous(), weight.contiguous(), window.contiguous()
    B, n, D = x.shape
    H, K = weight.shape[-2:]
    out = torch.empty_like(x)
    dtype, weight_dtype, shared = _DTYPES[x.dtype], _DTYPES[weight.dtype], weight.dim() == 2
    pointers = x.data_ptr(), ring.data_ptr(), weight.data_ptr(), out.data_ptr()
    sizes = B, n, D, H, K, position
    if library.lightconv_step(*pointers, *sizes, dtype, weight_dtype, shared, softmax):
        raise MemoryError("the step kernel could not allocate its scratch memory")
    if ring is not window:
        window.copy_(ring)
    return out


def _plainly_fits(x: Tensor, window: Tensor, position: int, heads: int, width: int) -> bool:
    """What nearly every step looks like, at a third of the price of the checks that explain."""
    return (
        window.dtype == x.dtype
        and window.is_cpu
        and width > 0
        and heads > 0
        and position >= 0
        and x.shape[2] % heads == 0
        and window.shape == (x.shape[0], width - 1, x.shape[2])
    )


def _cpu_dynamicconv_step(
    x: Tensor, window: Tensor, position: int, weight: Tensor, softmax: bool
) -> Tensor:
    if not (
        x.dtype == weight.dtype
        and x.dtype in _DTYPES
        and weight.is_cpu
        and x.dim() == 3
        and weight.dim() == 4
        and weight.shape[:2] == x.shape[:2]
        and _plainly_fits(x, window, position, *weight.shape[2:])
    ):
        check_dynamicconv(x, weight, 0)
        check_step("dynamicconv_step", x, window, position, weight)
    if native().library is None:
        return schema.reference_dynamicconv_step(x, window, position, weight, softmax)
    return _step(x, window, position, weight, softmax)


def _cpu_lightconv_step(x: Tensor, window: Tensor, position: int, weight: Tensor) -> Tensor:
    if not (
        x.dtype == weight.dtype
        and x.dtype in _DTYPES
        and weight.is_cpu
        and x.dim() == 3
        and weight.dim() == 2
        and _plainly_fits(x, window, position, *weight.shape)
    ):
        check_lightconv(x, weight, 0)
        check_step("lightconv_step", x, window, position, weight)
    if native().library is None:
        return schema.reference_lightconv_step(x, window, position, weight)
    return _step(x, window, position, weight, False)


KERNELS: dict[str, Callable[..., Any]] = {
    "dynamicconv": _cpu_dynamicconv,
    "dynamicconv_backward": _cpu_dynamicconv_backward,
    "lightconv": _cpu_lightconv,
    "lightconv_backward": _cpu_lightconv_backward,
    "dynamicconv_step": _cpu_dynamicconv_step,
    "lightconv_step": _cpu_lightconv_step,
}


def register(library: Any) -> None:
    """Makes these the kernels of a torch.library.Library's operators for CPU tensors."""
    for name, kernel in KERNELS.items():
        library.impl(name, kernel, "CPU")
