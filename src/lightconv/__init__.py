"""Lightweight and dynamic convolutions for PyTorch: operators, layers, models.

    from lightconv import DynamicConv
    layer = DynamicConv(512, 31, 8, causal=True)
    y = layer(x)                                    # x, y: [B, T, 512]

Names are loaded on first use, so that `lightconv --help` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightconv.decode.text import load
    from lightconv.fitting.run import fit
    from lightconv.mixers import (
        Attention,
        Average,
        Conv,
        DynamicConv,
        Hyena,
        LightConv,
        LowRankConv,
        ShortConv,
        from_attention,
        reorder,
    )
    from lightconv.ops.functional import explain

__version__ = "0.1.0"

_MIXERS = ("Attention", "Average", "Conv", "DynamicConv", "Hyena", "LightConv", "LowRankConv")
_MIXERS += ("ShortConv", "from_attention", "reorder")
_HOMES = dict.fromkeys(_MIXERS, "lightconv.mixers") | {
    "fit": "lightconv.fitting.run",
    "load": "lightconv.decode.text",
    "explain": "lightconv.ops.functional",
}
_MODULES = ("mixers", "models", "ops")

__all__ = [
    "Attention",
    "Average",
    "Conv",
    "DynamicConv",
    "Hyena",
    "LightConv",
    "LowRankConv",
    "ShortConv",
    "__version__",
    "explain",
    "fit",
    "from_attention",
    "load",
    "reorder",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _MODULES:
        return import_module(f"lightconv.{name}")
    raise AttributeError(f"module 'lightconv' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})
