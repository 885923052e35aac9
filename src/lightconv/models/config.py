"""Model configurations: one mixer configuration per layer, readable without torch.

The fields of a mixer's configuration are the keyword arguments of its constructor.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal, get_args

from lightconv.config import check_counts, check_shares

ShareEmbeddings = Literal["none", "decoder", "all"]
Normalize = Literal[
    "none", "softmax", "sigmoid", "tanh", "l1", "l2", "square", "abs", "abs_l1", "abs_l2"
]

# Far above any model: numbers of a stranger's file become shapes and memory.
REACHES = ("kernel", "window", "short", "dilation")
WIDEST, DEEPEST, MOST_WORDS, MOST_BANDS, LONGEST_KERNEL = 1 << 20, 1000, 1 << 31, 16, 1 << 12
FARTHEST = 1 << 16  # reach of a kernel and its dilation


class _Checked:
    """Checks the fields that configurations of mixers share."""

    def __post_init__(self) -> None:
        present = [name for name, value in vars(self).items() if value is not None]
        for names, most in ((("heads", "ffn_dim", "rank"), WIDEST), (REACHES, LONGEST_KERNEL)):
            check_counts(self, *(name for name in present if name in names), most=most)
        check_shares(self, *(name for name in present if name in ("dropout", "dropconnect")))
        if self.held > FARTHEST:
            raise ValueError(f"kernel and dilation reach {self.held} positions, at most {FARTHEST}")

    @property
    def held(self) -> int:
        """Positions of the past that a step needs; 0 means all of them. Hyena keeps three more."""
        has = {"kernel": 0, "dilation": 1, "short": 0, "window": 1} | vars(self)
        return (has["kernel"] * has["dilation"] + 3 * has["short"]) or has["window"] or 0


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(_Checked):
    """Self-attention; `window` None sees everything."""

    kind: ClassVar[str] = "attention"
    heads: int
    window: int | None = None
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ConvConfig(_Checked):
    """A full (non-separable) convolution without projections."""

    kind: ClassVar[str] = "conv"
    kernel: int


@dataclass(frozen=True, kw_only=True)
class _ConvolutionConfig(_Checked):
    kernel: int
    heads: int
    glu: bool = False
    normalize: Normalize = "softmax"
    dropconnect: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LightConvConfig(_ConvolutionConfig):
    """Lightweight convolution; `heads` = dim and `normalize` = "none" is a depthwise one."""

    kind: ClassVar[str] = "lightconv"


@dataclass(frozen=True, kw_only=True)
class DynamicConvConfig(_ConvolutionConfig):
    """Dynamic convolution: the kernel is predicted from the current position."""

    kind: ClassVar[str] = "dynamicconv"


@dataclass(frozen=True, kw_only=True)
class AverageConfig(_Checked):
    """Average attention: a running mean, a feed-forward layer and a gate."""

    kind: ClassVar[str] = "average"
    ffn_dim: int
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LowRankConvConfig(_Checked):
    """Dynamic convolution per channel from a generator of that rank; None is dim / 8."""

    kind: ClassVar[str] = "lowrankconv"
    kernel: int = 4
    rank: int | None = None
    dilation: int = 1


@dataclass(frozen=True, kw_only=True)
class ShortConvConfig(_Checked):
    """Gated short convolution per channel."""

    kind: ClassVar[str] = "shortconv"
    kernel: int = 3
    dilation: int = 1


@dataclass(frozen=True, kw_only=True)
class HyenaConfig(_Checked):
    """Gated long convolution per group of channels, behind a short one."""

    kind: ClassVar[str] = "hyena"
    kernel: int = 128
    heads: int = 1
    short: int = 3


_Convolutions = LightConvConfig | DynamicConvConfig | LowRankConvConfig
MixerConfig = (
    AttentionConfig | ConvConfig | _Convolutions | AverageConfig | ShortConvConfig | HyenaConfig
)


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
        rising = all(a < b for a, b in pairwise((0, *self.cutoffs)))
        if not rising or not 1 <= len(self.cutoffs) <= MOST_BANDS:
            raise ValueError(f"cutoffs must rise from above 0, got {list(self.cutoffs)}")
        check_counts(self, "factor", most=WIDEST)
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
        check_counts(self, "source_heads", "source_vocab", "target_vocab", most=MOST_WORDS)
        check_shares(self, "attention_dropout")
        _check_model(self)
        if self.dim % self.source_heads != 0:
            raise ValueError(f"source_heads={self.source_heads} does not divide dim={self.dim}")
        if self.share_embeddings not in get_args(ShareEmbeddings):
            known = ", ".join(get_args(ShareEmbeddings))
            raise ValueError(f"share_embeddings={self.share_embeddings!r} must be one of {known}")
        if self.share_embeddings == "all" and self.source_vocab != self.target_vocab:
            raise ValueError(
                f"share_embeddings='all' needs one vocabulary, got "
                f"source_vocab={self.source_vocab} and target_vocab={self.target_vocab}"
            )

    @property
    def vocab_sizes(self) -> tuple[int, int]:
        return self.source_vocab, self.target_vocab

    @property
    def stacks(self) -> dict[str, tuple[MixerConfig, ...]]:
        return {"encoder": self.encoder, "decoder": self.decoder}


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
        check_counts(self, "vocab", most=MOST_WORDS)
        _check_model(self)

    @property
    def vocab_sizes(self) -> tuple[int, int]:
        return self.vocab, self.vocab

    @property
    def stacks(self) -> dict[str, tuple[MixerConfig, ...]]:
        return {"layers": self.layers}


ModelConfig = Seq2SeqConfig | LanguageModelConfig


def _check_model(config: ModelConfig) -> None:
    check_counts(config, "dim", "ffn_dim", most=WIDEST)
    check_shares(config, "dropout", "input_dropout", "activation_dropout")
    for name, layers in config.stacks.items():
        if not 1 <= len(layers) <= DEEPEST:
            raise ValueError(f"{name} must have 1 to {DEEPEST} layers, got {len(layers)}")
        for place, layer in enumerate(layers):
            heads = getattr(layer, "heads", 1)
            if config.dim % heads != 0:
                raise ValueError(f"{name}.{place}.heads={heads} does not divide dim={config.dim}")
    vocab = min(config.vocab_sizes)
    if not 0 <= config.pad < vocab:
        raise ValueError(f"pad={config.pad} must be an id below {vocab}, the size of a vocabulary")
    if config.adaptive is None:
        return
    cutoffs, factor = config.adaptive.cutoffs, config.adaptive.factor
    if cutoffs[-1] >= vocab:
        raise ValueError(
            f"adaptive.cutoffs={list(cutoffs)} must stay below the vocabulary of {vocab}"
        )
    if config.dim // factor ** len(cutoffs) < 1:
        last = f"band {len(cutoffs)} of dim={config.dim}"
        raise ValueError(f"adaptive.factor={factor} leaves no width for {last}")
