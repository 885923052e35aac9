"""ROUGE-1, ROUGE-2 and ROUGE-L of summaries, after the script ROUGE-1.5.5 with -m -a -n 2.

Words, n-grams and the union of longest common subsequences are those of the script; so is Porter's
stemmer but for its step 4. The script's list of irregular forms ("went" is "go") is in no library:
what that changes, docs/evaluation.md says, and the signature.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import TYPE_CHECKING

from lightconv.data.corpus import SENTENCE_BREAK
from lightconv.evaluate.signature import Score, Signature
from lightconv.evaluate.texts import Texts, check_texts

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer

    from lightconv.evaluate.bootstrap import Array

# Our names and those of rouge-score, whose "rougeL" takes a summary for one sentence.
KINDS = {"rouge1": "rouge1", "rouge2": "rouge2", "rougeL": "rougeLsum"}
# F1, precision and recall of each kind.
PARTS = tuple(f"{kind}{rate}" for kind in KINDS for rate in ("", "_p", "_r"))
_STEMS = 1 << 16  # as many as are remembered


@dataclass(frozen=True, kw_only=True)
class Rouge:
    """F1 of ROUGE in percent, a mean over summaries; sentences end at ` ¶ ` or at a newline."""

    name: str

    def score(self, hypotheses: Texts, *references: Texts) -> Score:
        """The value is ROUGE-L; parts: F1, precision and recall of all three in percent."""
        totals = self.statistics(hypotheses, *references).sum(axis=0)
        parts = dict(zip(PARTS, (float(total) for total in totals[:-1] / totals[-1]), strict=True))
        return Score(self.value(totals), parts, self.signature(len(hypotheses), len(references)))

    def signature(self, lines: int, references: int) -> Signature:
        """All that the script and its libraries could do otherwise, and the number of lines."""
        fields = {
            "nrefs": references,
            "case": "lc",
            "tok": "a-z0-9",
            "stem": "porter-martin",
            "irregular": "none",
            "sentences": SENTENCE_BREAK,
            "L": "union",
            "mean": "summaries",
            "rouge-score": version("rouge-score"),
            "nltk": version("nltk"),
            "lines": lines,
        }
        return Signature(self.name, fields)

    def statistics(self, hypotheses: Texts, *references: Texts) -> "Array":
        """[lines, 10]: F1, precision and recall of each kind in percent, and a one to count by."""
        import numpy

        check_texts(hypotheses, references)
        if len(references) != 1:
            raise ValueError(f"{len(references)} references for ROUGE, expected one")
        scorer = _scorer()
        rows = [
            _row(scorer, hypothesis, reference)
            for hypothesis, reference in zip(hypotheses, references[0], strict=True)
        ]
        return numpy.array(rows, dtype=numpy.float64)

    def value(self, totals: "Array") -> float:
        """[10], statistics summed over lines -> mean ROUGE-L F1 in percent."""
        return float(totals[PARTS.index("rougeL")] / totals[-1])


def _row(scorer: "RougeScorer", hypothesis: str, reference: str) -> list[float]:
    found = scorer.score(_lines(reference), _lines(hypothesis))
    rates = (found[kind] for kind in KINDS.values())
    return [
        *(100.0 * part for rate in rates for part in (rate.fmeasure, rate.precision, rate.recall)),
        1.0,
    ]


def _lines(summary: str) -> str:
    return summary.replace(SENTENCE_BREAK, "\n")


class _Words:
    """The tokeniser of the script: letters and digits of ASCII, long words stemmed."""

    def __init__(self) -> None:
        from nltk.stem.porter import PorterStemmer
        from rouge_score.tokenize import tokenize

        self._tokenize: Callable[[str, _Words], list[str]] = tokenize
        # The script has Porter's own later form of the stemmer; nltk's default is another.
        stemmer = PorterStemmer(mode=PorterStemmer.MARTIN_EXTENSIONS)
        self.stem: Callable[[str], str] = lru_cache(_STEMS)(stemmer.stem)

    def tokenize(self, text: str) -> list[str]:
        return self._tokenize(text, self)


def _scorer() -> "RougeScorer":
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ModuleNotFoundError:
        raise ValueError(
            "ROUGE needs the package rouge-score. Install it with: pip install 'lightconv[rouge]'"
        ) from None
    return RougeScorer(list(KINDS.values()), tokenizer=_Words())
