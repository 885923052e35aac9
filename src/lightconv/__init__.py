"""Lightweight and dynamic convolutions for PyTorch: operators, layers, models.

    from lightconv import DynamicConv
    layer = DynamicConv(512, 31, 8, causal=True)
    y = layer(x)                                    # x, y: [B, T, 512]

Names are loaded on first use, so that `lightconv --help` does not wait for torch.
"""

from typing import TYPE_CHECKING

from lightconv.lazy import lazy

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

__version__ = "0.2.0"

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


__getattr__ = lazy(
    __name__,
    {
        "mixers": __all__,  # but for those below
        "fitting.run": ["fit"],
        "decode.text": ["load"],
        "ops.functional": ["explain"],
    },
    packages=("mixers", "models", "ops"),
)


def __dir__() -> list[str]:
    return sorted({*__all__, "mixers", "models", "ops"})
