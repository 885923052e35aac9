"""The layers of both models: a mixer, attention to the source, a feed-forward network.

Each sub-block is [pre-norm] -> input dropout -> module -> dropout -> residual -> [post-norm]. A
layer does not know which mixer it holds.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lightconv import ops
from lightconv.mixers import MIXERS, Mixer, State
from lightconv.mixers.attention import attend, attention_weights, key_mask
from lightconv.mixers.base import linear
from lightconv.models.config import MixerConfig, ModelConfig, Seq2SeqConfig
from lightconv.models.folder import ModelFolder


class BaseModel(nn.Module):
    """Base of both models: saves itself as a model folder, and is read back."""

    config: ModelConfig

    def save(self, folder: str | Path, **options: Any) -> None:
        """Writes a model folder; options as of `lightconv.models.folder.ModelFolder.write`."""
        ModelFolder.write(folder, self, **options)

    save_pretrained = save

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
    ) -> Self:
        """The model of a folder, which must be of this class, in evaluation mode."""
        model = ModelFolder(folder).load(device, dtype)
        if not isinstance(model, cls):
            raise ValueError(
                f"{folder} holds a {type(model).__name__}, expected a {cls.__name__}. "
                "lightconv.load takes either"
            )
        return model

    def require_eval(self) -> None:
        """Raises ValueError in training mode."""
        if self.training:
            raise ValueError("a model in training mode cannot step: call eval() before start()")


class SkipInit(TorchFunctionMode):
    """Skips normal initialisation: on the meta device torch loads its compiler for it (150 MB)."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (nn.init.normal_, Tensor.normal_):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


class Residual(nn.Module):
    """Frame of a sub-block."""

    def __init__(self, config: ModelConfig, *, input_dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.dim)
        self.dropout = config.dropout
        self.input_dropout = input_dropout
        self.pre_norm = config.pre_norm

    def around(self, module: nn.Module, x: Tensor, *args: Any) -> Tensor:
        """x [B, T, D] -> [B, T, D], through `module(x, *args)`."""
        return self.close(x, module(self.open(x), *args))

    def open(self, x: Tensor) -> Tensor:
        """x [B, T, D] -> input of the module [B, T, D]."""
        inner = self.norm(x) if self.pre_norm else x
        return ops.dropout(inner, self.input_dropout) if self.training else inner

    def close(self, x: Tensor, inner: Tensor) -> Tensor:
        """x [B, T, D] as given to `open`, output of the module [B, T, D] -> [B, T, D]."""
        dropout = self.dropout if self.training else 0.0
        if self.pre_norm:
            return ops.dropout_add(x, inner, dropout)
        if not torch.is_grad_enabled():
            # Without a backward pass torch's own calls cost less for small inputs.
            out: Tensor = self.norm(ops.dropout_add(x, inner, dropout))
            return out
        norm = self.norm
        return ops.dropout_add_norm(x, inner, norm.weight, norm.bias, dropout, eps=norm.eps)


class FeedForward(nn.Module):
    """ReLU(x W1 + b1) W2 + b2: [B, T, D] -> [B, T, D]."""

    def __init__(self, dim: int, ffn_dim: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.hidden = linear(dim, ffn_dim)
        self.output = linear(ffn_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        # Not in place: the product is a view, whose gradient autograd would copy twice.
        x = F.relu(self.hidden(x))
        if self.training:
            x = ops.dropout(x, self.dropout)
        out: Tensor = self.output(x)
        return out


class SourceState(NamedTuple):
    """Keys and values [B, S, D] of the source for one layer; never modified."""

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
        # Initialised as one xavier-uniform matrix [3D, D], as in self-attention.
        bound = math.sqrt(6.0 / (4 * dim))
        nn.init.uniform_(self.q_proj.weight, -bound, bound)
        nn.init.uniform_(self.kv_proj.weight, -bound, bound)

    def start(self, memory: Tensor) -> SourceState:
        """memory [B, S, D] -> keys and values."""
        return SourceState(*self.kv_proj(memory).chunk(2, dim=-1))

    def forward(self, x: Tensor, source: SourceState, padding: Tensor) -> Tensor:
        """x [N, T, D], the source and its padding [B, S] bool -> [N, T, D].

        N is a multiple of B: the first N / B rows read the first source, and so on.
        """
        dropout = self.dropout if self.training else 0.0
        q, mask = self._queries(x, source), key_mask(padding)
        read = attend(q, source.keys, source.values, self.heads, mask=mask, dropout=dropout)
        out: Tensor = self.out_proj(read.view(x.shape))
        return out

    def weights(self, x: Tensor, source: SourceState, padding: Tensor) -> Tensor:
        """Attention weights of `forward`, the mean of the heads: [N, T, S]."""
        q, mask = self._queries(x, source), key_mask(padding)
        mean = attention_weights(q, source.keys, self.heads, mask=mask).mean(1)
        return mean.view(*x.shape[:2], mean.shape[-1])

    def _queries(self, x: Tensor, source: SourceState) -> Tensor:
        """x [N, T, D] -> [B, N / B * T, D]: queries are independent of each other."""
        q: Tensor = self.q_proj(x)
        B = source.keys.shape[0]
        return q if q.shape[0] == B else q.view(B, -1, q.shape[2])


class Layer(nn.Module):
    """Base of all layers: a mixer and a feed-forward network, each in its frame."""

    def __init__(self, config: ModelConfig, mixer: MixerConfig, *, causal: bool) -> None:
        super().__init__()
        # The fields of a mixer's configuration are the keyword arguments of its constructor.
        self.mixer: Mixer = MIXERS[mixer.kind](config.dim, causal=causal, **vars(mixer))
        self.mixer_residual = Residual(config, input_dropout=config.input_dropout)
        self.ffn = FeedForward(config.dim, config.ffn_dim, dropout=config.activation_dropout)
        self.ffn_residual = Residual(config)

    def mix_step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """x [B, n, D] -> [B, n, D] and the next state."""
        block = self.mixer_residual
        mixed, state = self.mixer.step(block.open(x), state)
        return block.close(x, mixed), state


class PlainLayer(Layer):
    """Layer of an encoder, or of a language model if causal: a mixer and a feed-forward network."""

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        """x [B, T, D], padding [B, T] bool -> [B, T, D]."""
        x = self.mixer_residual.around(self.mixer, x, padding)
        return self.ffn_residual.around(self.ffn, x)

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """x [B, n, D], the mixer's state -> [B, n, D] and the next state."""
        x, state = self.mix_step(x, state)
        return self.ffn_residual.around(self.ffn, x), state


class DecoderState(NamedTuple):
    """State of one decoder layer: of its mixer, and of the source."""

    mixer: State
    source: SourceState


class DecoderLayer(Layer):
    """Causal mixer, attention to the source and feed-forward network: [B, T, D] -> [B, T, D]."""

    def __init__(self, config: Seq2SeqConfig, mixer: MixerConfig) -> None:
        super().__init__(config, mixer, causal=True)
        self.source = SourceAttention(
            config.dim, heads=config.source_heads, dropout=config.attention_dropout
        )
        self.source_residual = Residual(config)

    def forward(self, x: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
        """x [B, T, D], memory [B, S, D], its padding [B, S] bool -> [B, T, D]."""
        x = self.mixer_residual.around(self.mixer, x)
        x = self.source_residual.around(self.source, x, self.source.start(memory), padding)
        return self.ffn_residual.around(self.ffn, x)

    def start(self, memory: Tensor, max_len: int) -> DecoderState:
        """State before the first of at most `max_len` positions; memory [B, S, D]."""
        past = self.mixer.start(memory.shape[0], max_len, device=memory.device, dtype=memory.dtype)
        return DecoderState(past, self.source.start(memory))

    def step(
        self, x: Tensor, state: DecoderState, padding: Tensor, *, attending: bool = False
    ) -> tuple[Tensor, DecoderState, Tensor | None]:
        """Steps n positions.

        x, padding  [B, n, D], and of the source [B, S] bool
        returns     [B, n, D], the next state and, if `attending`, the attention weights [B, n, S]
        """
        x, past = self.mix_step(x, state.mixer)
        weights = None
        if attending:
            weights = self.source.weights(self.source_residual.open(x), state.source, padding)
        x = self.source_residual.around(self.source, x, state.source, padding)
        x = self.ffn_residual.around(self.ffn, x)
        return x, DecoderState(past, state.source), weights


def final_norm(config: ModelConfig) -> nn.Module:
    """Norm after the last layer; post-norm layers need none."""
    return nn.LayerNorm(config.dim) if config.pre_norm and config.final_norm else nn.Identity()
