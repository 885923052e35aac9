"""TABLES: the paper's seven tables. Each row is a recipe, with the figures that the paper prints.

A figure is kept as it is printed: "26.9 ± 0.1", "diverges", "-" where there is none.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lightconv.paper.cited import CITED
from lightconv.paper.params import PAPER_COUNTS, TABLE_TITLES
from lightconv.paper.recipes import RECIPES

NONE = "-"
SMALL = "-small"

# Twins of these would not fit a small corpus: they have bands for 793,471 words, and a search for
# summaries of at least 55 tokens.
_STAND_INS = {"billion-word": "debian-lm", "cnn-dailymail": "debian-summary"}

Measured = Literal["score", "sentences/s", "tokens/s"]


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of figures, and what of a result stands in it.

    split  on which a score is measured
    part   of the score, such as `rouge1`; its value if none is named
    """

    name: str
    measured: Measured = "score"
    split: str = "test"
    part: str | None = None
    digits: int = 2


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a row is; `figures` stand in the order of the columns. Without a recipe it is cited."""

    text: str
    recipe: str | None
    params: str = NONE
    figures: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the paper.

    place       where it stands, and what the paper says of how it was measured
    twins       the task whose rows have small twins that can be trained on any corpus of its kind
    one_by_one  whether sentences are decoded alone, as for the speeds in the appendix
    """

    name: str
    place: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    cited: tuple[Row, ...]
    twins: str
    one_by_one: bool = False

    @property
    def title(self) -> str:
        """Its number and what it is about."""
        return TABLE_TITLES[self.name]

    @property
    def splits(self) -> tuple[str, ...]:
        """Those that are scored."""
        return tuple(dict.fromkeys(c.split for c in self.columns if c.measured == "score"))

    def find_twin(self, row: Row) -> str | None:
        """The recipe of the row's small twin; rows of another task have none of their own."""
        if row.recipe is None or not row.recipe.startswith(f"{self.twins}-"):
            return None
        task = _STAND_INS.get(self.twins, self.twins)
        name = task + row.recipe.removeprefix(self.twins) + SMALL
        return name if name in RECIPES else None

    @property
    def twin_rows(self) -> dict[str, Row]:
        """Rows by the recipe of their twins."""
        found = {self.find_twin(row): row for row in self.rows}
        return {name: row for name, row in found.items() if name is not None}


_BLEU = (Column(name="BLEU"),)
_VALID_BLEU = Column(name="BLEU", split="valid")
_SPEED = Column(name="Sent/sec", measured="sentences/s", digits=1)

# By recipe, in the order of the paper's rows.
_MT1 = {
    "wmt-en-de-selfattention": ("29.3",),
    "wmt-en-de-lightconv": ("28.9",),
    "wmt-en-de-dynamicconv": ("29.7",),
    "wmt-en-fr-selfattention": ("43.2",),
    "wmt-en-fr-lightconv": ("43.1",),
    "wmt-en-fr-dynamicconv": ("43.2",),
}
_MT2 = {
    "iwslt-de-en-selfattention": ("34.4",),
    "iwslt-de-en-lightconv": ("34.8",),
    "iwslt-de-en-dynamicconv": ("35.2",),
    "wmt-zh-en-selfattention": ("23.8",),
    "wmt-zh-en-lightconv": ("24.3",),
    "wmt-zh-en-dynamicconv": ("24.4",),
}
_ABLATION = {
    "wmt-en-de-selfattention": ("26.9 ± 0.1", "52.1 ± 0.1"),
    "wmt-en-de-ablation-windowed": ("26.9 ± 0.3", "54.9 ± 0.2"),
    "wmt-en-de-ablation-cnn": ("25.9 ± 0.2", "68.1 ± 0.3"),
    "wmt-en-de-ablation-depthwise": ("26.1 ± 0.2", "67.1 ± 1.0"),
    "wmt-en-de-ablation-increasing-kernel": ("26.4 ± 0.2", "63.3 ± 0.1"),
    "wmt-en-de-ablation-dropconnect": ("26.5 ± 0.2", "63.3 ± 0.1"),
    "wmt-en-de-ablation-sharing": ("26.5 ± 0.1", "63.7 ± 0.4"),
    "wmt-en-de-ablation-softmax": ("26.6 ± 0.2", "63.6 ± 0.1"),
    "wmt-en-de-ablation-dynamicconv": ("26.9 ± 0.2", "62.6 ± 0.4"),
    "wmt-en-de-ablation-dynamicconv-nosoftmax": ("diverges", NONE),
    "wmt-en-de-ablation-aan-decoder": ("26.8 ± 0.1", "59.5 ± 0.1"),
    "wmt-en-de-ablation-aan-both": ("22.5 ± 0.1", "59.2 ± 2.1"),
}
_LM = {
    "billion-word-selfattention": ("26.67", "26.73"),
    "billion-word-dynamicconv": ("26.60", "26.67"),
}
_SUMMARIZATION = {
    "cnn-dailymail-selfattention": ("39.26", "15.98", "36.35"),
    "cnn-dailymail-lightconv": ("39.52", "15.97", "36.51"),
    "cnn-dailymail-dynamicconv": ("39.84", "16.25", "36.73"),
}
_NORMALIZATION = {
    "wmt-en-de-normalize-none": ("diverges",),
    "wmt-en-de-normalize-softmax": ("26.9 ± 0.2",),
    "wmt-en-de-normalize-sigmoid": ("26.6 ± 0.3",),
    "wmt-en-de-normalize-tanh": ("25.6 ± 0.2",),
    "wmt-en-de-normalize-l1": ("diverges",),
    "wmt-en-de-normalize-l2": ("26.8 ± 0.2",),
    "wmt-en-de-normalize-square": ("diverges",),
    "wmt-en-de-normalize-abs": ("diverges",),
    "wmt-en-de-normalize-abs-l1": ("diverges",),
    "wmt-en-de-normalize-abs-l2": ("26.7 ± 0.2",),
}
_DECODERS = {
    "wmt-en-de-decoder-1": ("26.1", "15.2", "423.0"),
    "wmt-en-de-decoder-3": ("27.7", "7.2", "202.3"),
    "wmt-en-de-decoder-6": ("28.5", "3.9", "110.9"),
}
# The baseline of table 1 is the work of others, with the model that is the baseline of table 3.
_OTT = {
    "wmt-en-de-selfattention": ("Self-attention, Ott et al. (2018), En-De", "210M"),
    "wmt-en-fr-selfattention": ("Self-attention, Ott et al. (2018), En-Fr", NONE),
}


def _rows(table: str, figures: Mapping[str, tuple[str, ...]]) -> tuple[Row, ...]:
    counts = {count.recipe: count for count in PAPER_COUNTS if count.table == table}
    found = []
    for recipe, printed in figures.items():
        if recipe in counts:
            count = counts[recipe]
            text = count.row
            params = NONE if count.millions is None else f"{count.millions}M"
        else:
            text, params = _OTT[recipe]
        found.append(Row(text=text, recipe=recipe, params=params, figures=printed))
    return tuple(found)


def _cited(table: str, *tasks: str) -> tuple[Row, ...]:
    """Cited rows; where the paper has a column for each task, a row for each of its figures."""
    found = []
    for text, params, *figures in CITED[table]:
        if not tasks:
            found.append(Row(text=text, recipe=None, params=params, figures=tuple(figures)))
        for task, figure in zip(tasks, figures, strict=bool(tasks)):
            # The paper's Param column is of one of its two tasks; of mt2's it cites none.
            shown = params if task == tasks[0] else NONE
            if figure != NONE:
                row = Row(text=f"{text}, {task}", recipe=None, params=shown, figures=(figure,))
                found.append(row)
    return tuple(found)


_ALL = (
    Table(
        name="mt1",
        place="section 6.1; newstest2014, tokenised BLEU, of three seeds the best on validation",
        columns=_BLEU,
        rows=_rows("mt1", _MT1),
        cited=_cited("mt1", "En-De", "En-Fr"),
        twins="wmt-en-de",
    ),
    Table(
        name="mt2",
        place="section 6.1; IWSLT tokenised and lower-case, Zh-En newstest2017 detokenised",
        columns=_BLEU,
        rows=_rows("mt2", _MT2),
        cited=_cited("mt2", "IWSLT", "Zh-En"),
        twins="iwslt-de-en",
    ),
    Table(
        name="ablation",
        place="section 6.2; newstest2013, mean and deviation of three seeds; speed with beam 4 and "
        "batches of 256 on a P100",
        columns=(_VALID_BLEU, _SPEED),
        rows=_rows("ablation", _ABLATION),
        cited=_cited("ablation"),
        twins="wmt-en-de",
    ),
    Table(
        name="lm",
        place="section 6.3; perplexity per word",
        columns=(Column(name="Valid", split="valid"), Column(name="Test")),
        rows=_rows("lm", _LM),
        cited=_cited("lm"),
        twins="billion-word",
    ),
    Table(
        name="summarization",
        place="section 6.4; F1 of ROUGE",
        columns=(
            Column(name="Rouge-1", part="rouge1"),
            Column(name="Rouge-2", part="rouge2"),
            Column(name="Rouge-l", part="rougeL"),
        ),
        rows=_rows("summarization", _SUMMARIZATION),
        cited=_cited("summarization"),
        twins="cnn-dailymail",
    ),
    Table(
        name="normalization",
        place="appendix A; newstest2013, mean and deviation of three seeds, epsilon 1e-6",
        columns=(_VALID_BLEU,),
        rows=_rows("normalization", _NORMALIZATION),
        cited=_cited("normalization"),
        twins="wmt-en-de",
    ),
    Table(
        name="decoders",
        place="appendix B; newstest2014, greedy, one sentence at a time on a P100",
        columns=(*_BLEU, _SPEED, Column(name="Tok/sec", measured="tokens/s", digits=1)),
        rows=_rows("decoders", _DECODERS),
        cited=_cited("decoders"),
        twins="wmt-en-de",
        one_by_one=True,
    ),
)
TABLES: dict[str, Table] = {table.name: table for table in _ALL}


def find_table(name: str) -> Table:
    """The table of that name; an unknown one is answered with the nearest."""
    if name in TABLES:
        return TABLES[name]
    near = difflib.get_close_matches(name, TABLES, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(TABLES)}"
    raise ValueError(f"unknown table '{name[:60]}'; {hint}")
