"""What a model is, as plain values: one mixer configuration per layer, readable without torch.

The fields of a mixer's configuration are the keyword arguments of its constructor, so a model is
built without asking which mixer a layer holds.
"""

from dataclasses import dataclass, fields
from typing import ClassVar

SHARE_EMBEDDINGS = ("none", "decoder", "all")


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """Self-attention, full or within a window."""

    kind: ClassVar[str] = "attention"
    heads: int
    window: int | None = None
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ConvConfig:
    """A full (non-separable) convolution without projections."""

    kind: ClassVar[str] = "conv"
    kernel: int


@dataclass(frozen=True, kw_only=True)
class LightConvConfig:
    """Lightweight convolution; `heads` = dim and `normalize` = "none" is a depthwise one."""

    kind: ClassVar[str] = "lightconv"
    kernel: int
    heads: int
    glu: bool = False
    normalize: str = "softmax"
    dropconnect: float = 0.0


@dataclass(frozen=True, kw_only=True)
class DynamicConvConfig:
    """Dynamic convolution: the kernel is predicted from the current position."""

    kind: ClassVar[str] = "dynamicconv"
    kernel: int
    heads: int
    glu: bool = False
    normalize: str = "softmax"
    dropconnect: float = 0.0


@dataclass(frozen=True, kw_only=True)
class AverageConfig:
    """Average attention: a running mean, a feed-forward layer and a gate."""

    kind: ClassVar[str] = "average"
    ffn_dim: int
    dropout: float = 0.0


MixerConfig = AttentionConfig | ConvConfig | LightConvConfig | DynamicConvConfig | AverageConfig

MIXER_CONFIGS: dict[str, type[MixerConfig]] = {
    config.kind: config
    for config in (AttentionConfig, ConvConfig, LightConvConfig, DynamicConvConfig, AverageConfig)
}


def mixer_options(config: MixerConfig) -> dict[str, object]:
    """The keyword arguments of the mixer that `config` describes."""
    return {field.name: getattr(config, field.name) for field in fields(config)}


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig:
    """An encoder-decoder model; `encoder` and `decoder` hold one mixer configuration per layer."""

    dim: int
    ffn_dim: int
    source_heads: int
    encoder: tuple[MixerConfig, ...]
    decoder: tuple[MixerConfig, ...]
    source_vocab: int
    target_vocab: int
    # "none": three matrices; "decoder": target and output are one; "all": one matrix.
    share_embeddings: str = "none"
    dropout: float = 0.0
    input_dropout: float = 0.0
    activation_dropout: float = 0.0
    attention_dropout: float = 0.0
    pre_norm: bool = False
    pad: int = 1

    def __post_init__(self) -> None:
        for name in ("dim", "ffn_dim", "source_heads", "source_vocab", "target_vocab"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("encoder", "decoder"):
            if not getattr(self, name):
                raise ValueError(f"{name} must have at least one layer")
        for name in ("dropout", "input_dropout", "activation_dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        if self.dim % self.source_heads != 0:
            raise ValueError(f"source_heads={self.source_heads} does not divide dim={self.dim}")
        if not 0 <= self.pad < min(self.source_vocab, self.target_vocab):
            raise ValueError(f"pad must be an id of both vocabularies, got {self.pad}")
        if self.share_embeddings not in SHARE_EMBEDDINGS:
            raise ValueError(
                f"share_embeddings must be one of {', '.join(SHARE_EMBEDDINGS)}, "
                f"got {self.share_embeddings!r}"
            )
        if self.share_embeddings == "all" and self.source_vocab != self.target_vocab:
            raise ValueError(
                f"share_embeddings='all' needs one vocabulary, got "
                f"source_vocab={self.source_vocab} and target_vocab={self.target_vocab}"
            )
