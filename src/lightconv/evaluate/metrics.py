"""The measures of texts by name: those that recipes name, and a few more."""

import difflib
import re
from typing import Protocol

from lightconv.evaluate.bleu import ChrF, SacreBLEU, TokenizedBLEU
from lightconv.evaluate.rouge import Rouge
from lightconv.evaluate.signature import Score
from lightconv.evaluate.texts import Texts

# Named by recipes too, but of a model and not of texts: see `compute_perplexity`.
PERPLEXITY = "perplexity"


class Metric(Protocol):
    """A measure of hypotheses, each against one reference or several."""

    @property
    def name(self) -> str:
        """As recipes have it."""

    def score(self, hypotheses: Texts, *references: Texts) -> Score:
        """One list of references, or several that are each as long as the hypotheses."""


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        TokenizedBLEU(name="tokenized_bleu"),
        TokenizedBLEU(name="tokenized_bleu_lowercase", lowercase=True),
        TokenizedBLEU(name="tokenized_bleu_compounds", compounds="split"),
        SacreBLEU(name="sacrebleu"),
        SacreBLEU(name="sacrebleu_zh", tokenize="zh"),
        ChrF(name="chrf"),
        Rouge(name="rouge"),
    )
}


# Of a measure and a target language, the form that is made for it.
_FORMS = {("sacrebleu", "zh"): "sacrebleu_zh"}


def find_metric(name: str, target_lang: str | None = None) -> Metric:
    """The measure of that name; for a language that needs a form of its own (zh, zh_CN), that."""
    if name == PERPLEXITY:
        raise ValueError(
            f"{PERPLEXITY} is of a model, not of texts, expected one of {', '.join(METRICS)}"
        )
    if name not in METRICS:
        near = difflib.get_close_matches(name, METRICS, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(METRICS)}"
        raise ValueError(f"unknown metric '{name}'{hint}")
    language = re.split("[-_]", (target_lang or "").lower())[0]
    return METRICS[_FORMS.get((name, language), name)]
