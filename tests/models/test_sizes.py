"""The paper prints numbers of parameters; here they are exact."""

import pytest
import torch

from lightconv.models import (
    AdaptiveConfig,
    AttentionConfig,
    AverageConfig,
    ConvConfig,
    DynamicConvConfig,
    LanguageModel,
    LanguageModelConfig,
    LightConvConfig,
    MixerConfig,
    Seq2Seq,
    Seq2SeqConfig,
)

ENCODER_KERNELS = (3, 7, 15, 31, 31, 31, 31)
DECODER_KERNELS = ENCODER_KERNELS[:6]
TEXT_KERNELS = (15,) * 2 + (31,) * 4 + (63,) * 11


def convolutions(
    config: type[LightConvConfig] | type[DynamicConvConfig],
    kernels: tuple[int, ...],
    *,
    heads: int,
    glu: bool = False,
) -> tuple[MixerConfig, ...]:
    return tuple(config(kernel=kernel, heads=heads, glu=glu) for kernel in kernels)


def iwslt(encoder: tuple[MixerConfig, ...], decoder: tuple[MixerConfig, ...]) -> Seq2SeqConfig:
    return Seq2SeqConfig(
        dim=512,
        ffn_dim=1024,
        source_heads=4,
        encoder=encoder,
        decoder=decoder,
        source_vocab=8848,
        target_vocab=6632,
    )


def wmt(encoder: tuple[MixerConfig, ...], decoder: tuple[MixerConfig, ...]) -> Seq2SeqConfig:
    return Seq2SeqConfig(
        dim=1024,
        ffn_dim=4096,
        source_heads=16,
        encoder=encoder,
        decoder=decoder,
        source_vocab=32768,
        target_vocab=32768,
        share_embeddings="all",
    )


def billion_words(layers: tuple[MixerConfig, ...]) -> LanguageModelConfig:
    return LanguageModelConfig(
        dim=1024,
        ffn_dim=4096,
        layers=layers,
        vocab=793_471,
        adaptive=AdaptiveConfig(cutoffs=(60_000, 160_000)),
    )


SIZES: dict[str, tuple[Seq2SeqConfig | LanguageModelConfig, int]] = {
    "iwslt-attention": (
        iwslt((AttentionConfig(heads=4),) * 6, (AttentionConfig(heads=4),) * 6),
        42_864_640,
    ),
    "iwslt-lightconv": (
        iwslt(
            convolutions(LightConvConfig, ENCODER_KERNELS, heads=4),
            convolutions(LightConvConfig, DECODER_KERNELS, heads=4),
        ),
        38_139_436,
    ),
    "iwslt-dynamicconv": (
        iwslt(
            convolutions(DynamicConvConfig, ENCODER_KERNELS, heads=4),
            convolutions(DynamicConvConfig, DECODER_KERNELS, heads=4),
        ),
        38_685_184,
    ),
    "wmt-attention": (
        wmt((AttentionConfig(heads=16),) * 6, (AttentionConfig(heads=16),) * 6),
        209_911_808,
    ),
    "wmt-lightconv": (
        wmt(
            convolutions(LightConvConfig, ENCODER_KERNELS, heads=16, glu=True),
            convolutions(LightConvConfig, DECODER_KERNELS, heads=16),
        ),
        202_569_904,
    ),
    "wmt-dynamicconv": (
        wmt(
            convolutions(DynamicConvConfig, ENCODER_KERNELS, heads=16, glu=True),
            convolutions(DynamicConvConfig, DECODER_KERNELS, heads=16, glu=True),
        ),
        213_237_760,
    ),
    "wmt-conv": (wmt((ConvConfig(kernel=3),) * 7, (ConvConfig(kernel=3),) * 6), 208_823_296),
    "wmt-average": (
        wmt((AverageConfig(ffn_dim=4096),) * 6, (AverageConfig(ffn_dim=4096),) * 6),
        310_611_968,
    ),
    "billion-words-attention": (billion_words((AttentionConfig(heads=16),) * 16), 330_827_712),
    "billion-words-dynamicconv": (
        billion_words(convolutions(DynamicConvConfig, TEXT_KERNELS, heads=16, glu=True)),
        339_457_984,
    ),
}


@pytest.mark.parametrize("name", SIZES)
def test_parameter_counts_are_exact(name: str) -> None:
    config, expected = SIZES[name]
    with torch.device("meta"):
        model = Seq2Seq(config) if isinstance(config, Seq2SeqConfig) else LanguageModel(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
