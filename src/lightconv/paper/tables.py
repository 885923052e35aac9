"""TABLES: the paper's seven tables. One entry per row, which begins with the row as it is printed.

The rows of tables 3, 6 and 7 have models of their own; other rows have the models of their tasks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from lightconv.models.config import Seq2SeqConfig
from lightconv.paper import models
from lightconv.paper.models import KERNELS, change, put
from lightconv.paper.tasks import ARCHITECTURE, FITTED, each_layer, ours

NONE = "-"
# Tasks whose twins would not fit a small corpus (793,471 words; summaries of at least 55 tokens)
# have the twins of another one.
_STAND_INS = {"billion-word": "debian-lm", "cnn-dailymail": "debian-summary"}


class Row:
    """A row of a table; its small twin is the recipe NAME-small.

    printed  text | number of parameters | a figure for each column of the table
    model    of the recipe, if it is not one of its task; `about` and `sources` are the recipe's
    cited    the work of others, with the model of the recipe
    """

    def __init__(
        self,
        printed: str,
        recipe: str,
        model: Seq2SeqConfig | None = None,
        about: str = "",
        sources: Mapping[str, str] | None = None,
    ) -> None:
        self.printed, self.recipe, self.model, self.about = printed, recipe, model, about
        self.sources = sources or {}
        self.text, self.params, *self.figures = printed.split(" | ")
        self.cited = "et al." in self.text


def agrees(printed: str, exact: int) -> bool:
    """True if the printed "202M" is the exact number cut or rounded; the paper does both."""
    rounded = (f"{exact // 10**6}M", f"{exact / 1e6:.0f}M", f"{exact / 1e6:.1f}M")
    return printed in (f"{exact:,}", *rounded)


def compare(printed: Mapping[str, str], exact: Mapping[str, int]) -> list[list[str]]:
    """Name, printed figure, exact number and agreement of each; a missing number is 0."""
    found = [(name, text, exact.get(name, 0)) for name, text in printed.items()]
    return [[name, text, f"{n:,}", "yes" if agrees(text, n) else "NO"] for name, text, n in found]


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of figures.

    split  the split that is scored
    part   of the score, such as `rouge1`; None is its value
    best   of the seed with the best validation score, else the mean over seeds
    """

    name: str
    measured: Literal["score", "sentences/s", "tokens/s"] = "score"
    split: str = "test"
    part: str | None = None
    best: bool = False
    digits: int = 2


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the paper.

    place  section, and how the paper measured the figures
    cited  rows of others, as they are printed; never run
    twins  task whose rows have small twins that train on any corpus of its kind
    speed  beam and sentences of a batch with which the paper measured speed
    """

    name: str
    title: str
    place: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    cited: tuple[str, ...] = ()
    twins: str = "wmt-en-de"
    speed: tuple[int, int] | None = None

    @property
    def splits(self) -> tuple[str, ...]:
        """Splits that are scored; validation too if it chooses the seed."""
        first = ["valid"] if any(column.best for column in self.columns) else []
        scored = (column.split for column in self.columns if column.measured == "score")
        return tuple(dict.fromkeys([*first, *scored]))

    def rows_at(self, scale: str) -> dict[str, Row]:
        """Rows by recipe: all at scale "paper", those of one task with small twins at "cpu"."""
        if scale == "paper":
            return {row.recipe: row for row in self.rows}
        task = _STAND_INS.get(self.twins, self.twins)
        mine = [row for row in self.rows if row.recipe.startswith(f"{self.twins}-")]
        return {f"{task}{row.recipe.removeprefix(self.twins)}-small": row for row in mine}


NO_INPUT_DROPOUT = {"model.input_dropout": f"{ARCHITECTURE}: its Transformer has none"}
_BEFORE_LIGHTCONV = {"model.input_dropout": ours("as for LightConv")}
AVERAGES = {
    **each_layer("ffn_dim", FITTED),
    "model.decoder.*.dropout": ours("none"),
    "model.input_dropout": ours("none, as for self-attention"),
}

_BLEU = Column(name="BLEU")
_BEST_BLEU = Column(name="BLEU", best=True)
_VALID_BLEU = Column(name="BLEU", split="valid")
_SPEED = Column(name="Sent/sec", measured="sentences/s", digits=1)

MT1 = Table(
    name="mt1",
    title="Table 1: translation, WMT En-De and En-Fr",
    place="section 6.1; newstest2014, tokenised BLEU, of three seeds the best on validation",
    columns=(_BEST_BLEU,),
    rows=(
        Row("Self-attention, Ott et al. (2018), En-De | 210M | 29.3", "wmt-en-de-selfattention"),
        Row("LightConv, En-De | 202M | 28.9", "wmt-en-de-lightconv"),
        Row("DynamicConv, En-De | 213M | 29.7", "wmt-en-de-dynamicconv"),
        Row("Self-attention, Ott et al. (2018), En-Fr | - | 43.2", "wmt-en-fr-selfattention"),
        Row("LightConv, En-Fr | - | 43.1", "wmt-en-fr-lightconv"),
        Row("DynamicConv, En-Fr | - | 43.2", "wmt-en-fr-dynamicconv"),
    ),
    cited=(
        "Gehring et al. (2017), En-De | 216M | 25.2",
        "Gehring et al. (2017), En-Fr | - | 40.5",
        "Vaswani et al. (2017), En-De | 213M | 28.4",
        "Vaswani et al. (2017), En-Fr | - | 41.0",
        "Ahmed et al. (2017), En-De | 213M | 28.9",
        "Ahmed et al. (2017), En-Fr | - | 41.4",
        "Chen et al. (2018), En-De | 379M | 28.5",
        "Chen et al. (2018), En-Fr | - | 41.0",
        "Shaw et al. (2018), En-De | - | 29.2",
        "Shaw et al. (2018), En-Fr | - | 41.5",
    ),
)
MT2 = Table(
    name="mt2",
    title="Table 2: translation, IWSLT De-En and WMT Zh-En",
    place="section 6.1; IWSLT tokenised and lower-case, Zh-En newstest2017 detokenised; of "
    "three seeds the best on validation",
    columns=(_BEST_BLEU,),
    rows=(
        Row("Self-attention baseline, IWSLT | - | 34.4", "iwslt-de-en-selfattention"),
        Row("LightConv, IWSLT | - | 34.8", "iwslt-de-en-lightconv"),
        Row("DynamicConv, IWSLT | - | 35.2", "iwslt-de-en-dynamicconv"),
        Row("Self-attention baseline, Zh-En | 292M | 23.8", "wmt-zh-en-selfattention"),
        Row("LightConv, Zh-En | 285M | 24.3", "wmt-zh-en-lightconv"),
        Row("DynamicConv, Zh-En | 296M | 24.4", "wmt-zh-en-dynamicconv"),
    ),
    cited=("Deng et al. (2018), IWSLT | - | 33.1", "Hassan et al. (2018), Zh-En | - | 24.2"),
    twins="iwslt-de-en",
)
ABLATION = Table(
    name="ablation",
    title="Table 3: ablation on WMT En-De",
    place="section 6.2; newstest2013, mean and deviation of three seeds; speed with beam 4 and "
    "batches of 256 on a P100",
    columns=(_VALID_BLEU, _SPEED),
    rows=(
        Row(
            "Self-attention baseline (k=inf, H=16) | 210M | 26.9 ± 0.1 | 52.1 ± 0.1",
            "wmt-en-de-selfattention",
        ),
        Row(
            "Self-attention baseline (k=3,7,15,31x3, H=16) | 210M | 26.9 ± 0.3 | 54.9 ± 0.2",
            "wmt-en-de-ablation-windowed",
            models.WINDOWED,
            "self-attention in windows of 3, 7, 15, 31x3",
            NO_INPUT_DROPOUT,
        ),
        Row(
            "CNN (k=3) | 208M | 25.9 ± 0.2 | 68.1 ± 0.3",
            "wmt-en-de-ablation-cnn",
            models.CNN,
            "full convolutions k=3, no projections",
            _BEFORE_LIGHTCONV,
        ),
        Row(
            "CNN Depthwise (k=3, H=1024) | 195M | 26.1 ± 0.2 | 67.1 ± 1.0",
            "wmt-en-de-ablation-depthwise",
            models.DEPTHWISE,
            "CNN depthwise: k=3, H=1024, with projections",
            _BEFORE_LIGHTCONV,
        ),
        Row(
            "+ Increasing kernel (k=3,7,15,31x4, H=1024) | 195M | 26.4 ± 0.2 | 63.3 ± 0.1",
            "wmt-en-de-ablation-increasing-kernel",
            models.INCREASING_KERNEL,
            "+ increasing kernel: k=3, 7, 15, 31x4",
            _BEFORE_LIGHTCONV,
        ),
        Row(
            "+ DropConnect (H=1024) | 195M | 26.5 ± 0.2 | 63.3 ± 0.1",
            "wmt-en-de-ablation-dropconnect",
            models.DROPCONNECT,
            "+ DropConnect",
            _BEFORE_LIGHTCONV,
        ),
        Row(
            "+ Weight sharing (H=16) | 195M | 26.5 ± 0.1 | 63.7 ± 0.4",
            "wmt-en-de-ablation-sharing",
            models.SHARING,
            "+ weight sharing: H=16",
            _BEFORE_LIGHTCONV,
        ),
        Row(
            "+ Softmax-normalized weights [LightConv] (H=16) | 195M | 26.6 ± 0.2 | 63.6 ± 0.1",
            "wmt-en-de-ablation-softmax",
            models.SOFTMAX,
            "+ softmax-normalised weights: LightConv without GLU",
        ),
        Row(
            "+ Dynamic weights [DynamicConv] (H=16) | 200M | 26.9 ± 0.2 | 62.6 ± 0.4",
            "wmt-en-de-ablation-dynamicconv",
            models.DYNAMIC,
            "+ dynamic weights: DynamicConv without GLU",
        ),
        Row(
            "DynamicConv (H=16) w/o softmax-normalization | 200M | diverges | -",
            "wmt-en-de-ablation-dynamicconv-nosoftmax",
            change(models.DYNAMIC, normalize="none"),
            "DynamicConv without softmax (diverged in the paper)",
        ),
        Row(
            "AAN decoder + self-attn encoder | 260M | 26.8 ± 0.1 | 59.5 ± 0.1",
            "wmt-en-de-ablation-aan-decoder",
            models.AAN_DECODER,
            "averaged attention in the decoder, self-attention in the encoder",
            AVERAGES,
        ),
        Row(
            "AAN decoder + AAN encoder | 310M | 22.5 ± 0.1 | 59.2 ± 2.1",
            "wmt-en-de-ablation-aan-both",
            replace(models.AAN_DECODER, encoder=models.AAN_DECODER.decoder),
            "averaged attention in encoder and decoder",
            {**AVERAGES, "model.encoder.*.dropout": ours("none")},
        ),
    ),
    cited=("Vaswani et al. (2017) | 213M | 26.4 | -",),
    speed=(4, 256),
)
LM = Table(
    name="lm",
    title="Table 4: language modelling, Billion Word",
    place="section 6.3; perplexity per word",
    columns=(Column(name="Valid", split="valid"), Column(name="Test")),
    rows=(
        Row("Self-attention baseline | 331M | 26.67 | 26.73", "billion-word-selfattention"),
        Row("DynamicConv | 339M | 26.60 | 26.67", "billion-word-dynamicconv"),
    ),
    cited=(
        "2-layer LSTM-8192-1024, Jozefowicz et al. (2016) | - | - | 30.6",
        "Gated Convolutional Model, Dauphin et al. (2017) | 428M | - | 31.9",
        "Mixture of Experts, Shazeer et al. (2017); without embedding and softmax | 4371M | - | "
        "28.0",
    ),
    twins="billion-word",
)
SUMMARIZATION = Table(
    name="summarization",
    title="Table 5: summarisation, CNN-DailyMail",
    place="section 6.4; F1 of ROUGE",
    columns=tuple(Column(name=f"Rouge-{n.lower()}", part=f"rouge{n}", best=True) for n in "12L"),
    rows=(
        Row("Self-attention baseline | 90M | 39.26 | 15.98 | 36.35", "cnn-dailymail-selfattention"),
        Row("LightConv | 86M | 39.52 | 15.97 | 36.51", "cnn-dailymail-lightconv"),
        Row("DynamicConv | 87M | 39.84 | 16.25 | 36.73", "cnn-dailymail-dynamicconv"),
    ),
    cited=(
        "LSTM, Paulus et al. (2017) | - | 38.30 | 14.81 | 35.49",
        "CNN, Fan et al. (2017) | - | 39.06 | 15.38 | 35.77",
        "RL, Celikyilmaz et al. (2018) | - | 41.69 | 19.47 | 37.92",
    ),
    twins="cnn-dailymail",
)
NORMALIZATION = Table(
    name="normalization",
    title="Table 6: alternatives to the softmax, WMT En-De",
    place="appendix A; newstest2013, mean and deviation of three seeds, epsilon 1e-6",
    columns=(_VALID_BLEU,),
    rows=tuple(
        Row(
            printed,
            f"wmt-en-de-normalize-{name.replace('_', '-')}",
            change(models.DYNAMIC, normalize=name),
            f"DynamicConv without GLU, kernels {about}"
            + " (diverged in the paper)" * printed.endswith("diverges"),
        )
        for name, printed, about in (
            ("none", "W (no normalization) | - | diverges", "not normalised"),
            ("softmax", "softmax(W) | - | 26.9 ± 0.2", "through a softmax"),
            ("sigmoid", "sigmoid(W) | - | 26.6 ± 0.3", "through a sigmoid"),
            ("tanh", "tanh(W) | - | 25.6 ± 0.2", "through tanh"),
            ("l1", "W / L1 norm | - | diverges", "divided by their L1 norm"),
            ("l2", "W / L2 norm | - | 26.8 ± 0.2", "divided by their L2 norm"),
            ("square", "power(W, 2) | - | diverges", "squared"),
            ("abs", "abs(W) | - | diverges", "as absolute values"),
            ("abs_l1", "abs(W) / L1 norm | - | diverges", "as absolute values over L1 norms"),
            (
                "abs_l2",
                "abs(W) / L2 norm | - | 26.7 ± 0.2",
                "as absolute values over L2 norms",
            ),
        )
    ),
)
DECODERS = Table(
    name="decoders",
    title="Table 7: small decoders, WMT En-De",
    place="appendix B; newstest2014, greedy, one sentence at a time on a P100",
    columns=(_BLEU, _SPEED, Column(name="Tok/sec", measured="tokens/s", digits=1)),
    rows=tuple(
        Row(
            f"DynamicConv ({printed}",
            f"wmt-en-de-decoder-{len(kernels)}",
            put(models.DYNAMIC, models.DYNAMIC_LAYER, KERNELS[0], kernels),
            f"DynamicConv without GLU, 7+{len(kernels)} layers, greedy search",
        )
        for kernels, printed in (
            ((31,), "1-decoder layer (k=31)) | 124M | 26.1 | 15.2 | 423.0"),
            ((3, 7, 15), "3-decoder layers (k=3,7,15)) | 153M | 27.7 | 7.2 | 202.3"),
            (KERNELS[1], "6-decoder layers (k=3,7,15,31,31,31)) | 200M | 28.5 | 3.9 | 110.9"),
        )
    ),
    cited=(
        "NAT (+ FT), Gu et al. (2018) | - | 17.7 | 25.6 | -",
        "NAT (+ FT + NPD=10), Gu et al. (2018) | - | 18.7 | 12.7 | -",
        "NAT (+ FT + NPD=100), Gu et al. (2018) | - | 19.2 | 3.9 | -",
        "LT, Improved Semhash, Kaiser et al. (2018) | - | 19.8 | 9.5 | -",
        "IR i_dec=1, Lee et al. (2018) | - | 13.9 | - | 511.4",
        "IR i_dec=2, Lee et al. (2018) | - | 17.0 | - | 393.6",
        "IR i_dec=5, Lee et al. (2018) | - | 20.3 | - | 139.7",
        "IR i_dec=10, Lee et al. (2018) | - | 21.6 | - | 90.4",
        "IR Adaptive, Lee et al. (2018) | - | 21.5 | - | 107.2",
        "NART w/ hints, Li et al. (2019) | - | 21.1 | 38.5 | -",
        "NART w/ hints (B=4, 9 candidates), Li et al. (2019) | - | 25.2 | 22.7 | -",
        "ENAT Embedding Mapping, Guo et al. (2018) | - | 20.7 | 41.7 | -",
        "ENAT Embedding Mapping (rescoring 9 candidates), Guo et al. (2018) | - | 24.3 | 20.4 | -",
        "Autoregressive, Gu et al. (2018) | - | 22.7 | 2.5 | -",
        "Autoregressive, Lee et al. (2018) | - | 23.8 | - | 54.0",
        "Transformer, Li et al. (2019) | - | 27.3 | 1.3 | -",
        "Transformer, Guo et al. (2018) | - | 27.4 | 1.6 | -",
    ),
    speed=(1, 1),
)

_ALL = (MT1, MT2, ABLATION, LM, SUMMARIZATION, NORMALIZATION, DECODERS)
TABLES: dict[str, Table] = {table.name: table for table in _ALL}
