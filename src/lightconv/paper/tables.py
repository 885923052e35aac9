"""TABLES: the paper's seven tables, and CITED: the rows of others, which are printed, never run."""

from dataclasses import dataclass
from typing import Literal

from lightconv.console import suggest
from lightconv.paper import rows
from lightconv.paper.rows import Row

# Tasks whose twins would not fit a small corpus (793,471 words; summaries of at least 55 tokens)
# have the twins of another one.
_STAND_INS = {"billion-word": "debian-lm", "cnn-dailymail": "debian-summary"}


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of figures.

    split  the split that is scored
    part   of the score, such as `rouge1`; None is its value
    """

    name: str
    measured: Literal["score", "sentences/s", "tokens/s"] = "score"
    split: str = "test"
    part: str | None = None
    digits: int = 2


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the paper.

    place       section, and how the paper measured the figures
    twins       task whose rows have small twins that train on any corpus of its kind
    one_by_one  sentences are decoded alone, as for the speeds of the appendix
    """

    name: str
    title: str
    place: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    twins: str = "wmt-en-de"
    one_by_one: bool = False

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(c.split for c in self.columns if c.measured == "score"))

    def rows_at(self, scale: str) -> dict[str, Row]:
        """Rows by recipe: all at scale "paper", those of one task with small twins at "cpu"."""
        if scale == "paper":
            return {row.recipe: row for row in self.rows}
        task = _STAND_INS.get(self.twins, self.twins)
        mine = [row for row in self.rows if row.recipe.startswith(f"{self.twins}-")]
        return {f"{task}{row.recipe.removeprefix(self.twins)}-small": row for row in mine}


_BLEU = Column(name="BLEU")
_VALID_BLEU = Column(name="BLEU", split="valid")
_SPEED = Column(name="Sent/sec", measured="sentences/s", digits=1)

_ALL = (
    Table(
        name="mt1",
        title="Table 1: translation, WMT En-De and En-Fr",
        place="section 6.1; newstest2014, tokenised BLEU, of three seeds the best on validation",
        columns=(_BLEU,),
        rows=rows.MT1,
    ),
    Table(
        name="mt2",
        title="Table 2: translation, IWSLT De-En and WMT Zh-En",
        place="section 6.1; IWSLT tokenised and lower-case, Zh-En newstest2017 detokenised",
        columns=(_BLEU,),
        rows=rows.MT2,
        twins="iwslt-de-en",
    ),
    Table(
        name="ablation",
        title="Table 3: ablation on WMT En-De",
        place="section 6.2; newstest2013, mean and deviation of three seeds; speed with beam 4 and "
        "batches of 256 on a P100",
        columns=(_VALID_BLEU, _SPEED),
        rows=rows.ABLATION,
    ),
    Table(
        name="lm",
        title="Table 4: language modelling, Billion Word",
        place="section 6.3; perplexity per word",
        columns=(Column(name="Valid", split="valid"), Column(name="Test")),
        rows=rows.LM,
        twins="billion-word",
    ),
    Table(
        name="summarization",
        title="Table 5: summarisation, CNN-DailyMail",
        place="section 6.4; F1 of ROUGE",
        columns=tuple(Column(name=f"Rouge-{n.lower()}", part=f"rouge{n}") for n in "12L"),
        rows=rows.SUMMARIZATION,
        twins="cnn-dailymail",
    ),
    Table(
        name="normalization",
        title="Table 6: alternatives to the softmax, WMT En-De",
        place="appendix A; newstest2013, mean and deviation of three seeds, epsilon 1e-6",
        columns=(_VALID_BLEU,),
        rows=rows.NORMALIZATION,
    ),
    Table(
        name="decoders",
        title="Table 7: small decoders, WMT En-De",
        place="appendix B; newstest2014, greedy, one sentence at a time on a P100",
        columns=(_BLEU, _SPEED, Column(name="Tok/sec", measured="tokens/s", digits=1)),
        rows=rows.DECODERS,
        one_by_one=True,
    ),
)
TABLES: dict[str, Table] = {table.name: table for table in _ALL}


def find_table(name: str) -> Table:
    """The table of this name; ValueError suggests the nearest."""
    if name not in TABLES:
        raise ValueError(f"unknown table '{name[:60]}'{suggest(name, TABLES)}")
    return TABLES[name]


# Each row: text | number of parameters | a figure for each column of the table.
CITED: dict[str, tuple[str, ...]] = {
    # Parameters are printed for En-De; Ott et al. (2018) is in rows.MT1.
    "mt1": (
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
    "mt2": ("Deng et al. (2018), IWSLT | - | 33.1", "Hassan et al. (2018), Zh-En | - | 24.2"),
    "ablation": ("Vaswani et al. (2017) | 213M | 26.4 | -",),
    "lm": (
        "2-layer LSTM-8192-1024, Jozefowicz et al. (2016) | - | - | 30.6",
        "Gated Convolutional Model, Dauphin et al. (2017) | 428M | - | 31.9",
        "Mixture of Experts, Shazeer et al. (2017); without embedding and softmax | 4371M | - | "
        "28.0",
    ),
    "summarization": (
        "LSTM, Paulus et al. (2017) | - | 38.30 | 14.81 | 35.49",
        "CNN, Fan et al. (2017) | - | 39.06 | 15.38 | 35.77",
        "RL, Celikyilmaz et al. (2018) | - | 41.69 | 19.47 | 37.92",
    ),
    "decoders": (
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
}
