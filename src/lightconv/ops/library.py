"""The C++ library of CPU kernels: found or built, loaded once.

It is searched beside this file (an install puts it there), then in the cache folder, and else
compiled into that folder at the first call that needs it; a damaged one there is compiled again.
Without it the formulas run, after one warning with the reason and the remedy;
LIGHTCONV_REQUIRE_NATIVE=1 makes that an error. LIGHTCONV_NATIVE=0 turns the kernels off,
LIGHTCONV_ISA=base|avx2|avx512 chooses an instruction set. `lightconv doctor` shows the outcome.
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

# Numbers of csrc/problem.h.
DTYPE_NUMBERS = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}

POINTER, INTEGER, NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


def members(type_: Any, names: str) -> list[tuple[str, Any]]:
    """Fields of one type of a ctypes.Structure."""
    return [(name, type_) for name in names.split()]


class Problem(ctypes.Structure):
    """csrc/problem.h's Problem, field for field."""

    tensors: Any  # keeps alive what the pointers point to
    _fields_ = (
        *members(POINTER, "x weight grad out grad_x grad_weight offsets"),
        *members(INTEGER, "sequences B T D H K left x_batch x_row grad_batch grad_row"),
        *members(INTEGER, "dtype weight_dtype shared softmax drop"),
        ("keep_scale", NUMBER),
        ("seed", INTEGER),
    )


class ResidualProblem(ctypes.Structure):
    """csrc/problem.h's Residual, field for field."""

    _fields_ = (
        *members(POINTER, "x inner weight bias grad sum stats out"),
        *members(POINTER, "grad_x grad_inner grad_weight grad_bias"),
        *members(INTEGER, "rows D dtype inner_dtype weight_dtype drop"),
        *members(NUMBER, "keep_scale eps"),
        ("seed", INTEGER),
    )


class Native(NamedTuple):
    """The loaded library or None, its instruction set, and the reason in one sentence."""

    library: ctypes.CDLL | None
    isa: str
    reason: str


@functools.cache
def native() -> Native:
    """Loads the library once per process, building it if needed; without one, warns."""
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


def call(name: str, problem: Problem | ResidualProblem) -> None:
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
                    tell(f"lightconv: compiling the CPU kernels once (40 s): {cached} is {why}")
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
    for size, struct in (("problem", Problem), ("residual", ResidualProblem)):
        size_of = getattr(library, f"lightconv_{size}_bytes")
        size_of.restype = INTEGER
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
    library.lightconv_step.argtypes = (POINTER,) * 4 + (INTEGER,) * 10
    library.lightconv_engine.restype = POINTER
    library.lightconv_panel.argtypes = (POINTER, INTEGER)
    library.lightconv_panel.restype = INTEGER
    library.lightconv_run.argtypes = (POINTER,) * 3
    library.lightconv_topk.argtypes = (POINTER, *(INTEGER,) * 4, POINTER, POINTER)
    library.lightconv_use_threads.argtypes = (POINTER,)
    library.lightconv_use_threads(_torch_parallel_for())
    return str(isa.decode())


def _torch_parallel_for() -> ctypes.c_void_p | None:
    """torch's own parallel loop (its stable C interface), so that there is one thread pool."""
    for folder in Path(torch.__file__).parent.glob("lib/libtorch_cpu.*"):
        with contextlib.suppress(AttributeError, OSError):
            return ctypes.cast(ctypes.CDLL(str(folder)).torch_parallel_for, ctypes.c_void_p)
    warnings.warn("torch offers no parallel loop: lightconv runs on one thread", stacklevel=2)
    return None
