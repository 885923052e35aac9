"""Models of the paper's tasks, and the changes that make one model from another."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lightconv.models.config import (
    AdaptiveConfig,
    AttentionConfig,
    ConvConfig,
    DynamicConvConfig,
    LanguageModelConfig,
    LightConvConfig,
    MixerConfig,
    ModelConfig,
    Seq2SeqConfig,
)

# Self-attention has 6 + 6 layers; other mixers have one more encoder layer, to match its size.
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
    encoder, decoder = change(model.encoder, **changes), change(model.decoder, **changes)
    return replace(model, encoder=encoder, decoder=decoder)


def resize(model: Seq2SeqConfig, **changes: Any) -> Seq2SeqConfig:
    """A self-attention model of other sizes; its layers get the heads of `source_heads`."""
    sized = replace(model, **changes)
    return change_both(sized, heads=sized.source_heads)


def family(
    attention: Seq2SeqConfig,
    *,
    dropconnect: float = 0.1,
    input_dropout: float = 0.1,
    glu: bool,
    encoder: Sequence[int] = ENCODER_KERNELS,
    decoder: Sequence[int] = DECODER_KERNELS,
) -> Models:
    """A self-attention model, and the same with lightweight and with dynamic convolutions.

    glu  gates DynamicConv on both sides and LightConv in the encoder, as the paper's counts imply
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
IWSLT = resize(
    EN_DE,
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
CNN_DAILYMAIL = resize(
    EN_DE,
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
