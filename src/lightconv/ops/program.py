"""Programs of the C++ engine: instructions over rows of numbers, weights packed for its panels.

csrc/program.h describes instructions and runs; these structures mirror it field for field.
"""

import ctypes
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv.ops.library import INTEGER, NUMBER, POINTER, call, members, native

# In the order of csrc/program.h.
OPS = (
    *("embed", "norm", "linear", "quantize", "glu", "convolve", "attend"),
    *("attend_source", "average", "gate", "copy", "arrange", "window", "remember"),
)
NORMALIZATIONS = (
    *("none", "softmax", "sigmoid", "tanh", "l1", "l2", "square", "abs", "abs_l1", "abs_l2"),
)
FLOAT_PANEL, SIGNED_PANEL, UNSIGNED_PANEL, BF16_PANEL = range(4)


class Place(ctypes.Structure):
    """A piece of the rows of a buffer."""

    _fields_ = tuple(members(INTEGER, "column width shift"))


class Instruction(ctypes.Structure):
    """csrc/program.h's Instruction, field for field."""

    _fields_ = (
        ("op", INTEGER),
        *members(Place, "source to second"),
        *members(INTEGER, "output I O"),
        *members(POINTER, "weight bias scale offset"),
        *members(INTEGER, "heads kernel left memory relu panel chosen normalize narrow"),
        ("factor", NUMBER),
    )


class Task(ctypes.Structure):
    """csrc/program.h's Run, field for field."""

    _fields_ = (
        ("program", POINTER),
        *members(INTEGER, "count rows threads"),
        *members(POINTER, "workspace outputs tokens sinusoids"),
        *members(INTEGER, "pad longest time slots span"),
        *members(POINTER, "positions hypotheses ancestors histories rings sentences lengths"),
        ("layers", INTEGER),
        ("sources", POINTER),
        *members(INTEGER, "choice width"),
        *members(POINTER, "begins ends nanoseconds"),
    )


class Panels(NamedTuple):
    """Layout of weights in the engine of an instruction set."""

    engine: int  # its address
    columns: tuple[int, ...]  # outputs of a panel by kind of panel, 0 if that does not run


def panels() -> Panels:
    """The layout of the instruction set in use; RuntimeError without the C++ library."""
    library = native().library
    if library is None:
        raise RuntimeError(f"the engine needs the C++ kernels: {native().reason}")
    engine = library.lightconv_engine()
    columns = (library.lightconv_panel(engine, kind) for kind in range(4))
    return Panels(engine, tuple(columns))


def pack(weight: Tensor, columns: int) -> Tensor:
    """weight [O, I] -> panels [O / columns, I, columns], the last one padded with zeros."""
    O, I = weight.shape
    padded = F.pad(weight, (0, 0, 0, -O % columns))
    return padded.view(-1, columns, I).transpose(1, 2).contiguous()


def whole(vector: Tensor, columns: int) -> Tensor:
    """vector [O], filled up with zeros to whole panels."""
    return F.pad(vector, (0, -vector.shape[0] % columns))


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [O, I] -> values [O, I] int8 in [-127, 127] and scale [O], about weight / values."""
    top = weight.abs().amax(1)
    factor = torch.where(top > 0, 127.0 / top, 0.0)
    return (weight * factor[:, None]).round().to(torch.int8), top / 127.0


class Matrix(NamedTuple):
    """A matrix [O, I] in the numbers of a kind of panel: I inputs as `items` of four bytes."""

    panel: int
    items: Tensor  # [O, I], [O, I / 2] pairs of bfloat16 or [O, I / 4] fours of int8
    scale: Tensor | None = None  # [O], int8 only
    offset: Tensor | None = None

    @classmethod
    def of(cls, weight: Tensor, panel: int) -> "Matrix":
        """weight [O, I]"""
        I = weight.shape[1]
        if panel == FLOAT_PANEL:
            return cls(panel, weight)
        if panel == BF16_PANEL:
            pairs = F.pad(weight.to(torch.bfloat16), (0, I % 2)).contiguous()
            return cls(panel, pairs.view(torch.int32))
        values, scale = quantize(weight)
        fours = F.pad(values, (0, -I % 4)).contiguous().view(torch.int32)
        return cls(panel, fours, scale, -128 * values.sum(1, dtype=torch.int32))

    def take(self, rows: Tensor) -> "Matrix":
        """Those rows."""
        scale, offset = (each if each is None else each[rows] for each in self[2:])
        return Matrix(self.panel, self.items[rows], scale, offset)

    def pack(self, columns: int) -> dict[str, Tensor]:
        """Tensors of an instruction by the names of its fields."""
        found = {"weight": pack(self.items, columns)}
        if self.scale is not None and self.offset is not None:
            found |= {"scale": whole(self.scale, columns), "offset": whole(self.offset, columns)}
        return found


def run(engine: int, task: Task) -> int:
    """Runs a program; returns the row whose token is outside the vocabulary, or -1."""
    unknown = INTEGER(-1)
    call("lightconv_run", engine, ctypes.byref(task), ctypes.byref(unknown))
    return unknown.value


def addresses(tensors: list[Tensor]) -> Any:
    """Addresses as an array for C, which does not keep the tensors alive."""
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
