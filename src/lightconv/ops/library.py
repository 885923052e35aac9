"""The C++ library of CPU kernels: found or built, loaded once.

It is looked for beside this file (an install puts it there), then in the user's cache
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
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lightconv import files
from lightconv.console import tell
from lightconv.ops import build

# How csrc/problem.h numbers them.
DTYPE_NUMBERS = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}

_POINTERS = ("x", "weight", "grad", "out", "grad_x", "grad_weight", "offsets")
_INTEGERS = (
    *("sequences", "B", "T", "D", "H", "K", "left"),
    *("x_batch", "x_row", "grad_batch", "grad_row"),
    *("dtype", "weight_dtype", "shared", "softmax", "drop"),
)


class Problem(ctypes.Structure):
    """csrc/problem.h's Problem, field for field."""

    tensors: Any  # keeps alive what the pointers point to
    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _INTEGERS),
        ("keep_scale", ctypes.c_double),
        ("seed", ctypes.c_int64),
    )


_FRAME_POINTERS = (
    *("x", "inner", "weight", "bias", "grad", "sum", "stats", "out"),
    *("grad_x", "grad_inner", "grad_weight", "grad_bias"),
)


class Residual(ctypes.Structure):
    """csrc/problem.h's Residual, field for field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _FRAME_POINTERS),
        *(
            (n, ctypes.c_int64)
            for n in ("rows", "D", "dtype", "inner_dtype", "weight_dtype", "drop")
        ),
        ("keep_scale", ctypes.c_double),
        ("eps", ctypes.c_double),
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


def call(name: str, problem: Problem | Residual) -> None:
    """Runs a kernel of the loaded library."""
    if getattr(native().library, name)(ctypes.byref(problem)) != 0:
        raise MemoryError(f"{name} could not allocate its scratch memory")


def _find_or_build() -> Path:
    name = build.library_name()
    installed = Path(__file__).parent / name
    if installed.exists():
        return installed
    try:
        cached = files.cache_folder() / name
        if not build.is_sealed(cached):
            with files.lock(cached.parent / ".lock", busy=None, inherited=True):
                if not build.is_sealed(cached):  # another process may have built it meanwhile
                    why = "damaged" if cached.exists() else "missing"
                    tell(
                        f"lightconv: {cached} is {why}, compiling the CPU kernels once (about 40 s)"
                    )
                    build.build(cached)
        return cached
    except OSError as error:
        folder = Path(tempfile.mkdtemp(prefix="lightconv-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        tell(
            f"lightconv: the cache cannot be used ({error}); compiling the CPU kernels into "
            f"{folder} for this process only. Set LIGHTCONV_CACHE to a writable folder to keep them"
        )
        build.build(folder / name)
        return folder / name


def _prepare(library: ctypes.CDLL) -> str:
    """Declares the functions, hands over torch's thread pool, and returns the instruction set."""
    for size, struct in (("problem", Problem), ("residual", Residual)):
        size_of = getattr(library, f"lightconv_{size}_bytes")
        size_of.restype = ctypes.c_int64
        if size_of() != ctypes.sizeof(struct):
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
    library.lightconv_engine.restype = ctypes.c_void_p
    library.lightconv_panel.argtypes = (ctypes.c_void_p, ctypes.c_int64)
    library.lightconv_panel.restype = ctypes.c_int64
    library.lightconv_run.argtypes = (ctypes.c_void_p,) * 3
    numbers = (ctypes.c_int64,) * 4
    library.lightconv_topk.argtypes = (ctypes.c_void_p, *numbers, *(ctypes.c_void_p,) * 2)
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
