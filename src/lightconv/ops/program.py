"""Programs of the C++ engine: instructions over rows of numbers, weights packed for its panels.

csrc/program.h says what an instruction and a run are; these structures mirror it field for field.
"""

import ctypes
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv.ops.library import native

# In the order of csrc/program.h.
OPS = (
    *("embed", "norm", "linear", "quantize", "linear_int8", "glu", "convolve", "attend"),
    *("attend_source", "average", "gate", "copy", "arrange"),
)
NORMALIZATIONS = (
    *("none", "softmax", "sigmoid", "tanh", "l1", "l2", "square", "abs", "abs_l1", "abs_l2"),
)
FLOAT_PANEL, SIGNED_PANEL, UNSIGNED_PANEL = range(3)


class Place(ctypes.Structure):
    """Where in the rows of a buffer something stands."""

    _fields_ = (("column", ctypes.c_int64), ("width", ctypes.c_int64), ("shift", ctypes.c_int64))


class Instruction(ctypes.Structure):
    """csrc/program.h's Instruction, field for field."""

    _fields_ = (
        ("op", ctypes.c_int64),
        *((name, Place) for name in ("source", "to", "second")),
        *((name, ctypes.c_int64) for name in ("output", "I", "O")),
        *((name, ctypes.c_void_p) for name in ("weight", "bias", "scale", "offset")),
        *((name, ctypes.c_int64) for name in ("heads", "kernel", "left", "memory")),
        *((name, ctypes.c_int64) for name in ("relu", "is_unsigned", "normalize", "narrow")),
        ("factor", ctypes.c_double),
    )


class Run(ctypes.Structure):
    """csrc/program.h's Run, field for field."""

    _fields_ = (
        ("program", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("count", "rows", "threads")),
        *((name, ctypes.c_void_p) for name in ("workspace", "outputs", "tokens", "sinusoids")),
        *((name, ctypes.c_int64) for name in ("pad", "longest", "time", "slots", "span")),
        *((name, ctypes.c_void_p) for name in ("ancestors", "histories", "rings")),
        *((name, ctypes.c_void_p) for name in ("sentences", "offsets", "sources")),
        *((name, ctypes.c_void_p) for name in ("begins", "ends", "nanoseconds")),
    )


class Panels(NamedTuple):
    """How the engine of the chosen instruction set wants its weights.

    engine      its address
    columns     outputs of a panel, by kind of panel; 0 where that kind does not run
    """

    engine: int
    columns: tuple[int, int, int]


def panels() -> Panels:
    """Those of the instruction set in use; raises RuntimeError without the C++ library."""
    library = native().library
    if library is None:
        raise RuntimeError(f"the engine needs the C++ kernels: {native().reason}")
    engine = library.lightconv_engine()
    columns = (library.lightconv_panel(engine, kind) for kind in range(3))
    return Panels(engine, tuple(columns))


def pack(weight: Tensor, columns: int) -> Tensor:
    """weight [O, I] -> panels [O / columns, I, columns], the last one filled up with zeros."""
    O, I = weight.shape
    padded = F.pad(weight, (0, 0, 0, -O % columns))
    return padded.view(-1, columns, I).transpose(1, 2).contiguous()


def pack_int8(weight: Tensor, columns: int) -> Tensor:
    """weight [O, I] int8 -> panels [O / columns, I / 4, columns, 4], filled up with zeros."""
    O, I = weight.shape
    padded = F.pad(weight, (0, -I % 4, 0, -O % columns))
    return padded.view(-1, columns, (I + 3) // 4, 4).transpose(1, 2).contiguous()


class Quantized(NamedTuple):
    """A matrix in int8: weight [O, I] = scale [O] * values [O, I], about."""

    values: Tensor
    scale: Tensor


def quantize(weight: Tensor) -> Quantized:
    """weight [O, I] -> int8 in [-127, 127] with a scale for each output."""
    top = weight.abs().amax(1)
    factor = torch.where(top > 0, 127.0 / top, 0.0)
    return Quantized((weight * factor[:, None]).round().to(torch.int8), top / 127.0)


def run(engine: int, task: Run) -> int:
    """Runs a program; returns the row whose token is no word, or -1."""
    library = native().library
    assert library is not None
    unknown = ctypes.c_int64(-1)
    if library.lightconv_run(engine, ctypes.byref(task), ctypes.byref(unknown)) != 0:
        raise MemoryError("the engine could not allocate its scratch memory")
    return unknown.value


def addresses(tensors: list[Tensor]) -> Any:
    """Their addresses as an array for C; it does not keep them alive."""
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
