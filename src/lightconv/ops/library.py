"""The C++ library of CPU kernels: found or built, loaded once; memory for its large outputs.

It is searched beside this file (an install puts it there), then in the cache folder, and else
compiled into that folder at the first call that needs it; a damaged one there is compiled again.
Without it the formulas run, after one warning with the reason and the remedy;
LIGHTCONV_REQUIRE_NATIVE=1 makes that an error. LIGHTCONV_NATIVE=0 turns the kernels off,
LIGHTCONV_ISA=base|avx2|avx512 chooses an instruction set. `lightconv doctor` shows the outcome.

glibc returns every block over 32 MB to the system when it is freed, and the next one of that size
gets fresh pages, which must be zeroed: that costs more than the convolution. So large outputs come
from a pool. A piece of memory is lent to one tensor and comes back when the last tensor that reads
it, or a view of it, is gone. Idle memory is bounded; the oldest piece goes first.
"""

import atexit
import contextlib
import ctypes
import functools
import math
import mmap
import os
import shutil
import tempfile
import warnings
import weakref
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightconv import files
from lightconv.console import tell
from lightconv.device import machine_bytes, read_megabytes
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


class TailProblem(ctypes.Structure):
    """csrc/problem.h's Tail, field for field."""

    _fields_ = (
        *members(POINTER, "y bias gate x grad out grad_y grad_bias grad_gate"),
        *members(INTEGER, "rows D dtype bias_dtype silu"),
    )


class AttendProblem(ctypes.Structure):
    """csrc/problem.h's Attend, field for field."""

    _fields_ = (
        *members(POINTER, "scores grad mask"),
        *members(INTEGER, "mask_batch mask_head mask_row B H rows keys first_batch first_row T S"),
        *members(INTEGER, "dtype causal drop"),
        *members(NUMBER, "keep_scale scale"),
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


def call(name: str, *arguments: Any) -> None:
    """Runs a kernel of the loaded library."""
    if getattr(native().library, name)(*arguments) != 0:
        raise MemoryError(f"{name} could not allocate its scratch memory")


def _find_or_build() -> Path:
    name = build.library_name()
    installed = Path(__file__).parent / name
    if installed.exists():
        if fault := _find_fault(installed):
            raise build.BuildError(f"{fault}. Install lightconv again, as a user who may")
        return installed
    try:
        cached = files.cache_folder() / name
        cached.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if _find_fault(cached):
            with files.lock(cached.parent / ".lock", busy=None, inherited=True):
                # Another process may have built it meanwhile.
                if fault := _find_fault(cached):
                    tell(f"lightconv: compiling the CPU kernels once (40 s): {fault}")
                    build.build(cached)
                if fault := _find_fault(cached):
                    raise OSError(fault)
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


def _find_fault(path: Path) -> str:
    try:
        return build.find_fault(path)
    except FileNotFoundError as error:
        return f"{error.filename} is missing"


def _prepare(library: ctypes.CDLL) -> str:
    """Declares the functions, hands over torch's thread pool, and returns the instruction set."""
    structs = {"problem": Problem, "residual": ResidualProblem, "tail": TailProblem}
    structs["attend"] = AttendProblem
    for size, struct in structs.items():
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


# --- memory of large outputs ----------------------------------------------------------------------

SMALLEST = 8 << 20  # bytes; malloc keeps smaller blocks by itself
_PAGE = 2 << 20  # sizes are rounded up to this, so that nearly equal shapes share memory
_SLACK = 1.25  # a piece serves requests down to its size divided by this


class Pool:
    """Pieces of anonymous memory, at most `most_idle` bytes of them idle."""

    def __init__(self, most_idle: int | None = None) -> None:
        self._wanted = most_idle
        # Finalisers put pieces here, in any thread and at any moment, even within `empty`; append
        # and pop of a deque need no lock, which such a finaliser could not wait for.
        self._idle: deque[mmap.mmap] = deque()

    @functools.cached_property
    def most_idle(self) -> int:
        """Largest number of idle bytes; larger requests are not pooled. Read when first needed.

        LIGHTCONV_KEEP_MB, or a sixteenth of the machine's memory and at most 1 GiB.
        """
        if self._wanted is not None or not hasattr(mmap, "MAP_ANONYMOUS"):
            return self._wanted or 0
        return read_megabytes("LIGHTCONV_KEEP_MB", min(machine_bytes() // 16, 1 << 30))

    def idle_bytes(self) -> int:
        return sum(len(piece) for piece in list(self._idle))

    def clear(self) -> None:
        """Returns idle memory to the system."""
        self._idle.clear()

    def empty(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """An uninitialised contiguous CPU tensor."""
        count = math.prod(shape)
        needed = count * dtype.itemsize
        if needed < SMALLEST or needed > self.most_idle:
            return torch.empty(shape, dtype=dtype)
        piece = self._take(needed)
        lease = memoryview(piece)
        # The storage holds the lease, so the lease dies with the last tensor that reads it.
        flat = torch.frombuffer(lease, dtype=dtype, count=count)
        weakref.finalize(lease, self._give_back, piece).atexit = False
        # Not a view of what frombuffer made: autograd would forbid changing that in place.
        strides = flat.view(shape).stride()
        return torch.empty(0, dtype=dtype).set_(flat.untyped_storage(), 0, shape, strides)

    def _take(self, needed: int) -> mmap.mmap:
        for _ in range(len(self._idle)):
            try:
                piece = self._idle.popleft()
            except IndexError:
                break
            if needed <= len(piece) <= needed * _SLACK + _PAGE:
                return piece
            self._idle.append(piece)
        size = -(-needed // _PAGE) * _PAGE
        piece = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            # Rows of a tile lie a page apart; large pages save a walk through the page table for
            # each. A system without them raises, and the memory is as good.
            with contextlib.suppress(OSError):
                piece.madvise(mmap.MADV_HUGEPAGE)
        return piece

    def _give_back(self, piece: mmap.mmap) -> None:
        self._idle.append(piece)
        while self.idle_bytes() > self.most_idle:
            try:
                self._idle.popleft()  # unmapped when the last reference is gone
            except IndexError:
                break


POOL = Pool()
