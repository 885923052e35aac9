"""TABLES: the paper's seven tables."""

from dataclasses import dataclass
from typing import Literal

from lightconv.console import suggest
from lightconv.paper import rows
from lightconv.paper.cited import CITED
from lightconv.paper.rows import NONE, Row

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
    cited: tuple[Row, ...]
    twins: str = "wmt-en-de"
    one_by_one: bool = False

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that are scored."""
        return tuple(dict.fromkeys(c.split for c in self.columns if c.measured == "score"))

    @property
    def by_recipe(self) -> dict[str, Row]:
        """Rows by the names of their recipes."""
        return {row.recipe: row for row in self.rows if row.recipe is not None}

    @property
    def twin_rows(self) -> dict[str, Row]:
        """Rows by the recipes of their small twins; rows of another task have none."""
        task = _STAND_INS.get(self.twins, self.twins)
        return {
            f"{task}{name.removeprefix(self.twins)}-small": row
            for name, row in self.by_recipe.items()
            if name.startswith(f"{self.twins}-")
        }


def _cited(table: str, *tasks: str) -> tuple[Row, ...]:
    """Cited rows; a row for each task if the paper has a column for each."""
    found = []
    for text, params, *figures in CITED[table]:
        if not tasks:
            found.append(Row(text, None, params, None, tuple(figures)))
        for task, figure in zip(tasks, figures, strict=bool(tasks)):
            # Printed parameters are those of the first task.
            shown = params if task == tasks[0] else NONE
            if figure != NONE:
                found.append(Row(f"{text}, {task}", None, shown, None, (figure,)))
    return tuple(found)


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
        cited=_cited("mt1", "En-De", "En-Fr"),
    ),
    Table(
        name="mt2",
        title="Table 2: translation, IWSLT De-En and WMT Zh-En",
        place="section 6.1; IWSLT tokenised and lower-case, Zh-En newstest2017 detokenised",
        columns=(_BLEU,),
        rows=rows.MT2,
        cited=_cited("mt2", "IWSLT", "Zh-En"),
        twins="iwslt-de-en",
    ),
    Table(
        name="ablation",
        title="Table 3: ablation on WMT En-De",
        place="section 6.2; newstest2013, mean and deviation of three seeds; speed with beam 4 and "
        "batches of 256 on a P100",
        columns=(_VALID_BLEU, _SPEED),
        rows=rows.ABLATION,
        cited=_cited("ablation"),
    ),
    Table(
        name="lm",
        title="Table 4: language modelling, Billion Word",
        place="section 6.3; perplexity per word",
        columns=(Column(name="Valid", split="valid"), Column(name="Test")),
        rows=rows.LM,
        cited=_cited("lm"),
        twins="billion-word",
    ),
    Table(
        name="summarization",
        title="Table 5: summarisation, CNN-DailyMail",
        place="section 6.4; F1 of ROUGE",
        columns=tuple(Column(name=f"Rouge-{n.lower()}", part=f"rouge{n}") for n in "12L"),
        rows=rows.SUMMARIZATION,
        cited=_cited("summarization"),
        twins="cnn-dailymail",
    ),
    Table(
        name="normalization",
        title="Table 6: alternatives to the softmax, WMT En-De",
        place="appendix A; newstest2013, mean and deviation of three seeds, epsilon 1e-6",
        columns=(_VALID_BLEU,),
        rows=rows.NORMALIZATION,
        cited=(),
    ),
    Table(
        name="decoders",
        title="Table 7: small decoders, WMT En-De",
        place="appendix B; newstest2014, greedy, one sentence at a time on a P100",
        columns=(_BLEU, _SPEED, Column(name="Tok/sec", measured="tokens/s", digits=1)),
        rows=rows.DECODERS,
        cited=_cited("decoders"),
        one_by_one=True,
    ),
)
TABLES: dict[str, Table] = {table.name: table for table in _ALL}


def find_table(name: str) -> Table:
    """The table of this name; ValueError suggests the nearest."""
    if name not in TABLES:
        raise ValueError(f"unknown table '{name[:60]}'{suggest(name, TABLES)}")
    return TABLES[name]
