"""Models and rows of the paper: one entry per row, which begins with the row as it is printed.

The rows of tables 3, 6 and 7 have models of their own, each a change of another one; other rows
have the models of their tasks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lightconv.models.config import (
    AdaptiveConfig,
    AttentionConfig,
    AverageConfig,
    ConvConfig,
    DynamicConvConfig,
    LanguageModelConfig,
    LightConvConfig,
    MixerConfig,
    ModelConfig,
    Seq2SeqConfig,
)
from lightconv.paper.tasks import ARCHITECTURE, FITTED, each_layer, ours

NONE = "-"
# Self-attention has 6 + 6 layers; other mixers have one more encoder layer, to match its size.
ENCODER_KERNELS = (3, 7, 15, 31, 31, 31, 31)
DECODER_KERNELS = (3, 7, 15, 31, 31, 31)
LM_KERNELS = (15,) * 2 + (31,) * 4 + (63,) * 11

Convolution = ConvConfig | LightConvConfig | DynamicConvConfig
Models = dict[str, ModelConfig]


def stack(layer: Convolution, kernels: Sequence[int]) -> tuple[MixerConfig, ...]:
    return tuple(replace(layer, kernel=kernel) for kernel in kernels)


def put(
    model: Seq2SeqConfig,
    layer: Convolution,
    encoder: Sequence[int] = ENCODER_KERNELS,
    decoder: Sequence[int] = DECODER_KERNELS,
) -> Seq2SeqConfig:
    """`model` with convolutions of these widths in place of its mixers."""
    return replace(model, encoder=stack(layer, encoder), decoder=stack(layer, decoder))


def change(layers: tuple[MixerConfig, ...], **changes: Any) -> tuple[MixerConfig, ...]:
    return tuple(replace(layer, **changes) for layer in layers)


def change_both(model: Seq2SeqConfig, **changes: Any) -> Seq2SeqConfig:
    encoder, decoder = change(model.encoder, **changes), change(model.decoder, **changes)
    return replace(model, encoder=encoder, decoder=decoder)


def family(
    attention: Seq2SeqConfig, *, glu: bool, dropconnect: float = 0.1, input_dropout: float = 0.1
) -> Models:
    """A self-attention model, and the same with lightweight and with dynamic convolutions.

    glu  gates DynamicConv on both sides and LightConv in the encoder, as the paper's counts imply
    """
    heads = attention.source_heads
    frame = replace(attention, input_dropout=input_dropout)
    light = LightConvConfig(kernel=3, heads=heads, dropconnect=dropconnect)
    dynamic = DynamicConvConfig(kernel=3, heads=heads, dropconnect=dropconnect, glu=glu)
    lightconv = put(frame, light)
    return {
        "selfattention": attention,
        "lightconv": replace(lightconv, encoder=change(lightconv.encoder, glu=glu)),
        "dynamicconv": put(frame, dynamic),
    }


def lm_family(attention: LanguageModelConfig, kernels: Sequence[int]) -> Models:
    """The same for language models, where both convolutions are gated."""
    heads = attention.dim // 64
    frame = replace(attention, input_dropout=0.1)
    light = LightConvConfig(kernel=3, heads=heads, dropconnect=0.1, glu=True)
    dynamic = DynamicConvConfig(kernel=3, heads=heads, dropconnect=0.1, glu=True)
    return {
        "selfattention": attention,
        "lightconv": replace(frame, layers=stack(light, kernels)),
        "dynamicconv": replace(frame, layers=stack(dynamic, kernels)),
    }


class Row:
    """A row of a table; its small twin is the recipe NAME-small.

    printed  text | number of parameters | a figure for each column of the table
    model    of the recipe, if it is not one of its task; `about` and `sources` are the recipe's
    cited    the work of others, with the model of the recipe
    """

    def __init__(
        self,
        printed: str,
        recipe: str,
        model: Seq2SeqConfig | None = None,
        about: str = "",
        sources: Mapping[str, str] | None = None,
    ) -> None:
        self.printed, self.recipe, self.model, self.about = printed, recipe, model, about
        self.sources = sources or {}
        self.text, self.params, *self.figures = printed.split(" | ")
        self.cited = "et al." in self.text


def agrees(printed: str, exact: int) -> bool:
    """True if the printed "202M" is the exact number cut or rounded; the paper does both."""
    return printed in (f"{exact // 10**6}M", f"{round(exact / 1e6)}M")


# --- Models of the tasks

ATTENTION = AttentionConfig(heads=16, dropout=0.1)
EN_DE = Seq2SeqConfig(
    dim=1024,
    ffn_dim=4096,
    source_heads=16,
    encoder=(ATTENTION,) * 6,
    decoder=(ATTENTION,) * 6,
    source_vocab=32_768,
    target_vocab=32_768,
    share_embeddings="all",
    dropout=0.3,
    attention_dropout=0.1,
)
IWSLT = replace(
    change_both(EN_DE, heads=4),
    dim=512,
    ffn_dim=1024,
    source_heads=4,
    source_vocab=8848,
    target_vocab=6632,
    share_embeddings="none",
)
EN_FR = replace(EN_DE, source_vocab=40_000, target_vocab=40_000, dropout=0.1)
ZH_EN = replace(
    change_both(EN_DE, dropout=0.2),
    source_vocab=37_900,
    target_vocab=37_900,
    share_embeddings="none",
    dropout=0.25,
    attention_dropout=0.2,
)
CNN_DAILYMAIL = replace(
    change_both(EN_DE, heads=8),
    dim=512,
    ffn_dim=2048,
    source_heads=8,
    source_vocab=30_000,
    target_vocab=30_000,
    share_embeddings="none",
)
BILLION_WORD = LanguageModelConfig(
    dim=1024,
    ffn_dim=4096,
    layers=(ATTENTION,) * 16,
    vocab=793_471,
    adaptive=AdaptiveConfig(cutoffs=(60_000, 160_000)),
    dropout=0.1,
)

MODELS: dict[str, Models] = {
    "iwslt-de-en": family(IWSLT, glu=False, input_dropout=0.0),
    "wmt-en-de": family(EN_DE, glu=True),
    "wmt-en-fr": family(EN_FR, glu=True),
    "wmt-zh-en": family(ZH_EN, glu=True, dropconnect=0.2),
    "billion-word": lm_family(BILLION_WORD, LM_KERNELS),
    "cnn-dailymail": family(CNN_DAILYMAIL, glu=False),
}

# --- Tables 1, 2, 4 and 5

MT1 = (
    Row("Self-attention, Ott et al. (2018), En-De | 210M | 29.3", "wmt-en-de-selfattention"),
    Row("LightConv, En-De | 202M | 28.9", "wmt-en-de-lightconv"),
    Row("DynamicConv, En-De | 213M | 29.7", "wmt-en-de-dynamicconv"),
    Row("Self-attention, Ott et al. (2018), En-Fr | - | 43.2", "wmt-en-fr-selfattention"),
    Row("LightConv, En-Fr | - | 43.1", "wmt-en-fr-lightconv"),
    Row("DynamicConv, En-Fr | - | 43.2", "wmt-en-fr-dynamicconv"),
)
MT2 = (
    Row("Self-attention baseline, IWSLT | - | 34.4", "iwslt-de-en-selfattention"),
    Row("LightConv, IWSLT | - | 34.8", "iwslt-de-en-lightconv"),
    Row("DynamicConv, IWSLT | - | 35.2", "iwslt-de-en-dynamicconv"),
    Row("Self-attention baseline, Zh-En | 292M | 23.8", "wmt-zh-en-selfattention"),
    Row("LightConv, Zh-En | 285M | 24.3", "wmt-zh-en-lightconv"),
    Row("DynamicConv, Zh-En | 296M | 24.4", "wmt-zh-en-dynamicconv"),
)
LM = (
    Row("Self-attention baseline | 331M | 26.67 | 26.73", "billion-word-selfattention"),
    Row("DynamicConv | 339M | 26.60 | 26.67", "billion-word-dynamicconv"),
)
SUMMARIZATION = (
    Row("Self-attention baseline | 90M | 39.26 | 15.98 | 36.35", "cnn-dailymail-selfattention"),
    Row("LightConv | 86M | 39.52 | 15.97 | 36.51", "cnn-dailymail-lightconv"),
    Row("DynamicConv | 87M | 39.84 | 16.25 | 36.73", "cnn-dailymail-dynamicconv"),
)

# --- Table 3: from self-attention to dynamic convolutions in small steps, without GLU

_WINDOWS = tuple(replace(ATTENTION, window=window) for window in DECODER_KERNELS)
_AVERAGE = AverageConfig(ffn_dim=4096)
_DEPTHWISE = LightConvConfig(kernel=3, heads=1024, normalize="none")
_DYNAMIC = DynamicConvConfig(kernel=3, heads=16, dropconnect=0.1)

CNN = put(replace(EN_DE, input_dropout=0.1), ConvConfig(kernel=3), (3,) * 7, (3,) * 6)
DEPTHWISE = put(CNN, _DEPTHWISE, (3,) * 7, (3,) * 6)
INCREASING_KERNEL = put(DEPTHWISE, _DEPTHWISE)
DROPCONNECT = change_both(INCREASING_KERNEL, dropconnect=0.1)
SHARING = change_both(DROPCONNECT, heads=16)
SOFTMAX = change_both(SHARING, normalize="softmax")  # LightConv
DYNAMIC = put(SOFTMAX, _DYNAMIC)
AAN_DECODER = replace(EN_DE, decoder=(_AVERAGE,) * 6)

NO_INPUT_DROPOUT = {"model.input_dropout": f"{ARCHITECTURE}: its Transformer has none"}
_BEFORE_LIGHTCONV = {"model.input_dropout": ours("as for LightConv")}
_AVERAGES = {
    **each_layer("ffn_dim", FITTED),
    "model.decoder.*.dropout": ours("none"),
    "model.input_dropout": ours("none, as for self-attention"),
}

ABLATION = (
    Row(
        "Self-attention baseline (k=inf, H=16) | 210M | 26.9 ± 0.1 | 52.1 ± 0.1",
        "wmt-en-de-selfattention",
    ),
    Row(
        "Self-attention baseline (k=3,7,15,31x3, H=16) | 210M | 26.9 ± 0.3 | 54.9 ± 0.2",
        "wmt-en-de-ablation-windowed",
        replace(EN_DE, encoder=_WINDOWS, decoder=_WINDOWS),
        "self-attention in windows of 3, 7, 15, 31x3",
        NO_INPUT_DROPOUT,
    ),
    Row(
        "CNN (k=3) | 208M | 25.9 ± 0.2 | 68.1 ± 0.3",
        "wmt-en-de-ablation-cnn",
        CNN,
        "full convolutions k=3, no projections",
        _BEFORE_LIGHTCONV,
    ),
    Row(
        "CNN Depthwise (k=3, H=1024) | 195M | 26.1 ± 0.2 | 67.1 ± 1.0",
        "wmt-en-de-ablation-depthwise",
        DEPTHWISE,
        "CNN depthwise: k=3, H=1024, with projections",
        _BEFORE_LIGHTCONV,
    ),
    Row(
        "+ Increasing kernel (k=3,7,15,31x4, H=1024) | 195M | 26.4 ± 0.2 | 63.3 ± 0.1",
        "wmt-en-de-ablation-increasing-kernel",
        INCREASING_KERNEL,
        "+ increasing kernel: k=3, 7, 15, 31x4",
        _BEFORE_LIGHTCONV,
    ),
    Row(
        "+ DropConnect (H=1024) | 195M | 26.5 ± 0.2 | 63.3 ± 0.1",
        "wmt-en-de-ablation-dropconnect",
        DROPCONNECT,
        "+ DropConnect",
        _BEFORE_LIGHTCONV,
    ),
    Row(
        "+ Weight sharing (H=16) | 195M | 26.5 ± 0.1 | 63.7 ± 0.4",
        "wmt-en-de-ablation-sharing",
        SHARING,
        "+ weight sharing: H=16",
        _BEFORE_LIGHTCONV,
    ),
    Row(
        "+ Softmax-normalized weights [LightConv] (H=16) | 195M | 26.6 ± 0.2 | 63.6 ± 0.1",
        "wmt-en-de-ablation-softmax",
        SOFTMAX,
        "+ softmax-normalised weights: LightConv without GLU",
    ),
    Row(
        "+ Dynamic weights [DynamicConv] (H=16) | 200M | 26.9 ± 0.2 | 62.6 ± 0.4",
        "wmt-en-de-ablation-dynamicconv",
        DYNAMIC,
        "+ dynamic weights: DynamicConv without GLU",
    ),
    Row(
        "DynamicConv (H=16) w/o softmax-normalization | 200M | diverges | -",
        "wmt-en-de-ablation-dynamicconv-nosoftmax",
        change_both(DYNAMIC, normalize="none"),
        "DynamicConv without softmax (diverged in the paper)",
    ),
    Row(
        "AAN decoder + self-attn encoder | 260M | 26.8 ± 0.1 | 59.5 ± 0.1",
        "wmt-en-de-ablation-aan-decoder",
        AAN_DECODER,
        "averaged attention in the decoder, self-attention in the encoder",
        _AVERAGES,
    ),
    Row(
        "AAN decoder + AAN encoder | 310M | 22.5 ± 0.1 | 59.2 ± 2.1",
        "wmt-en-de-ablation-aan-both",
        replace(AAN_DECODER, encoder=(_AVERAGE,) * 6),
        "averaged attention in encoder and decoder",
        {**_AVERAGES, "model.encoder.*.dropout": ours("none")},
    ),
)

# --- Table 6: ten ways to normalise a kernel

NORMALIZATION = tuple(
    Row(
        printed,
        f"wmt-en-de-normalize-{name.replace('_', '-')}",
        change_both(DYNAMIC, normalize=name),
        f"DynamicConv without GLU, kernels {about}",
    )
    for name, printed, about in (
        ("none", "W (no normalization) | - | diverges", "not normalised (diverged in the paper)"),
        ("softmax", "softmax(W) | - | 26.9 ± 0.2", "through a softmax"),
        ("sigmoid", "sigmoid(W) | - | 26.6 ± 0.3", "through a sigmoid"),
        ("tanh", "tanh(W) | - | 25.6 ± 0.2", "through tanh"),
        ("l1", "W / L1 norm | - | diverges", "divided by their L1 norm (diverged in the paper)"),
        ("l2", "W / L2 norm | - | 26.8 ± 0.2", "divided by their L2 norm"),
        ("square", "power(W, 2) | - | diverges", "squared (diverged in the paper)"),
        ("abs", "abs(W) | - | diverges", "as absolute values (diverged in the paper)"),
        (
            "abs_l1",
            "abs(W) / L1 norm | - | diverges",
            "as absolute values divided by their L1 norm (diverged in the paper)",
        ),
        (
            "abs_l2",
            "abs(W) / L2 norm | - | 26.7 ± 0.2",
            "as absolute values divided by their L2 norm",
        ),
    )
)

# --- Table 7: small decoders

DECODERS = tuple(
    Row(
        f"DynamicConv ({printed}",
        f"wmt-en-de-decoder-{len(kernels)}",
        replace(DYNAMIC, decoder=stack(_DYNAMIC, kernels)),
        f"DynamicConv without GLU, 7+{len(kernels)} layers, greedy search",
    )
    for kernels, printed in (
        ((31,), "1-decoder layer (k=31)) | 124M | 26.1 | 15.2 | 423.0"),
        ((3, 7, 15), "3-decoder layers (k=3,7,15)) | 153M | 27.7 | 7.2 | 202.3"),
        (DECODER_KERNELS, "6-decoder layers (k=3,7,15,31,31,31)) | 200M | 28.5 | 3.9 | 110.9"),
    )
)
