"""Models around a mixer. Configurations are read without torch; the models load it when named."""

from typing import TYPE_CHECKING

from lightconv.lazy import lazy
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

if TYPE_CHECKING:
    from lightconv.models.lm import LanguageModel
    from lightconv.models.seq2seq import Seq2Seq

__all__ = [
    "AdaptiveConfig",
    "AttentionConfig",
    "AverageConfig",
    "ConvConfig",
    "DynamicConvConfig",
    "LanguageModel",
    "LanguageModelConfig",
    "LightConvConfig",
    "MixerConfig",
    "ModelConfig",
    "Seq2Seq",
    "Seq2SeqConfig",
]

__getattr__ = lazy(__name__, {"lm": ["LanguageModel"], "seq2seq": ["Seq2Seq"]})
