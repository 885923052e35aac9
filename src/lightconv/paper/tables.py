"""TABLES: the paper's seven tables."""

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
        """The splits that are scored."""
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
