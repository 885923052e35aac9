"""Mixers, the layers that move information along time: [B, T, D] -> [B, T, D]."""

from lightconv.mixers.attention import Attention
from lightconv.mixers.average import Average
from lightconv.mixers.base import Mixer, State, reorder
from lightconv.mixers.conv import Conv
from lightconv.mixers.convert import SelfMixer, from_attention
from lightconv.mixers.dynamicconv import DynamicConv, LowRankConv
from lightconv.mixers.gated import Hyena, ShortConv
from lightconv.mixers.lightconv import LightConv
from lightconv.mixers.projected import NORMALIZATIONS

MIXERS: dict[str, type[Mixer]] = {
    "attention": Attention,
    "conv": Conv,
    "lightconv": LightConv,
    "dynamicconv": DynamicConv,
    "average": Average,
    "lowrankconv": LowRankConv,
    "shortconv": ShortConv,
    "hyena": Hyena,
}

__all__ = [
    "MIXERS",
    "NORMALIZATIONS",
    "Attention",
    "Average",
    "Conv",
    "DynamicConv",
    "Hyena",
    "LightConv",
    "LowRankConv",
    "Mixer",
    "SelfMixer",
    "ShortConv",
    "State",
    "from_attention",
    "reorder",
]
