"""Encoder and decoder layers: a mixer, attention to the source, a feed-forward network.

Each sub-block is [pre-norm] -> input dropout -> module -> dropout -> residual -> [post-norm]. A
layer does not know which mixer it holds.
"""

import math
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from lightconv.mixers import MIXERS, Mixer, State
from lightconv.mixers.attend import attend, key_mask
from lightconv.mixers.base import linear
from lightconv.models.config import MixerConfig, Seq2SeqConfig, mixer_options


def build_mixer(config: MixerConfig, dim: int, *, causal: bool) -> Mixer:
    """The mixer that `config` describes."""
    if config.kind not in MIXERS:
        raise ValueError(f"mixer kind must be one of {', '.join(MIXERS)}, got {config.kind!r}")
    return MIXERS[config.kind](dim, causal=causal, **mixer_options(config))


class Residual(nn.Module):
    """The frame of a sub-block: `close(x, module(open(x)))`."""

    def __init__(
        self, dim: int, *, dropout: float, pre_norm: bool, input_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.dropout = dropout
        self.input_dropout = input_dropout
        self.pre_norm = pre_norm

    def open(self, x: Tensor) -> Tensor:
        """x [B, T, D] -> what the module reads."""
        inner = self.norm(x) if self.pre_norm else x
        return F.dropout(inner, self.input_dropout, self.training)

    def close(self, x: Tensor, inner: Tensor) -> Tensor:
        """x [B, T, D] as it was before `open`, inner [B, T, D] from the module -> [B, T, D]."""
        x = x + F.dropout(inner, self.dropout, self.training)
        return x if self.pre_norm else self.norm(x)


class FeedForward(nn.Module):
    """ReLU(x W1 + b1) W2 + b2: [B, T, D] -> [B, T, D]."""

    def __init__(self, dim: int, ffn_dim: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.hidden = linear(dim, ffn_dim)
        self.output = linear(ffn_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(F.relu(self.hidden(x)), self.dropout, self.training)
        out: Tensor = self.output(x)
        return out


class SourceState(NamedTuple):
    """The source as one layer attends to it: keys and values [B, S, D]."""

    keys: Tensor
    values: Tensor


class SourceAttention(nn.Module):
    """Attention from each target position to the encoder's output."""

    def __init__(self, dim: int, *, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.q_proj = linear(dim, dim)
        self.kv_proj = linear(dim, 2 * dim)
        self.out_proj = linear(dim, dim)
        # The three start as one xavier-uniform matrix [3D, D], as in self-attention; they are cut
        # in two because the keys and values come from elsewhere, and once per sentence.
        bound = math.sqrt(6.0 / (4 * dim))
        nn.init.uniform_(self.q_proj.weight, -bound, bound)
        nn.init.uniform_(self.kv_proj.weight, -bound, bound)

    def start(self, memory: Tensor) -> SourceState:
        """memory [B, S, D]: what `forward` needs of it, whatever the query."""
        return SourceState(*self.kv_proj(memory).chunk(2, dim=-1))

    def forward(self, x: Tensor, source: SourceState, padding: Tensor) -> Tensor:
        """x [B, T, D], the source and its padding [B, S] bool -> [B, T, D]."""
        dropout = self.dropout if self.training else 0.0
        mask = key_mask(padding)
        read = attend(
            self.q_proj(x), source.keys, source.values, self.heads, mask=mask, dropout=dropout
        )
        out: Tensor = self.out_proj(read)
        return out


class EncoderLayer(nn.Module):
    """Mixer and feed-forward network: [B, S, D] -> [B, S, D]."""

    def __init__(self, config: Seq2SeqConfig, mixer: MixerConfig) -> None:
        super().__init__()
        self.mixer = build_mixer(mixer, config.dim, causal=False)
        self.mixer_residual = mixer_residual(config)
        self.ffn = FeedForward(config.dim, config.ffn_dim, dropout=config.activation_dropout)
        self.ffn_residual = residual(config)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        """x [B, S, D], padding [B, S] bool -> [B, S, D]."""
        block = self.mixer_residual
        x = block.close(x, self.mixer(block.open(x), padding))
        block = self.ffn_residual
        return block.close(x, self.ffn(block.open(x)))


class DecoderState(NamedTuple):
    """What one decoder layer remembers of a sentence: its own past and the source."""

    mixer: State
    source: SourceState


class DecoderLayer(nn.Module):
    """Causal mixer, attention to the source and feed-forward network: [B, T, D] -> [B, T, D]."""

    def __init__(self, config: Seq2SeqConfig, mixer: MixerConfig) -> None:
        super().__init__()
        self.mixer = build_mixer(mixer, config.dim, causal=True)
        self.mixer_residual = mixer_residual(config)
        self.source = SourceAttention(
            config.dim, heads=config.source_heads, dropout=config.attention_dropout
        )
        self.source_residual = residual(config)
        self.ffn = FeedForward(config.dim, config.ffn_dim, dropout=config.activation_dropout)
        self.ffn_residual = residual(config)

    def forward(self, x: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
        """x [B, T, D], memory [B, S, D], its padding [B, S] bool -> [B, T, D]."""
        block = self.mixer_residual
        x = block.close(x, self.mixer(block.open(x)))
        return self._read(x, self.source.start(memory), padding)

    def start(self, memory: Tensor, max_len: int) -> DecoderState:
        """memory [B, S, D]; `max_len` positions will be stepped at most."""
        past = self.mixer.start(memory.shape[0], max_len, device=memory.device, dtype=memory.dtype)
        return DecoderState(past, self.source.start(memory))

    def step(self, x: Tensor, state: DecoderState, padding: Tensor) -> tuple[Tensor, DecoderState]:
        """x [B, n, D], the source's padding [B, S] bool -> [B, n, D] and the next state."""
        block = self.mixer_residual
        mixed, past = self.mixer.step(block.open(x), state.mixer)
        x = self._read(block.close(x, mixed), state.source, padding)
        return x, DecoderState(past, state.source)

    def _read(self, x: Tensor, source: SourceState, padding: Tensor) -> Tensor:
        """What follows the mixer, one position at a time: attention to the source, then ffn."""
        block = self.source_residual
        x = block.close(x, self.source(block.open(x), source, padding))
        block = self.ffn_residual
        return block.close(x, self.ffn(block.open(x)))


def residual(config: Seq2SeqConfig) -> Residual:
    """The frame of a sub-block without a mixer."""
    return Residual(config.dim, dropout=config.dropout, pre_norm=config.pre_norm)


def mixer_residual(config: Seq2SeqConfig) -> Residual:
    """The frame of a mixer, the one sub-block whose input has a dropout of its own."""
    return Residual(
        config.dim,
        dropout=config.dropout,
        pre_norm=config.pre_norm,
        input_dropout=config.input_dropout,
    )
