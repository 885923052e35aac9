"""Every model of the paper, each as the change that made it from another one."""

from collections.abc import Sequence
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

# Self-attention has 6 + 6 layers; everything else one more encoder layer, to match its size.
ENCODER_KERNELS = (3, 7, 15, 31, 31, 31, 31)
DECODER_KERNELS = (3, 7, 15, 31, 31, 31)
LM_KERNELS = (15,) * 2 + (31,) * 4 + (63,) * 11

Convolution = ConvConfig | LightConvConfig | DynamicConvConfig
Models = dict[str, ModelConfig]


def stack(layer: Convolution, kernels: Sequence[int]) -> tuple[MixerConfig, ...]:
    """One such layer per kernel width."""
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
    """Every layer with the same changes."""
    return tuple(replace(layer, **changes) for layer in layers)


def change_both(model: Seq2SeqConfig, **changes: Any) -> Seq2SeqConfig:
    """Every layer of encoder and decoder with the same changes."""
    return replace(
        model,
        encoder=change(model.encoder, **changes),
        decoder=change(model.decoder, **changes),
    )


# --- WMT En-De, table 3: from self-attention to dynamic convolutions in small steps, without GLU

_ATTENTION = AttentionConfig(heads=16, dropout=0.1)

SELFATTENTION = Seq2SeqConfig(
    dim=1024,
    ffn_dim=4096,
    source_heads=16,
    encoder=(_ATTENTION,) * 6,
    decoder=(_ATTENTION,) * 6,
    source_vocab=32_768,
    target_vocab=32_768,
    share_embeddings="all",
    dropout=0.3,
    attention_dropout=0.1,
)
_WINDOWS = tuple(replace(_ATTENTION, window=window) for window in DECODER_KERNELS)
_AVERAGE = AverageConfig(ffn_dim=4096)

WINDOWED = replace(SELFATTENTION, encoder=_WINDOWS, decoder=_WINDOWS)
CNN = put(replace(SELFATTENTION, input_dropout=0.1), ConvConfig(kernel=3), (3,) * 7, (3,) * 6)
_DEPTHWISE = LightConvConfig(kernel=3, heads=1024, normalize="none")
DEPTHWISE = put(CNN, _DEPTHWISE, (3,) * 7, (3,) * 6)
INCREASING_KERNEL = put(DEPTHWISE, _DEPTHWISE)
DROPCONNECT = change_both(INCREASING_KERNEL, dropconnect=0.1)
SHARING = change_both(DROPCONNECT, heads=16)
SOFTMAX = change_both(SHARING, normalize="softmax")  # this is LightConv
DYNAMIC = put(SOFTMAX, DynamicConvConfig(kernel=3, heads=16, dropconnect=0.1))
AAN_DECODER = replace(SELFATTENTION, decoder=(_AVERAGE,) * 6)
AAN_BOTH = replace(AAN_DECODER, encoder=(_AVERAGE,) * 6)

ABLATION: Models = {
    "windowed": WINDOWED,
    "cnn": CNN,
    "depthwise": DEPTHWISE,
    "increasing-kernel": INCREASING_KERNEL,
    "dropconnect": DROPCONNECT,
    "sharing": SHARING,
    "softmax": SOFTMAX,
    "dynamicconv": DYNAMIC,
    "dynamicconv-nosoftmax": change_both(DYNAMIC, normalize="none"),
    "aan-decoder": AAN_DECODER,
    "aan-both": AAN_BOTH,
}

# --- Table 6: ten ways to normalise a kernel.  Table 7: small decoders

NORMALIZATIONS: Models = {
    name.replace("_", "-"): change_both(DYNAMIC, normalize=name)
    for name in (
        *("none", "softmax", "sigmoid", "tanh", "l1", "l2"),
        *("square", "abs", "abs_l1", "abs_l2"),
    )
}
DECODERS: Models = {
    str(len(kernels)): replace(
        DYNAMIC, decoder=stack(DynamicConvConfig(kernel=1, heads=16, dropconnect=0.1), kernels)
    )
    for kernels in ((31,), (3, 7, 15), DECODER_KERNELS)
}


# --- Tables 1, 2, 4 and 5: one model per mixer for each task


def family(
    attention: Seq2SeqConfig,
    *,
    dropconnect: float = 0.1,
    input_dropout: float = 0.1,
    glu: bool,
    encoder: Sequence[int] = ENCODER_KERNELS,
    decoder: Sequence[int] = DECODER_KERNELS,
) -> Models:
    """A self-attention model and the two that hold convolutions in its place.

    With `glu` DynamicConv is gated on both sides and LightConv in the encoder: so says the count.
    """
    heads = attention.source_heads
    frame = replace(attention, input_dropout=input_dropout)
    light = LightConvConfig(kernel=3, heads=heads, dropconnect=dropconnect)
    dynamic = DynamicConvConfig(kernel=3, heads=heads, dropconnect=dropconnect, glu=glu)
    lightconv = put(frame, light, encoder, decoder)
    return {
        "selfattention": attention,
        "lightconv": replace(lightconv, encoder=change(lightconv.encoder, glu=glu)),
        "dynamicconv": put(frame, dynamic, encoder, decoder),
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


def resize(model: Seq2SeqConfig, **changes: Any) -> Seq2SeqConfig:
    """A self-attention model of other sizes; its layers get the heads of `source_heads`."""
    sized = replace(model, **changes)
    return change_both(sized, heads=sized.source_heads)


IWSLT_SELFATTENTION = resize(
    SELFATTENTION,
    dim=512,
    ffn_dim=1024,
    source_heads=4,
    source_vocab=8848,
    target_vocab=6632,
    share_embeddings="none",
)
EN_FR_SELFATTENTION = replace(SELFATTENTION, source_vocab=40_000, target_vocab=40_000, dropout=0.1)
ZH_EN_SELFATTENTION = change_both(
    replace(
        SELFATTENTION,
        source_vocab=37_900,
        target_vocab=37_900,
        share_embeddings="none",
        dropout=0.25,
        attention_dropout=0.2,
    ),
    dropout=0.2,
)
SUMMARY_SELFATTENTION = resize(
    SELFATTENTION,
    dim=512,
    ffn_dim=2048,
    source_heads=8,
    source_vocab=30_000,
    target_vocab=30_000,
    share_embeddings="none",
)
LM_SELFATTENTION = LanguageModelConfig(
    dim=1024,
    ffn_dim=4096,
    layers=(_ATTENTION,) * 16,
    vocab=793_471,
    adaptive=AdaptiveConfig(cutoffs=(60_000, 160_000)),
    dropout=0.1,
)

MODELS: dict[str, Models] = {
    "iwslt-de-en": family(IWSLT_SELFATTENTION, glu=False, input_dropout=0.0),
    "wmt-en-de": family(SELFATTENTION, glu=True),
    "wmt-en-fr": family(EN_FR_SELFATTENTION, glu=True),
    "wmt-zh-en": family(ZH_EN_SELFATTENTION, glu=True, dropconnect=0.2),
    "billion-word": lm_family(LM_SELFATTENTION, LM_KERNELS),
    "cnn-dailymail": family(SUMMARY_SELFATTENTION, glu=False),
}
