"""Model configurations: one mixer configuration per layer, readable without torch.

The fields of a mixer's configuration are the keyword arguments of its constructor.
"""

from dataclasses import dataclass, fields
from itertools import pairwise
from typing import ClassVar, Literal, get_args

from lightconv.config import check_counts, check_shares

ShareEmbeddings = Literal["none", "decoder", "all"]
Normalize = Literal[
    "none", "softmax", "sigmoid", "tanh", "l1", "l2", "square", "abs", "abs_l1", "abs_l2"
]


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """Self-attention; `window` None sees everything."""

    kind: ClassVar[str] = "attention"
    heads: int
    window: int | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_counts(self, "heads", *(() if self.window is None else ("window",)))
        check_shares(self, "dropout")


@dataclass(frozen=True, kw_only=True)
class ConvConfig:
    """A full (non-separable) convolution without projections."""

    kind: ClassVar[str] = "conv"
    kernel: int

    def __post_init__(self) -> None:
        check_counts(self, "kernel")


@dataclass(frozen=True, kw_only=True)
class _ConvolutionConfig:
    kernel: int
    heads: int
    glu: bool = False
    normalize: Normalize = "softmax"
    dropconnect: float = 0.0

    def __post_init__(self) -> None:
        check_counts(self, "kernel", "heads")
        check_shares(self, "dropconnect")


@dataclass(frozen=True, kw_only=True)
class LightConvConfig(_ConvolutionConfig):
    """Lightweight convolution; `heads` = dim and `normalize` = "none" is a depthwise one."""

    kind: ClassVar[str] = "lightconv"


@dataclass(frozen=True, kw_only=True)
class DynamicConvConfig(_ConvolutionConfig):
    """Dynamic convolution: the kernel is predicted from the current position."""

    kind: ClassVar[str] = "dynamicconv"


@dataclass(frozen=True, kw_only=True)
class AverageConfig:
    """Average attention: a running mean, a feed-forward layer and a gate."""

    kind: ClassVar[str] = "average"
    ffn_dim: int
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_counts(self, "ffn_dim")
        check_shares(self, "dropout")


MixerConfig = AttentionConfig | ConvConfig | LightConvConfig | DynamicConvConfig | AverageConfig

MIXER_CONFIGS: dict[str, type[MixerConfig]] = {
    config.kind: config
    for config in (AttentionConfig, ConvConfig, LightConvConfig, DynamicConvConfig, AverageConfig)
}


def mixer_options(config: MixerConfig) -> dict[str, object]:
    """Keyword arguments of the mixer."""
    return {field.name: getattr(config, field.name) for field in fields(config)}


@dataclass(frozen=True, kw_only=True)
class AdaptiveConfig:
    """A large vocabulary, in order of frequency, cut into bands of falling width.

    Band i holds the words from cutoff i-1 to cutoff i as vectors of width dim / factor ** i.
    """

    cutoffs: tuple[int, ...]
    factor: int = 4
    # Input and output share the matrix, and the projection, of each band.
    tie_words: bool = True
    tie_projections: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if not self.cutoffs or any(a >= b for a, b in pairwise((0, *self.cutoffs))):
            raise ValueError(f"cutoffs must rise from above 0, got {list(self.cutoffs)}")
        if self.factor < 1:
            raise ValueError(f"factor={self.factor} must be at least 1")
        if self.tie_projections and not self.tie_words:
            raise ValueError("tie_projections=true needs tie_words=true")
        check_shares(self, "dropout")


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig:
    """An encoder-decoder model; `encoder` and `decoder` hold one mixer configuration per layer."""

    kind: ClassVar[str] = "seq2seq"
    dim: int
    ffn_dim: int
    source_heads: int
    encoder: tuple[MixerConfig, ...]
    decoder: tuple[MixerConfig, ...]
    source_vocab: int
    target_vocab: int
    # "none": three matrices; "decoder": target and output are one; "all": one matrix.
    share_embeddings: ShareEmbeddings = "none"
    adaptive: AdaptiveConfig | None = None
    dropout: float = 0.0
    input_dropout: float = 0.0
    activation_dropout: float = 0.0
    attention_dropout: float = 0.0
    pre_norm: bool = False
    # A norm after the last of the pre-norm layers.
    final_norm: bool = True
    pad: int = 1

    def __post_init__(self) -> None:
        check_counts(self, "dim", "ffn_dim", "source_heads", "source_vocab", "target_vocab")
        check_shares(self, "dropout", "input_dropout", "activation_dropout", "attention_dropout")
        _check_layers("encoder", self.encoder, self.dim)
        _check_layers("decoder", self.decoder, self.dim)
        if self.dim % self.source_heads != 0:
            raise ValueError(f"source_heads={self.source_heads} does not divide dim={self.dim}")
        if not 0 <= self.pad < min(self.source_vocab, self.target_vocab):
            raise ValueError(f"pad={self.pad} must be an id of both vocabularies")
        if self.share_embeddings not in get_args(ShareEmbeddings):
            raise ValueError(
                f"share_embeddings={self.share_embeddings!r} must be one of "
                f"{', '.join(get_args(ShareEmbeddings))}"
            )
        if self.share_embeddings == "all" and self.source_vocab != self.target_vocab:
            raise ValueError(
                f"share_embeddings='all' needs one vocabulary, got "
                f"source_vocab={self.source_vocab} and target_vocab={self.target_vocab}"
            )
        _check_adaptive(self.adaptive, self.dim, min(self.source_vocab, self.target_vocab))

    @property
    def vocab_sizes(self) -> tuple[int, int]:
        """Number of ids of source and target."""
        return self.source_vocab, self.target_vocab

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.encoder) + len(self.decoder)


@dataclass(frozen=True, kw_only=True)
class LanguageModelConfig:
    """A stack of causal layers; `layers` holds one mixer configuration per layer."""

    kind: ClassVar[str] = "language_model"
    dim: int
    ffn_dim: int
    layers: tuple[MixerConfig, ...]
    vocab: int
    # The output shares the matrix of the embedding; `adaptive` decides for each band instead.
    tie_output: bool = True
    adaptive: AdaptiveConfig | None = None
    dropout: float = 0.0
    input_dropout: float = 0.0
    activation_dropout: float = 0.0
    pre_norm: bool = True
    final_norm: bool = False
    pad: int = 1

    def __post_init__(self) -> None:
        check_counts(self, "dim", "ffn_dim", "vocab")
        check_shares(self, "dropout", "input_dropout", "activation_dropout")
        _check_layers("layers", self.layers, self.dim)
        if not 0 <= self.pad < self.vocab:
            raise ValueError(f"pad={self.pad} must be an id below vocab={self.vocab}")
        _check_adaptive(self.adaptive, self.dim, self.vocab)

    @property
    def vocab_sizes(self) -> tuple[int, int]:
        """Number of ids of source and target, which are one vocabulary here."""
        return self.vocab, self.vocab

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.layers)


ModelConfig = Seq2SeqConfig | LanguageModelConfig


def _check_layers(name: str, layers: tuple[MixerConfig, ...], dim: int) -> None:
    if not layers:
        raise ValueError(f"{name} must have at least one layer")
    for place, layer in enumerate(layers):
        heads = getattr(layer, "heads", 1)
        if dim % heads != 0:
            raise ValueError(f"{name}.{place}.heads={heads} does not divide dim={dim}")


def _check_adaptive(adaptive: AdaptiveConfig | None, dim: int, vocab: int) -> None:
    if adaptive is None:
        return
    if adaptive.cutoffs[-1] >= vocab:
        raise ValueError(
            f"adaptive.cutoffs={list(adaptive.cutoffs)} must stay below the vocabulary of {vocab}"
        )
    if dim // adaptive.factor ** len(adaptive.cutoffs) < 1:
        raise ValueError(
            f"adaptive.factor={adaptive.factor} leaves no width for band "
            f"{len(adaptive.cutoffs)} of dim={dim}"
        )
