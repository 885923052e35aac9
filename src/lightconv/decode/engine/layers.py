"""The layers of a model as instructions. A mixer writes add + mixer(x) to a buffer."""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from lightconv.decode.engine.builder import Buffer, Builder
from lightconv.mixers import NORMALIZATIONS, Attention, Average, DynamicConv, LightConv, Mixer
from lightconv.mixers.projected import Projected
from lightconv.models.embedding import TokenEmbedding
from lightconv.models.layers import DecoderLayer, FeedForward, Layer, Residual, SourceAttention
from lightconv.ops.program import NORMALIZATIONS as NUMBERED


def embed(b: Builder, embedding: TokenEmbedding, to: Buffer) -> None:
    """The words of the run's tokens, scaled, plus sinusoids."""
    words = embedding.weight.detach().contiguous()
    b.kept.append(words)
    b.emit("embed", None, to, factor=math.sqrt(to.size), I=words.shape[0], weight=words.data_ptr())


def norm(b: Builder, module: nn.LayerNorm, x: Buffer, to: Buffer) -> None:
    """to = layer norm of x."""
    weights = {"weight": module.weight, "bias": module.bias}
    b.emit("norm", x, to, weights=weights, factor=module.eps)


def linear(b: Builder, module: nn.Linear, x: Buffer, to: Buffer, **options: Any) -> None:
    """to = module(x), with the options of Builder.linear."""
    b.linear(x, module.weight.detach(), _data(module.bias), to, **options)


def block(b: Builder, frame: Residual, x: Buffer, write: Callable[[Buffer, Buffer], None]) -> None:
    """A sub-block in place: `write(inner, to)` writes to = x + module(inner)."""
    if frame.pre_norm:
        inner = b.buffer("inner", x.size)
        norm(b, frame.norm, x, inner)
        write(inner, x)
        return
    total = b.buffer("total", x.size)
    write(x, total)
    norm(b, frame.norm, total, x)


def layer(b: Builder, module: Layer, x: Buffer, source: int | None = None) -> None:
    """One layer in place; `source` is the number of what a decoder layer attends to."""
    mixer = MIXERS[type(module.mixer)]
    block(b, module.mixer_residual, x, lambda inner, to: mixer(b, module.mixer, inner, x, to))
    if isinstance(module, DecoderLayer):
        attention = module.source
        assert source is not None
        block(
            b,
            module.source_residual,
            x,
            lambda inner, to: _source(b, attention, inner, x, to, source),
        )
    block(b, module.ffn_residual, x, lambda inner, to: _feed_forward(b, module.ffn, inner, x, to))


def _feed_forward(b: Builder, ffn: FeedForward, x: Buffer, add: Buffer, to: Buffer) -> None:
    hidden = b.buffer("hidden", ffn.hidden.out_features)
    linear(b, ffn.hidden, x, hidden, relu=True)
    linear(b, ffn.output, hidden, to, add=add)


def _source(
    b: Builder, attention: SourceAttention, x: Buffer, add: Buffer, to: Buffer, number: int
) -> None:
    query, read = b.buffer("projected", x.size), b.buffer("mixed", x.size)
    linear(b, attention.q_proj, x, query)
    factor = (x.size // attention.heads) ** -0.5
    options = {"heads": attention.heads, "memory": number, "factor": factor}
    b.emit("attend_source", query, read, narrow=int(b.int8), **options)
    linear(b, attention.out_proj, read, to, add=add)


def keys_and_values(b: Builder, attention: SourceAttention, x: Buffer, number: int) -> None:
    """The source as a decoder layer attends to it, to output `number`."""
    both = b.buffer("keys and values", 2 * x.size)
    linear(b, attention.kv_proj, x, both)
    to = both._replace(column=-1)  # no buffer: where the run says
    b.emit("arrange", both, to, heads=attention.heads, output=number + 1, narrow=int(b.int8))


def _projected(b: Builder, mixer: Projected, x: Buffer) -> Buffer:
    """What the convolution reads."""
    projected = b.buffer("projected", mixer.in_proj.out_features)
    linear(b, mixer.in_proj, x, projected)
    if not mixer.glu:
        return projected
    gated = b.buffer("projected", x.size)
    b.emit("glu", projected, gated)
    return gated


def _convolve(b: Builder, mixer: Projected, x: Buffer, **options: Any) -> Buffer:
    mixed = b.buffer("mixed", x.size)
    b.emit(
        "convolve",
        x,
        mixed,
        heads=mixer.heads,
        kernel=mixer.kernel,
        left=mixer.left,
        memory=b.memory(mixer.kernel, x.size) if mixer.causal else 0,
        **options,
    )
    return mixed


def _dynamicconv(b: Builder, mixer: Mixer, x: Buffer, add: Buffer, to: Buffer) -> None:
    assert isinstance(mixer, DynamicConv)
    x = _projected(b, mixer, x)
    kernels = b.buffer("kernels", mixer.heads * mixer.kernel)
    linear(b, mixer.kernel_proj, x, kernels)
    how = NUMBERED.index(mixer.normalize)
    mixed = _convolve(b, mixer, x, second=kernels, normalize=how)
    linear(b, mixer.out_proj, mixed, to, add=add)


def _lightconv(b: Builder, mixer: Mixer, x: Buffer, add: Buffer, to: Buffer) -> None:
    assert isinstance(mixer, LightConv)
    kernels = NORMALIZATIONS[mixer.normalize](mixer.weight.detach())
    mixed = _convolve(b, mixer, _projected(b, mixer, x), weights={"weight": kernels})
    linear(b, mixer.out_proj, mixed, to, add=add)


def _attention(b: Builder, mixer: Mixer, x: Buffer, add: Buffer, to: Buffer) -> None:
    assert isinstance(mixer, Attention)
    projected, mixed = b.buffer("projected", 3 * x.size), b.buffer("mixed", x.size)
    linear(b, mixer.in_proj, x, projected)
    window = mixer.window or 0
    b.emit(
        "attend",
        projected,
        mixed,
        heads=mixer.heads,
        kernel=window,
        left=window - 1 if mixer.causal else window // 2,
        memory=b.memory(mixer.window, 2 * x.size) if mixer.causal else 0,
        factor=(x.size // mixer.heads) ** -0.5,
    )
    linear(b, mixer.out_proj, mixed, to, add=add)


def _average(b: Builder, mixer: Mixer, x: Buffer, add: Buffer, to: Buffer) -> None:
    assert isinstance(mixer, Average)
    D = x.size
    mean, hidden = b.buffer("mean", D), b.buffer("hidden", mixer.ffn_dim)
    both, gates, mixed = b.buffer("both", 2 * D), b.buffer("gates", 2 * D), b.buffer("mixed", D)
    b.emit("average", x, mean, memory=b.memory(2, D) if mixer.causal else 0)
    linear(b, mixer.hidden, mean, hidden, relu=True)
    b.emit("copy", x, both.part(0, D))
    linear(b, mixer.output, hidden, both.part(D, D))
    linear(b, mixer.gate, both, gates)
    b.emit("gate", both, mixed, second=gates)
    b.emit("copy", mixed, to, second=add)


# A mixer that is not here (a plain convolution, one of a user's own) runs in torch.
MIXERS: dict[type[Mixer], Callable[[Builder, Mixer, Buffer, Buffer, Buffer], None]] = {
    DynamicConv: _dynamicconv,
    LightConv: _lightconv,
    Attention: _attention,
    Average: _average,
}


def _data(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.detach()
