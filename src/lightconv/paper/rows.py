"""Rows of the paper's tables: one entry each, with figures as they are printed.

A figure is text: "26.9 ± 0.1", "diverges", "-" where there is none. The rows of tables 3, 6 and 7
have models of their own, each a change of another one; other rows have the models of their tasks.
"""

from dataclasses import dataclass, field, replace

from lightconv.models.config import (
    AverageConfig,
    ConvConfig,
    DynamicConvConfig,
    LightConvConfig,
    Seq2SeqConfig,
)
from lightconv.paper.models import ATTENTION, DECODER_KERNELS, EN_DE, change_both, put, stack
from lightconv.paper.tasks import ARCHITECTURE, FITTED, each_layer, ours

NONE = "-"


@dataclass(frozen=True)
class Row:
    """A row of a table; its small twin is the recipe NAME-small.

    recipe   None for the work of others, which the paper only cites
    params   number of parameters as printed
    exact    number of parameters of the recipe's model; None if the paper cites the row
    figures  as printed, in the order of the table's columns
    model    of the recipe, if it is not one of its task; `about` and `sources` are the recipe's
    """

    text: str
    recipe: str | None
    params: str
    exact: int | None
    figures: tuple[str, ...]
    model: Seq2SeqConfig | None = None
    about: str = ""
    sources: dict[str, str] = field(default_factory=dict)


def agrees(printed: str, exact: int) -> bool:
    """True if the printed "202M" is the exact number cut or rounded; the paper does both."""
    return printed in (f"{exact // 10**6}M", f"{round(exact / 1e6)}M")


# --- Tables 1, 2, 4 and 5. The baseline of table 1 is cited, with the model of table 3's baseline.

MT1 = (
    Row(
        "Self-attention, Ott et al. (2018), En-De",
        "wmt-en-de-selfattention",
        "210M",
        None,
        ("29.3",),
    ),
    Row("LightConv, En-De", "wmt-en-de-lightconv", "202M", 202_569_904, ("28.9",)),
    Row("DynamicConv, En-De", "wmt-en-de-dynamicconv", "213M", 213_237_760, ("29.7",)),
    Row(
        "Self-attention, Ott et al. (2018), En-Fr", "wmt-en-fr-selfattention", NONE, None, ("43.2",)
    ),
    Row("LightConv, En-Fr", "wmt-en-fr-lightconv", NONE, 209_975_472, ("43.1",)),
    Row("DynamicConv, En-Fr", "wmt-en-fr-dynamicconv", NONE, 220_643_328, ("43.2",)),
)
MT2 = (
    Row("Self-attention baseline, IWSLT", "iwslt-de-en-selfattention", NONE, 42_864_640, ("34.4",)),
    Row("LightConv, IWSLT", "iwslt-de-en-lightconv", NONE, 38_139_436, ("34.8",)),
    Row("DynamicConv, IWSLT", "iwslt-de-en-dynamicconv", NONE, 38_685_184, ("35.2",)),
    Row(
        "Self-attention baseline, Zh-En", "wmt-zh-en-selfattention", "292M", 292_786_176, ("23.8",)
    ),
    Row("LightConv, Zh-En", "wmt-zh-en-lightconv", "285M", 285_444_272, ("24.3",)),
    Row("DynamicConv, Zh-En", "wmt-zh-en-dynamicconv", "296M", 296_112_128, ("24.4",)),
)
LM = (
    Row(
        "Self-attention baseline",
        "billion-word-selfattention",
        "331M",
        330_827_712,
        ("26.67", "26.73"),
    ),
    Row("DynamicConv", "billion-word-dynamicconv", "339M", 339_457_984, ("26.60", "26.67")),
)
SUMMARIZATION = (
    Row(
        "Self-attention baseline",
        "cnn-dailymail-selfattention",
        "90M",
        90_218_496,
        ("39.26", "15.98", "36.35"),
    ),
    Row("LightConv", "cnn-dailymail-lightconv", "86M", 86_543_960, ("39.52", "15.97", "36.51")),
    Row("DynamicConv", "cnn-dailymail-dynamicconv", "87M", 87_635_456, ("39.84", "16.25", "36.73")),
)

# --- Table 3: from self-attention to dynamic convolutions in small steps, without GLU

_WINDOWS = tuple(replace(ATTENTION, window=window) for window in DECODER_KERNELS)
_AVERAGE = AverageConfig(ffn_dim=4096)
_DEPTHWISE = LightConvConfig(kernel=3, heads=1024, normalize="none")
_DYNAMIC = DynamicConvConfig(kernel=3, heads=16, dropconnect=0.1)

WINDOWED = replace(EN_DE, encoder=_WINDOWS, decoder=_WINDOWS)
CNN = put(replace(EN_DE, input_dropout=0.1), ConvConfig(kernel=3), (3,) * 7, (3,) * 6)
DEPTHWISE = put(CNN, _DEPTHWISE, (3,) * 7, (3,) * 6)
INCREASING_KERNEL = put(DEPTHWISE, _DEPTHWISE)
DROPCONNECT = change_both(INCREASING_KERNEL, dropconnect=0.1)
SHARING = change_both(DROPCONNECT, heads=16)
SOFTMAX = change_both(SHARING, normalize="softmax")  # LightConv
DYNAMIC = put(SOFTMAX, _DYNAMIC)
AAN_DECODER = replace(EN_DE, decoder=(_AVERAGE,) * 6)
AAN_BOTH = replace(AAN_DECODER, encoder=(_AVERAGE,) * 6)

NO_INPUT_DROPOUT = {"model.input_dropout": f"{ARCHITECTURE}: its Transformer has none"}
_BEFORE_LIGHTCONV = {"model.input_dropout": ours("as for LightConv")}
_AVERAGES = {
    **each_layer("ffn_dim", FITTED),
    "model.decoder.*.dropout": ours("none"),
    "model.input_dropout": ours("none, as for self-attention"),
}

ABLATION = (
    Row(
        "Self-attention baseline (k=inf, H=16)",
        "wmt-en-de-selfattention",
        "210M",
        209_911_808,
        ("26.9 ± 0.1", "52.1 ± 0.1"),
    ),
    Row(
        "Self-attention baseline (k=3,7,15,31x3, H=16)",
        "wmt-en-de-ablation-windowed",
        "210M",
        209_911_808,
        ("26.9 ± 0.3", "54.9 ± 0.2"),
        WINDOWED,
        "self-attention in windows of 3, 7, 15, 31x3",
        NO_INPUT_DROPOUT,
    ),
    Row(
        "CNN (k=3)",
        "wmt-en-de-ablation-cnn",
        "208M",
        208_823_296,
        ("25.9 ± 0.2", "68.1 ± 0.3"),
        CNN,
        "full convolutions k=3, no projections",
        _BEFORE_LIGHTCONV,
    ),
    Row(
        "CNN Depthwise (k=3, H=1024)",
        "wmt-en-de-ablation-depthwise",
        "195M",
        195_258_368,
        ("26.1 ± 0.2", "67.1 ± 1.0"),
        DEPTHWISE,
        "CNN depthwise: k=3, H=1024, with projections",
        _BEFORE_LIGHTCONV,
    ),
    Row(
        "+ Increasing kernel (k=3,7,15,31x4, H=1024)",
        "wmt-en-de-ablation-increasing-kernel",
        "195M",
        195_491_840,
        ("26.4 ± 0.2", "63.3 ± 0.1"),
        INCREASING_KERNEL,
        "+ increasing kernel: k=3, 7, 15, 31x4",
        _BEFORE_LIGHTCONV,
    ),
    Row(
        "+ DropConnect (H=1024)",
        "wmt-en-de-ablation-dropconnect",
        "195M",
        195_491_840,
        ("26.5 ± 0.2", "63.3 ± 0.1"),
        DROPCONNECT,
        "+ DropConnect",
        _BEFORE_LIGHTCONV,
    ),
    Row(
        "+ Weight sharing (H=16)",
        "wmt-en-de-ablation-sharing",
        "195M",
        195_222_704,
        ("26.5 ± 0.1", "63.7 ± 0.4"),
        SHARING,
        "+ weight sharing: H=16",
        _BEFORE_LIGHTCONV,
    ),
    Row(
        "+ Softmax-normalized weights [LightConv] (H=16)",
        "wmt-en-de-ablation-softmax",
        "195M",
        195_222_704,
        ("26.6 ± 0.2", "63.6 ± 0.1"),
        SOFTMAX,
        "+ softmax-normalised weights: LightConv without GLU",
    ),
    Row(
        "+ Dynamic weights [DynamicConv] (H=16)",
        "wmt-en-de-ablation-dynamicconv",
        "200M",
        199_592_960,
        ("26.9 ± 0.2", "62.6 ± 0.4"),
        DYNAMIC,
        "+ dynamic weights: DynamicConv without GLU",
    ),
    Row(
        "DynamicConv (H=16) w/o softmax-normalization",
        "wmt-en-de-ablation-dynamicconv-nosoftmax",
        "200M",
        199_592_960,
        ("diverges", NONE),
        change_both(DYNAMIC, normalize="none"),
        "DynamicConv without softmax (diverged in the paper)",
    ),
    Row(
        "AAN decoder + self-attn encoder",
        "wmt-en-de-ablation-aan-decoder",
        "260M",
        260_261_888,
        ("26.8 ± 0.1", "59.5 ± 0.1"),
        AAN_DECODER,
        "averaged attention in the decoder, self-attention in the encoder",
        _AVERAGES,
    ),
    Row(
        "AAN decoder + AAN encoder",
        "wmt-en-de-ablation-aan-both",
        "310M",
        310_611_968,
        ("22.5 ± 0.1", "59.2 ± 2.1"),
        AAN_BOTH,
        "averaged attention in encoder and decoder",
        {**_AVERAGES, "model.encoder.*.dropout": ours("none")},
    ),
)

# --- Table 6: ten ways to normalise a kernel

NORMALIZATION = tuple(
    Row(
        text,
        f"wmt-en-de-normalize-{name.replace('_', '-')}",
        NONE,
        199_592_960,
        (bleu,),
        change_both(DYNAMIC, normalize=name),
        f"DynamicConv without GLU, kernels {about}",
    )
    for name, text, bleu, about in (
        ("none", "W (no normalization)", "diverges", "not normalised (diverged in the paper)"),
        ("softmax", "softmax(W)", "26.9 ± 0.2", "through a softmax"),
        ("sigmoid", "sigmoid(W)", "26.6 ± 0.3", "through a sigmoid"),
        ("tanh", "tanh(W)", "25.6 ± 0.2", "through tanh"),
        ("l1", "W / L1 norm", "diverges", "divided by their L1 norm (diverged in the paper)"),
        ("l2", "W / L2 norm", "26.8 ± 0.2", "divided by their L2 norm"),
        ("square", "power(W, 2)", "diverges", "squared (diverged in the paper)"),
        ("abs", "abs(W)", "diverges", "as absolute values (diverged in the paper)"),
        (
            "abs_l1",
            "abs(W) / L1 norm",
            "diverges",
            "as absolute values divided by their L1 norm (diverged in the paper)",
        ),
        ("abs_l2", "abs(W) / L2 norm", "26.7 ± 0.2", "as absolute values divided by their L2 norm"),
    )
)

# --- Table 7: small decoders

DECODERS = tuple(
    Row(
        f"DynamicConv ({text})",
        f"wmt-en-de-decoder-{len(kernels)}",
        params,
        exact,
        figures,
        replace(DYNAMIC, decoder=stack(_DYNAMIC, kernels)),
        f"DynamicConv without GLU, 7+{len(kernels)} layers, greedy search",
    )
    for kernels, text, params, exact, figures in (
        ((31,), "1-decoder layer (k=31)", "124M", 124_680_192, ("26.1", "15.2", "423.0")),
        ((3, 7, 15), "3-decoder layers (k=3,7,15)", "153M", 153_976_832, ("27.7", "7.2", "202.3")),
        (
            DECODER_KERNELS,
            "6-decoder layers (k=3,7,15,31,31,31)",
            "200M",
            199_592_960,
            ("28.5", "3.9", "110.9"),
        ),
    )
)
