"""The paper prints numbers of parameters; here they are exact."""

from typing import Any

import pytest
import torch

from lightconv.models import (
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
from lightconv.models.folder import build

Layers = tuple[MixerConfig, ...]
ENCODER_KERNELS = (3, 7, 15, 31, 31, 31, 31)
DECODER_KERNELS = ENCODER_KERNELS[:6]
TEXT_KERNELS = (15,) * 2 + (31,) * 4 + (63,) * 11


def stack(
    config: type[LightConvConfig | DynamicConvConfig], kernels: tuple[int, ...], **options: Any
) -> Layers:
    return tuple(config(kernel=kernel, **options) for kernel in kernels)


def iwslt(encoder: Layers, decoder: Layers) -> Seq2SeqConfig:
    sizes = {"dim": 512, "ffn_dim": 1024, "source_vocab": 8848, "target_vocab": 6632}
    return Seq2SeqConfig(source_heads=4, encoder=encoder, decoder=decoder, **sizes)


def wmt(encoder: Layers, decoder: Layers) -> Seq2SeqConfig:
    sizes = {"dim": 1024, "ffn_dim": 4096, "source_vocab": 32768, "target_vocab": 32768}
    layers = {"encoder": encoder, "decoder": decoder}
    return Seq2SeqConfig(source_heads=16, share_embeddings="all", **layers, **sizes)


def billion_words(layers: Layers) -> LanguageModelConfig:
    bands = AdaptiveConfig(cutoffs=(60_000, 160_000))
    return LanguageModelConfig(dim=1024, ffn_dim=4096, layers=layers, vocab=793_471, adaptive=bands)


def iwslt_convolutions(config: type[LightConvConfig | DynamicConvConfig]) -> Seq2SeqConfig:
    return iwslt(
        stack(config, ENCODER_KERNELS, heads=4),
        stack(config, DECODER_KERNELS, heads=4),
    )


def wmt_convolutions(
    config: type[LightConvConfig | DynamicConvConfig], *, decoder_glu: bool
) -> Seq2SeqConfig:
    return wmt(
        stack(config, ENCODER_KERNELS, heads=16, glu=True),
        stack(config, DECODER_KERNELS, heads=16, glu=decoder_glu),
    )


FOUR, SIXTEEN = (AttentionConfig(heads=4),) * 6, (AttentionConfig(heads=16),) * 6
CONV, AVERAGE = (ConvConfig(kernel=3),) * 7, (AverageConfig(ffn_dim=4096),) * 6
TEXT = stack(DynamicConvConfig, TEXT_KERNELS, heads=16, glu=True)
SIZES: dict[str, tuple[ModelConfig, int]] = {
    "iwslt-attention": (iwslt(FOUR, FOUR), 42_864_640),
    "iwslt-lightconv": (iwslt_convolutions(LightConvConfig), 38_139_436),
    "iwslt-dynamicconv": (iwslt_convolutions(DynamicConvConfig), 38_685_184),
    "wmt-attention": (wmt(SIXTEEN, SIXTEEN), 209_911_808),
    "wmt-lightconv": (wmt_convolutions(LightConvConfig, decoder_glu=False), 202_569_904),
    "wmt-dynamicconv": (wmt_convolutions(DynamicConvConfig, decoder_glu=True), 213_237_760),
    "wmt-conv": (wmt(CONV, CONV[:6]), 208_823_296),
    "wmt-average": (wmt(AVERAGE, AVERAGE), 310_611_968),
    "billion-words-attention": (billion_words((AttentionConfig(heads=16),) * 16), 330_827_712),
    "billion-words-dynamicconv": (billion_words(TEXT), 339_457_984),
}


@pytest.mark.parametrize("name", SIZES)
def test_parameter_counts_are_exact(name: str) -> None:
    config, expected = SIZES[name]
    with torch.device("meta"):
        model = build(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
