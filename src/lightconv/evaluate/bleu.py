"""BLEU and chrF by sacrebleu: of tokenised text as Moses's multi-bleu.perl has it, of plain text.

multi-bleu.perl reads bytes: it cuts words at ASCII white space only, and its -lc knows only ASCII
letters. So a line goes to sacrebleu as words it cannot cut further: their bytes in hexadecimal.
"""

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from lightconv.evaluate.signature import Score, Signature
from lightconv.evaluate.texts import Texts, check_texts

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as SacrebleuMetric
    from sacrebleu.metrics.bleu import BLEU, BLEUScore

    from lightconv.evaluate.bootstrap import Array

ORDER = 4
# Matches do not overlap: of a-b-c only the first hyphen is set apart, of aa-bb-cc both are.
_COMPOUND = re.compile(rb"(\S)-(\S)")
_SET_APART = rb"\1 ##AT##-##AT## \2"


def split_compounds(line: bytes) -> bytes:
    """Sets hyphens within words apart, as the usual one-liner before En-De BLEU does."""
    return _COMPOUND.sub(_SET_APART, line)


@dataclass(frozen=True, kw_only=True)
class CorpusBLEU(ABC):
    """Corpus BLEU of up to 4-grams, against one reference or several."""

    name: str
    smooth: ClassVar[str]

    @abstractmethod
    def scorer(self) -> "BLEU":
        """sacrebleu's object."""

    @abstractmethod
    def prepare(self, line: str) -> str:
        """A line as sacrebleu is to see it."""

    @abstractmethod
    def describe(self, fields: dict[str, str]) -> dict[str, str]:
        """The fields of sacrebleu's own signature and what it does not know of."""

    def score(self, hypotheses: Texts, *references: Texts) -> Score:
        """BLEU in percent; parts: precision of n-grams in percent, brevity penalty, lengths."""
        found = self._compute(self.statistics(hypotheses, *references).sum(axis=0))
        parts = {f"p{n}": found.precisions[n - 1] for n in range(1, ORDER + 1)} | {
            "bp": found.bp,
            "ratio": found.ratio,
            "hyp_len": found.sys_len,
            "ref_len": found.ref_len,
        }
        return Score(found.score, parts, self.signature(len(hypotheses), len(references)))

    def statistics(self, hypotheses: Texts, *references: Texts) -> "Array":
        """[lines, 10]: n-grams that match, all n-grams, length, length of the closest reference."""
        import numpy

        check_texts(hypotheses, references)
        scorer = self.scorer()
        rows = []
        for hypothesis, *others in zip(hypotheses, *references, strict=True):
            found = scorer.corpus_score(
                [self.prepare(hypothesis)], [[self.prepare(other)] for other in others]
            )
            rows.append([*found.counts, *found.totals, found.sys_len, found.ref_len])
        return numpy.array(rows, dtype=numpy.float64)

    def value(self, totals: "Array") -> float:
        """[10], statistics summed over lines -> BLEU in percent."""
        return self._compute(totals).score

    def signature(self, lines: int, references: int) -> Signature:
        """sacrebleu's own, put right, and the number of lines."""
        scorer = self.scorer()
        # It learns how many references there are from those it is given.
        scorer.corpus_score([""], [[""]] * references)
        return Signature(self.name, self.describe(_fields(scorer)) | {"lines": str(lines)})

    def _compute(self, totals: "Array") -> "BLEUScore":
        from sacrebleu.metrics.bleu import BLEU

        *counts, hyp_len, ref_len = (int(total) for total in totals)
        return BLEU.compute_bleu(
            counts[:ORDER], counts[ORDER:], hyp_len, ref_len, smooth_method=self.smooth
        )


@dataclass(frozen=True, kw_only=True)
class TokenizedBLEU(CorpusBLEU):
    """What multi-bleu.perl prints, for text that is tokenised already."""

    smooth: ClassVar[str] = "none"
    lowercase: bool = False
    compounds: Literal["kept", "split"] = "kept"

    def scorer(self) -> "BLEU":
        from sacrebleu.metrics.bleu import BLEU

        return BLEU(tokenize="none", smooth_method=self.smooth, force=True)

    def prepare(self, line: str) -> str:
        raw = line.encode(errors="surrogatepass")
        if self.lowercase:
            raw = raw.lower()
        if self.compounds == "split":
            raw = split_compounds(raw)
        return " ".join(word.hex() for word in raw.split())

    def describe(self, fields: dict[str, str]) -> dict[str, str]:
        return fields | {
            "case": "lc-ascii" if self.lowercase else "mixed",
            "tok": "ascii-space",
            "compounds": self.compounds,
        }


@dataclass(frozen=True, kw_only=True)
class SacreBLEU(CorpusBLEU):
    """sacreBLEU of detokenised text, by the tokeniser of that name."""

    smooth: ClassVar[str] = "exp"
    tokenize: str = "13a"

    def scorer(self) -> "BLEU":
        from sacrebleu.metrics.bleu import BLEU

        return BLEU(tokenize=self.tokenize, smooth_method=self.smooth)

    def prepare(self, line: str) -> str:
        return line

    def describe(self, fields: dict[str, str]) -> dict[str, str]:
        return fields


@dataclass(frozen=True, kw_only=True)
class ChrF:
    """chrF of detokenised text: n-grams of up to six characters, recall weighs double."""

    name: str

    def score(self, hypotheses: Texts, *references: Texts) -> Score:
        """chrF in percent."""
        from sacrebleu.metrics.chrf import CHRF

        check_texts(hypotheses, references)
        scorer = CHRF()
        found = scorer.corpus_score(hypotheses, references)
        fields = _fields(scorer) | {"beta": str(found.beta), "lines": str(len(hypotheses))}
        return Score(found.score, {}, Signature(self.name, fields))


def _fields(scorer: "SacrebleuMetric") -> dict[str, str]:
    """sacrebleu's signature; `version` is its own."""
    return dict(pair.split(":", 1) for pair in str(scorer.get_signature()).split("|"))
