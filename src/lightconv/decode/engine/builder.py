"""Builds programs: names buffers, packs weights, and lists instructions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv.ops import program
from lightconv.ops.memory import POOL

_LINE = 64  # bytes; buffers and weights begin on a cache line


class Buffer(NamedTuple):
    """`size` numbers of each row, in rows of `width` numbers, `shift` numbers into the row."""

    column: int
    width: int
    size: int
    shift: int = 0

    def part(self, shift: int, size: int) -> "Buffer":
        """`size` numbers from `shift` on."""
        return self._replace(shift=self.shift + shift, size=size)


class Memory(NamedTuple):
    """What a layer keeps of the past: `ring` times of `width` numbers; None: all there will be."""

    ring: int | None
    width: int


class Program(NamedTuple):
    """What the engine runs.

    instructions an array of program.Instruction
    columns      numbers of workspace per row
    memories     of the layers, by their number
    widest       the widest kernel
    work         multiplications per row
    kept         what the instructions point to
    """

    instructions: Any
    columns: int
    memories: tuple[Memory, ...]
    widest: int
    work: int
    kept: tuple[Tensor, ...]


@dataclass
class Builder:
    """Collects instructions; `int8` makes all linear layers int8."""

    panels: program.Panels
    int8: bool = False
    columns: int = 0
    widest: int = 1
    work: int = 0
    buffers: dict[tuple[str, int], Buffer] = field(default_factory=dict)
    instructions: list[program.Instruction] = field(default_factory=list)
    memories: list[Memory] = field(default_factory=list)
    weights: list[tuple[program.Instruction, str, Tensor]] = field(default_factory=list)
    kept: list[Tensor] = field(default_factory=list)
    quantized: tuple[Buffer, Buffer] | None = None  # what was quantised last, and where to

    def buffer(self, name: str, size: int) -> Buffer:
        """The buffer of that name and size: the same one every time."""
        width = -(-size // (_LINE // 4)) * (_LINE // 4)
        if (name, size) not in self.buffers:
            self.buffers[name, size] = Buffer(self.columns, width, size)
            self.columns += width
        return self.buffers[name, size]

    def memory(self, ring: int | None, width: int) -> int:
        """The number of a new memory."""
        self.memories.append(Memory(ring, width))
        return len(self.memories) - 1

    def emit(
        self,
        op: str,
        source: Buffer | None,
        to: Buffer,
        *,
        second: Buffer | None = None,
        weights: Mapping[str, Tensor] | None = None,
        **fields: Any,
    ) -> None:
        """Adds an instruction; `weights` are copied to where the program keeps them."""
        instruction = program.Instruction(
            op=program.OPS.index(op),
            source=_place(source),
            to=_place(to),
            second=_place(second),
            I=source.size if source else 0,
            O=to.size,
        )
        for name, value in fields.items():
            setattr(instruction, name, value)
        for name, tensor in (weights or {}).items():
            self.weights.append((instruction, name, tensor))
        if self.quantized is not None and to.column in {b.column for b in self.quantized}:
            self.quantized = None
        self.widest = max(self.widest, instruction.kernel)
        self.instructions.append(instruction)

    def linear(
        self,
        x: Buffer,
        weight: Tensor,
        bias: Tensor | None,
        to: Buffer,
        *,
        relu: bool = False,
        add: Buffer | None = None,
        output: int = 0,
    ) -> None:
        """to = [relu](x W^T + bias) [+ add]; weight [O, I]."""
        O, I = weight.shape
        assert (x.size, to.size) == (I, O)
        self.work += O * I
        bias = weight.new_zeros(O) if bias is None else bias
        kind = self._int8_panel() if self.int8 else program.FLOAT_PANEL
        columns = self.panels.columns[kind]
        options: dict[str, Any] = {"second": add, "relu": int(relu), "output": output}
        weights = {"bias": _whole(bias, columns)}
        if not self.int8:
            weights["weight"] = program.pack(weight, columns)
            self.emit("linear", x, to, weights=weights, **options)
            return
        values, scale = program.quantize(weight)
        weights["weight"] = program.pack_int8(values, columns)
        weights["scale"] = _whole(scale, columns)
        weights["offset"] = _whole(-128 * values.sum(1, dtype=torch.int32), columns)
        is_unsigned = int(kind == program.UNSIGNED_PANEL)
        q = self._quantize(x, is_unsigned)
        self.emit("linear_int8", q, to, weights=weights, is_unsigned=is_unsigned, **options)
        self.instructions[-1].I = I

    def finish(self) -> Program:
        """The program, its weights laid end to end in one piece of memory."""
        starts, total = [], 0
        for _, _, tensor in self.weights:
            starts.append(total)
            total += -(-tensor.nbytes // _LINE) * _LINE
        arena = POOL.empty(torch.Size([total]), torch.uint8)
        for (instruction, name, tensor), start in zip(self.weights, starts, strict=True):
            flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
            arena[start : start + tensor.nbytes].copy_(flat)
            setattr(instruction, name, arena.data_ptr() + start)
        count = len(self.instructions)
        return Program(
            (program.Instruction * count)(*self.instructions),
            self.columns,
            tuple(self.memories),
            self.widest,
            self.work,
            (arena, *self.kept),
        )

    def _int8_panel(self) -> int:
        best = program.UNSIGNED_PANEL
        return best if self.panels.columns[best] else program.SIGNED_PANEL

    def _quantize(self, x: Buffer, is_unsigned: int) -> Buffer:
        if self.quantized is not None and self.quantized[0] == x:
            return self.quantized[1]
        q = self.buffer("quantized", -(-x.size // 4) + 1)  # four bytes a number; the scale
        self.emit("quantize", x, q, is_unsigned=is_unsigned)
        self.quantized = (x, q)
        return q


def _place(buffer: Buffer | None) -> program.Place:
    if buffer is None:
        return program.Place(-1, 0, 0)
    return program.Place(buffer.column, buffer.width, buffer.shift)


def _whole(vector: Tensor, columns: int) -> Tensor:
    """vector [O], filled up with zeros to whole panels."""
    return F.pad(vector, (0, -vector.shape[0] % columns))
