"""Parameters: of any model, part by part, and beside the figures the paper prints."""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

from lightconv.models.config import ModelConfig

_Row = tuple[str, str, int | None, int]


class PaperCount(NamedTuple):
    """A row of one of the paper's tables; `millions` is None where it prints no figure."""

    table: str
    row: str
    recipe: str
    millions: int | None
    exact: int


def count(model: ModelConfig) -> dict[str, int]:
    """Parameters by part, nothing allocated. What two parts share is counted in the first."""
    from lightconv.models.folder import build_empty

    counts = {"embedding": 0, "output": 0}
    for name, parameter in build_empty(model).named_parameters():
        part = _part(name.split("."))
        counts[part] = counts.get(part, 0) + parameter.numel()
    return counts


@cache
def total(model: ModelConfig) -> int:
    """All parameters of a model."""
    return sum(count(model).values())


def _part(path: Sequence[str]) -> str:
    """What a parameter belongs to, by the names that lead to it."""
    stack = path[0].removesuffix("norm").removesuffix("_")
    side = "" if stack in ("layers", "") else f"{stack} "
    if path[0].endswith("norm") or any(name.endswith("_residual") for name in path):
        return f"{side}norms"
    if "mixer" in path:
        return f"{side}mixers"
    if "source" in path:
        return "source attention"
    if "ffn" in path:
        return f"{side}ffn"
    # "source_embedding", "target_embedding", "output"; something new would be its own part.
    return "embedding" if path[0].endswith("embedding") else path[0]


def agrees(millions: int, exact: int) -> bool:
    """Whether a printed figure is the exact one, cut or rounded: the paper does both."""
    return millions in (exact // 10**6, round(exact / 1e6))


TABLE_TITLES = {
    "mt1": "Table 1: translation, WMT En-De and En-Fr",
    "mt2": "Table 2: translation, IWSLT De-En and WMT Zh-En",
    "ablation": "Table 3: ablation on WMT En-De",
    "lm": "Table 4: language modelling, Billion Word",
    "summarization": "Table 5: summarisation, CNN-DailyMail",
    "normalization": "Table 6: alternatives to the softmax, WMT En-De",
    "decoders": "Table 7: small decoders, WMT En-De",
}
_DYNAMIC = 199_592_960

# (row, the recipe's name without the table's prefix, millions, exact count). Rows for the work of
# others are left out: the paper only cites them.
_MT1 = (
    ("LightConv, En-De", "en-de-lightconv", 202, 202_569_904),
    ("DynamicConv, En-De", "en-de-dynamicconv", 213, 213_237_760),
    ("LightConv, En-Fr", "en-fr-lightconv", None, 209_975_472),
    ("DynamicConv, En-Fr", "en-fr-dynamicconv", None, 220_643_328),
)
_MT2 = (
    ("Self-attention baseline, IWSLT", "iwslt-de-en-selfattention", None, 42_864_640),
    ("LightConv, IWSLT", "iwslt-de-en-lightconv", None, 38_139_436),
    ("DynamicConv, IWSLT", "iwslt-de-en-dynamicconv", None, 38_685_184),
    ("Self-attention baseline, Zh-En", "wmt-zh-en-selfattention", 292, 292_786_176),
    ("LightConv, Zh-En", "wmt-zh-en-lightconv", 285, 285_444_272),
    ("DynamicConv, Zh-En", "wmt-zh-en-dynamicconv", 296, 296_112_128),
)
_ABLATION = (
    ("Self-attention baseline (k=inf, H=16)", "selfattention", 210, 209_911_808),
    ("Self-attention baseline (k=3,7,15,31x3, H=16)", "ablation-windowed", 210, 209_911_808),
    ("CNN (k=3)", "ablation-cnn", 208, 208_823_296),
    ("CNN Depthwise (k=3, H=1024)", "ablation-depthwise", 195, 195_258_368),
    ("+ Increasing kernel (k=3,7,15,31x4, H=1024)", "ablation-increasing-kernel", 195, 195_491_840),
    ("+ DropConnect (H=1024)", "ablation-dropconnect", 195, 195_491_840),
    ("+ Weight sharing (H=16)", "ablation-sharing", 195, 195_222_704),
    ("+ Softmax-normalized weights [LightConv] (H=16)", "ablation-softmax", 195, 195_222_704),
    ("+ Dynamic weights [DynamicConv] (H=16)", "ablation-dynamicconv", 200, _DYNAMIC),
    (
        "DynamicConv (H=16) w/o softmax-normalization",
        "ablation-dynamicconv-nosoftmax",
        200,
        _DYNAMIC,
    ),
    ("AAN decoder + self-attn encoder", "ablation-aan-decoder", 260, 260_261_888),
    ("AAN decoder + AAN encoder", "ablation-aan-both", 310, 310_611_968),
)
_LM = (
    ("Self-attention baseline", "selfattention", 331, 330_827_712),
    ("DynamicConv", "dynamicconv", 339, 339_457_984),
)
_SUMMARIZATION = (
    ("Self-attention baseline", "selfattention", 90, 90_218_496),
    ("LightConv", "lightconv", 86, 86_543_960),
    ("DynamicConv", "dynamicconv", 87, 87_635_456),
)
_NORMALIZATION = (
    ("W (no normalization)", "none", None, _DYNAMIC),
    ("softmax(W)", "softmax", None, _DYNAMIC),
    ("sigmoid(W)", "sigmoid", None, _DYNAMIC),
    ("tanh(W)", "tanh", None, _DYNAMIC),
    ("W / L1 norm", "l1", None, _DYNAMIC),
    ("W / L2 norm", "l2", None, _DYNAMIC),
    ("power(W, 2)", "square", None, _DYNAMIC),
    ("abs(W)", "abs", None, _DYNAMIC),
    ("abs(W) / L1 norm", "abs-l1", None, _DYNAMIC),
    ("abs(W) / L2 norm", "abs-l2", None, _DYNAMIC),
)
_DECODERS = (
    ("DynamicConv (1-decoder layer (k=31))", "1", 124, 124_680_192),
    ("DynamicConv (3-decoder layers (k=3,7,15))", "3", 153, 153_976_832),
    ("DynamicConv (6-decoder layers (k=3,7,15,31,31,31))", "6", 200, _DYNAMIC),
)


def _rows(table: str, prefix: str, rows: Iterable[_Row]) -> list[PaperCount]:
    return [
        PaperCount(table, row, prefix + name, millions, exact)
        for row, name, millions, exact in rows
    ]


PAPER_COUNTS: tuple[PaperCount, ...] = (
    *_rows("mt1", "wmt-", _MT1),
    *_rows("mt2", "", _MT2),
    *_rows("ablation", "wmt-en-de-", _ABLATION),
    *_rows("lm", "billion-word-", _LM),
    *_rows("summarization", "cnn-dailymail-", _SUMMARIZATION),
    *_rows("normalization", "wmt-en-de-normalize-", _NORMALIZATION),
    *_rows("decoders", "wmt-en-de-decoder-", _DECODERS),
)
