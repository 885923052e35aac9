"""Compiler of the engine: programs, and the layers of a model as instructions."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightconv.mixers import NORMALIZATIONS, Attention, Average, Conv, DynamicConv, LightConv, Mixer
from lightconv.mixers.projected import Projected
from lightconv.models.embedding import TokenEmbedding
from lightconv.models.layers import DecoderLayer, FeedForward, Layer, Residual, SourceAttention
from lightconv.ops import program
from lightconv.ops.library import POOL

_LINE = 64  # bytes; buffers and weights begin on a cache line


class Buffer(NamedTuple):
    """`size` numbers of each row, in rows of `width` numbers, `shift` numbers into the row."""

    column: int
    width: int
    shift: int
    size: int


_NOWHERE = Buffer(-1, 0, 0, 0)


@dataclass
class Program:
    """Instructions, and the buffers and weights they use; linear layers have panels of a kind."""

    panels: program.Panels
    kind: int = program.FLOAT_PANEL
    columns: int = 0  # numbers of workspace per row
    widest: int = 1  # the widest kernel
    work: int = 0  # multiplications per row
    buffers: dict[tuple[str, int], Buffer] = field(default_factory=dict)
    instructions: list[program.Instruction] = field(default_factory=list)
    code: Any = None  # the array of instructions, once finished
    # The past of a layer: (ring, width), of `ring` positions, or all of them if None.
    memories: list[tuple[int | None, int]] = field(default_factory=list)
    weights: list[tuple[program.Instruction, str, Tensor]] = field(default_factory=list)
    kept: list[Tensor] = field(default_factory=list)  # the instructions point to these
    quantized: tuple[Buffer, Buffer] | None = None  # the last buffer quantised, and its result

    def buffer(self, name: str, size: int) -> Buffer:
        """The buffer of that name and size: the same one every time."""
        width = -(-size // (_LINE // 4)) * (_LINE // 4)
        if (name, size) not in self.buffers:
            self.buffers[name, size] = Buffer(self.columns, width, 0, size)
            self.columns += width
        return self.buffers[name, size]

    def mix(
        self,
        op: str,
        x: Buffer,
        to: Buffer,
        kept: Buffer,
        ring: int | None,
        causal: bool,
        **how: Any,
    ) -> None:
        """An instruction along time; a causal one remembers `kept` of `ring` positions or all."""
        self.emit(op, x, to, memory=len(self.memories) if causal else 0, **how)
        if causal:
            self.emit("remember", kept, _NOWHERE, memory=len(self.memories))
            self.memories.append((ring, kept.size))

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
        """Adds an instruction; `weights` are copied into the program's memory."""
        instruction = program.Instruction(
            op=program.OPS.index(op),
            source=program.Place(*(source or _NOWHERE)[:3]),
            to=program.Place(*to[:3]),
            second=program.Place(*(second or _NOWHERE)[:3]),
            I=source.size if source else 0,
            O=to.size,
        )
        for name, value in fields.items():
            setattr(instruction, name, value)
        for name, tensor in (weights or {}).items():
            self.weights.append((instruction, name, tensor))
        if self.quantized is not None and to.column in {b.column for b in self.quantized}:
            self.quantized = None
        if op != "attend":  # its window is cut to the rows that exist
            self.widest = max(self.widest, instruction.kernel)
        self.instructions.append(instruction)

    def linear(
        self, x: Buffer, weight: Tensor, bias: Tensor | None, to: Buffer, **options: Any
    ) -> None:
        """to = [relu](x W^T + bias) [+ second]; weight [O, I]."""
        O, I = weight.shape
        assert (x.size, to.size) == (I, O)
        self.work += O * I
        bias = weight.new_zeros(O) if bias is None else bias
        columns = self.panels.columns[self.kind]
        weights = {"bias": program.whole(bias, columns)}
        weights |= program.Matrix.of(weight, self.kind).pack(columns)
        self.emit("linear", self._quantize(x), to, weights=weights, panel=self.kind, I=I, **options)

    def finish(self) -> None:
        """Copies the weights into one piece of memory and lays out the instructions."""
        sizes = [-(-tensor.nbytes // _LINE) * _LINE for _, _, tensor in self.weights]
        arena = POOL.empty(torch.Size([sum(sizes)]), torch.uint8)
        start = 0
        for (instruction, name, tensor), size in zip(self.weights, sizes, strict=True):
            flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
            arena[start : start + tensor.nbytes].copy_(flat)
            setattr(instruction, name, arena.data_ptr() + start)
            start += size
        self.weights.clear()
        self.kept.append(arena)
        self.code = (program.Instruction * len(self.instructions))(*self.instructions)

    @property
    def int8(self) -> bool:
        return self.kind in (program.SIGNED_PANEL, program.UNSIGNED_PANEL)

    def _quantize(self, x: Buffer) -> Buffer:
        """x as linear layers read it."""
        if self.kind == program.FLOAT_PANEL:
            return x
        if self.quantized is not None and self.quantized[0] == x:
            return self.quantized[1]
        # Four bytes hold four numbers, and behind them is the scale; or two.
        q = self.buffer("quantized", -(-x.size // 4) + 1 if self.int8 else -(-x.size // 2))
        self.emit("quantize", x, q, panel=self.kind)
        self.quantized = (x, q)
        return q


# --- Layers; a mixer writes add + mixer(x) to a buffer.


def embed(b: Program, embedding: TokenEmbedding, to: Buffer) -> None:
    """Token embeddings, scaled, plus sinusoids."""
    words = embedding.weight.detach().contiguous()
    b.kept.append(words)
    b.emit("embed", None, to, factor=math.sqrt(to.size), I=words.shape[0], weight=words.data_ptr())


def norm(b: Program, module: nn.LayerNorm, x: Buffer, to: Buffer) -> None:
    weights = {"weight": module.weight, "bias": module.bias}
    b.emit("norm", x, to, weights=weights, factor=module.eps)


def linear(b: Program, module: nn.Linear, x: Buffer, to: Buffer, **options: Any) -> None:
    """to = module(x), with the options of `Program.linear`."""
    b.linear(x, module.weight, module.bias, to, **options)


def layer(b: Program, module: Layer, x: Buffer, number: int) -> None:
    """One layer in place; `number` is that of a decoder layer's keys and values."""
    _block(b, module.mixer_residual, x, partial(MIXERS[type(module.mixer)], b, module.mixer))
    if isinstance(module, DecoderLayer):
        _block(b, module.source_residual, x, partial(_source, b, module.source, number))
    _block(b, module.ffn_residual, x, partial(_feed_forward, b, module.ffn))


def _block(b: Program, frame: Residual, x: Buffer, write: Callable[..., None]) -> None:
    """A sub-block in place: `write(inner, x, to)` writes to = x + module(inner)."""
    if frame.pre_norm:
        inner = b.buffer("inner", x.size)
        norm(b, frame.norm, x, inner)
        write(inner, x, x)
    else:
        total = b.buffer("total", x.size)
        write(x, x, total)
        norm(b, frame.norm, total, x)


def _feed_forward(b: Program, ffn: FeedForward, x: Buffer, add: Buffer, to: Buffer) -> None:
    hidden = b.buffer("hidden", ffn.hidden.out_features)
    linear(b, ffn.hidden, x, hidden, relu=1)
    linear(b, ffn.output, hidden, to, second=add)


def _source(
    b: Program, attention: SourceAttention, number: int, x: Buffer, add: Buffer, to: Buffer
) -> None:
    query, read = b.buffer("projected", x.size), b.buffer("mixed", x.size)
    linear(b, attention.q_proj, x, query)
    factor = (x.size // attention.heads) ** -0.5
    options = {"heads": attention.heads, "memory": number, "factor": factor}
    b.emit("attend_source", query, read, narrow=int(b.int8), **options)
    linear(b, attention.out_proj, read, to, second=add)


def keys_and_values(b: Program, attention: SourceAttention, x: Buffer, number: int) -> None:
    """Keys and values of the source for one decoder layer, to output `number`."""
    both = b.buffer("keys and values", 2 * x.size)
    linear(b, attention.kv_proj, x, both)
    to = both._replace(column=-1)  # an output of the run, not a buffer
    b.emit("arrange", both, to, heads=attention.heads, output=number + 1, narrow=int(b.int8))


def _projected(b: Program, mixer: Projected, x: Buffer) -> Buffer:
    projected = b.buffer("projected", mixer.in_proj.out_features)
    linear(b, mixer.in_proj, x, projected)
    if not mixer.glu:
        return projected
    gated = b.buffer("projected", x.size)
    b.emit("glu", projected, gated)
    return gated


def _convolve(b: Program, mixer: Projected, x: Buffer, **options: Any) -> Buffer:
    mixed = b.buffer("mixed", x.size)
    options |= {"heads": mixer.heads, "kernel": mixer.kernel, "left": mixer.left}
    b.mix("convolve", x, mixed, x, mixer.kernel, mixer.causal, **options)
    return mixed


def _dynamicconv(b: Program, mixer: DynamicConv, x: Buffer, add: Buffer, to: Buffer) -> None:
    x = _projected(b, mixer, x)
    kernels = b.buffer("kernels", mixer.heads * mixer.kernel)
    assert isinstance(mixer.kernel_proj, nn.Linear)  # one of low rank runs in PyTorch
    linear(b, mixer.kernel_proj, x, kernels)
    how = program.NORMALIZATIONS.index(mixer.normalize)
    mixed = _convolve(b, mixer, x, second=kernels, normalize=how)
    linear(b, mixer.out_proj, mixed, to, second=add)


def _lightconv(b: Program, mixer: LightConv, x: Buffer, add: Buffer, to: Buffer) -> None:
    kernels = NORMALIZATIONS[mixer.normalize](mixer.weight.detach())
    mixed = _convolve(b, mixer, _projected(b, mixer, x), weights={"weight": kernels})
    linear(b, mixer.out_proj, mixed, to, second=add)


def _attention(b: Program, mixer: Attention, x: Buffer, add: Buffer, to: Buffer) -> None:
    projected, mixed = b.buffer("projected", 3 * x.size), b.buffer("mixed", x.size)
    linear(b, mixer.in_proj, x, projected)
    window = mixer.window or 0
    left = window - 1 if mixer.causal else window // 2
    options = {"heads": mixer.heads, "factor": (x.size // mixer.heads) ** -0.5, "left": left}
    kept = projected._replace(shift=x.size, size=2 * x.size)
    b.mix("attend", projected, mixed, kept, mixer.window, mixer.causal, kernel=window, **options)
    linear(b, mixer.out_proj, mixed, to, second=add)


def _average(b: Program, mixer: Average, x: Buffer, add: Buffer, to: Buffer) -> None:
    D = x.size
    mean, hidden = b.buffer("mean", D), b.buffer("hidden", mixer.ffn_dim)
    both, gates, mixed = b.buffer("both", 2 * D), b.buffer("gates", 2 * D), b.buffer("mixed", D)
    total = b.buffer("total of the past", D)
    b.mix("average", x, mean, total, 2, mixer.causal, second=total)
    linear(b, mixer.hidden, mean, hidden, relu=1)
    b.emit("copy", x, both._replace(size=D))
    linear(b, mixer.output, hidden, both._replace(shift=D, size=D))
    linear(b, mixer.gate, both, gates)
    b.emit("gate", both, mixed, second=gates)
    b.emit("copy", mixed, to, second=add)


def _conv(b: Program, mixer: Conv, x: Buffer, add: Buffer, to: Buffer) -> None:
    window = b.buffer("window", mixer.kernel * x.size)
    options = {"kernel": mixer.kernel, "left": mixer.left}
    b.mix("window", x, window, x, mixer.kernel, mixer.causal, **options)
    b.linear(window, mixer.weight.detach().transpose(0, 1).flatten(1), None, to, second=add)


# Mixers of a user's own run in torch.
MIXERS: dict[type[Mixer], Callable[..., None]] = {
    DynamicConv: _dynamicconv,
    LightConv: _lightconv,
    Attention: _attention,
    Average: _average,
    Conv: _conv,
}
