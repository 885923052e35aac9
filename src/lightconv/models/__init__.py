"""Models around a mixer. Configurations are read without torch; `Seq2Seq` loads it when named."""

from typing import TYPE_CHECKING

from lightconv.models.config import (
    MIXER_CONFIGS,
    AttentionConfig,
    AverageConfig,
    ConvConfig,
    DynamicConvConfig,
    LightConvConfig,
    MixerConfig,
    Seq2SeqConfig,
)

if TYPE_CHECKING:
    from lightconv.models.seq2seq import Seq2Seq

__all__ = [
    "MIXER_CONFIGS",
    "AttentionConfig",
    "AverageConfig",
    "ConvConfig",
    "DynamicConvConfig",
    "LightConvConfig",
    "MixerConfig",
    "Seq2Seq",
    "Seq2SeqConfig",
]


def __getattr__(name: str) -> object:
    if name == "Seq2Seq":
        from lightconv.models.seq2seq import Seq2Seq

        return Seq2Seq
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
