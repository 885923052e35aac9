"""Measures of texts by name (BLEU, chrF, ROUGE), and perplexity from log-probabilities.

A score carries a signature: a compact string of everything that influenced the number.

Tokenised BLEU is that of Moses's multi-bleu.perl, which reads bytes: words end at ASCII white
space only, and -lc lowers ASCII letters only. Lines are therefore given to sacrebleu as words it
cannot split further: their bytes in hexadecimal.

ROUGE is that of the script ROUGE-1.5.5 with -m -a -n 2; see docs/evaluation.md.
"""

import hashlib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from lightconv import __version__
from lightconv.console import suggest
from lightconv.data.text import SENTENCE_BREAK
from lightconv.evaluate.stems import irregular_digest, split_words
from lightconv.lazy import needed

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu.metrics.base import Metric as SacrebleuMetric
    from sacrebleu.metrics.bleu import BLEU, BLEUScore

    Array = NDArray[numpy.float64]

Texts = Sequence[str]

# A measure of recipes too, but of a model and not of texts: see `compute_perplexity`.
PERPLEXITY = "perplexity"
ORDER = 4
# Our names and those of rouge-score, whose "rougeL" takes a summary as one sentence.
_ROUGE = {"rouge1": "rouge1", "rouge2": "rouge2", "rougeL": "rougeLsum"}
# F1, precision and recall of each kind.
_ROUGE_PARTS = tuple(f"{kind}{rate}" for kind in _ROUGE for rate in ("", "_p", "_r"))


@dataclass(frozen=True)
class Signature:
    """`name|key:value|key:value`, with the version of this library at the end."""

    name: str
    fields: Mapping[str, object]

    def __post_init__(self) -> None:
        for text in (self.name, *self.fields, *map(str, self.fields.values())):
            if not text or re.search(r"[|\s]", text):
                raise ValueError(
                    f"{text!r} in a signature, expected text without white space and |"
                )

    def extend(self, fields: Mapping[str, object]) -> "Signature":
        """A copy with further fields; ValueError if one of them is set already."""
        twice = sorted(self.fields.keys() & fields)
        if twice:
            raise ValueError(f"{twice[0]} is already in the signature {self}")
        return Signature(self.name, {**self.fields, **fields})

    def __str__(self) -> str:
        pairs = {**self.fields, "lightconv": __version__}
        return "|".join([self.name, *(f"{key}:{value}" for key, value in pairs.items())])


def digest_lines(*columns: Iterable[object]) -> str:
    """The field `texts` of a signature: a digest of sources and references as they were read."""
    lines = (f"{line}\n" for column in columns for line in (*column, ""))
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Score:
    """A value, its parts and its signature; printed as one line."""

    value: float
    parts: Mapping[str, float]
    signature: Signature

    def __str__(self) -> str:
        shown = [
            f"{name} {part}" if isinstance(part, int) else f"{name} {part:.3f}"
            for name, part in self.parts.items()
        ]
        return f"{self.signature} = {self.value:.2f}" + (f" ({', '.join(shown)})" if shown else "")

    def plain(self) -> dict[str, Any]:
        """A JSON object with unrounded numbers."""
        name, text = self.signature.name, str(self.signature)
        return {"metric": name} | asdict(self) | {"signature": text}


@dataclass(frozen=True, kw_only=True)
class Metric(ABC):
    """A measure of hypotheses against one or more references each; recipes use its name."""

    name: str

    @abstractmethod
    def score(self, hypotheses: Texts, *references: Texts) -> Score:
        """The score; every list of references is as long as the hypotheses."""


class Summed(Metric):
    """A measure that is a function of sums over lines."""

    @abstractmethod
    def statistics(self, hypotheses: Texts, *references: Texts) -> "Array":
        """[lines, k], the terms of the sums."""

    @abstractmethod
    def parts(self, totals: "Array") -> dict[str, float]:
        """[k], sums of statistics -> parts of the score."""

    @abstractmethod
    def value(self, totals: "Array") -> float:
        """[k], sums of statistics -> the measure."""

    @abstractmethod
    def signature(self, lines: int, references: int) -> Signature:
        """The signature for that many lines with that many references each."""

    def score(self, hypotheses: Texts, *references: Texts) -> Score:
        totals = self.statistics(hypotheses, *references).sum(axis=0)
        signature = self.signature(len(hypotheses), len(references))
        return Score(self.value(totals), self.parts(totals), signature)


def split_compounds(line: bytes) -> bytes:
    """Sets hyphens within words apart, of a-b-c the first only, as is usual before En-De BLEU."""
    return re.sub(rb"(\S)-(\S)", rb"\1 ##AT##-##AT## \2", line)


@dataclass(frozen=True, kw_only=True)
class CorpusBLEU(Summed):
    """Corpus BLEU in percent of up to 4-grams.

    Parts are the precisions of n-grams in percent, brevity penalty and lengths.
    """

    tokenize: str = "none"
    smooth: ClassVar[str] = "none"

    def prepare(self, line: str) -> str:
        """The line as sacrebleu reads it."""
        return line

    def describe(self, fields: dict[str, str]) -> dict[str, str]:
        """Fields of sacrebleu's signature -> fields of ours."""
        return fields

    def statistics(self, hypotheses: Texts, *references: Texts) -> "Array":
        """[lines, 10]: matching n-grams, all n-grams, length, length of the closest reference."""
        import numpy

        check_texts(hypotheses, references)
        scorer = self._scorer()
        rows = []
        for texts in zip(hypotheses, *references, strict=True):
            line, *others = ([self.prepare(text)] for text in texts)
            found = scorer.corpus_score(line, others)
            rows.append([*found.counts, *found.totals, found.sys_len, found.ref_len])
        return numpy.array(rows, dtype=numpy.float64)

    def value(self, totals: "Array") -> float:
        return self._compute(totals).score

    def parts(self, totals: "Array") -> dict[str, float]:
        found = self._compute(totals)
        precisions = {f"p{n}": share for n, share in enumerate(found.precisions, 1)}
        lengths = {"hyp_len": found.sys_len, "ref_len": found.ref_len}
        return precisions | {"bp": found.bp, "ratio": found.ratio} | lengths

    def signature(self, lines: int, references: int) -> Signature:
        scorer = self._scorer()
        # sacrebleu takes the number of references from the last texts it scored.
        scorer.corpus_score([""], [[""]] * references)
        return Signature(self.name, self.describe(_fields(scorer)) | {"lines": str(lines)})

    def _scorer(self) -> "BLEU":
        from sacrebleu.metrics.bleu import BLEU

        return BLEU(tokenize=self.tokenize, smooth_method=self.smooth, force=True)

    def _compute(self, totals: "Array") -> "BLEUScore":
        from sacrebleu.metrics.bleu import BLEU

        *counts, hyp_len, ref_len = (int(total) for total in totals)
        return BLEU.compute_bleu(
            counts[:ORDER], counts[ORDER:], hyp_len, ref_len, smooth_method=self.smooth
        )


@dataclass(frozen=True, kw_only=True)
class TokenizedBLEU(CorpusBLEU):
    """BLEU of multi-bleu.perl, for tokenised text."""

    lowercase: bool = False
    compounds: Literal["kept", "split"] = "kept"

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
    """sacreBLEU of detokenised text."""

    tokenize: str = "13a"
    smooth: ClassVar[str] = "exp"


@dataclass(frozen=True, kw_only=True)
class ChrF(Metric):
    """chrF2 in percent of detokenised text: up to six characters, recall weighs double."""

    def score(self, hypotheses: Texts, *references: Texts) -> Score:
        from sacrebleu.metrics.chrf import CHRF

        check_texts(hypotheses, references)
        scorer = CHRF()
        found = scorer.corpus_score(hypotheses, references)
        fields = _fields(scorer) | {"beta": str(found.beta), "lines": str(len(hypotheses))}
        return Score(found.score, {}, Signature(self.name, fields))


def _fields(scorer: "SacrebleuMetric") -> dict[str, str]:
    return dict(pair.split(":", 1) for pair in str(scorer.get_signature()).split("|"))


@dataclass(frozen=True, kw_only=True)
class Rouge(Summed):
    """F1 of ROUGE-L in percent, a mean over summaries; sentences end at ` ¶ ` or at a newline.

    Parts are F1, precision and recall of ROUGE-1, -2 and -L in percent.
    """

    def signature(self, lines: int, references: int) -> Signature:
        fields = {
            "nrefs": references,
            "case": "lc",
            "tok": "a-z0-9",
            "stem": "rouge-1.5.5",
            "irregular": f"wordnet-2.0-{irregular_digest()}",
            "sentences": SENTENCE_BREAK,
            "L": "union",
            "mean": "summaries",
            "rouge-score": version("rouge-score"),
            "lines": lines,
        }
        return Signature(self.name, fields)

    def statistics(self, hypotheses: Texts, *references: Texts) -> "Array":
        """[lines, 10]: F1, precision and recall of each kind in percent, and 1."""
        import numpy

        check_texts(hypotheses, references)
        if len(references) != 1:
            raise ValueError(f"{len(references)} references for ROUGE, expected one")
        scorer = _rouge_scorer()
        rows = []
        for texts in zip(references[0], hypotheses, strict=True):
            found = scorer.score(*(text.replace(SENTENCE_BREAK, "\n") for text in texts))
            rates = [found[kind] for kind in _ROUGE.values()]
            shares = [x for rate in rates for x in (rate.fmeasure, rate.precision, rate.recall)]
            rows.append([*(100.0 * share for share in shares), 1.0])
        return numpy.array(rows, dtype=numpy.float64)

    def value(self, totals: "Array") -> float:
        return float(totals[_ROUGE_PARTS.index("rougeL")] / totals[-1])

    def parts(self, totals: "Array") -> dict[str, float]:
        means = (float(total) for total in totals[:-1] / totals[-1])
        return dict(zip(_ROUGE_PARTS, means, strict=True))


class _Words:
    tokenize = staticmethod(split_words)


def _rouge_scorer() -> "RougeScorer":
    with needed("ROUGE", "rouge-score", "rouge"):
        from rouge_score.rouge_scorer import RougeScorer
    return RougeScorer(list(_ROUGE.values()), tokenizer=_Words())


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


def find_metric(name: str, target_lang: str | None = None) -> Metric:
    """The measure of that name; sacrebleu for Chinese (zh, zh_CN) has its own tokeniser."""
    if name == PERPLEXITY:
        raise ValueError(
            f"{PERPLEXITY} is a measure of a model, not of texts, expected one of "
            f"{', '.join(METRICS)}"
        )
    if name not in METRICS:
        raise ValueError(f"unknown metric '{name}'{suggest(name, METRICS)}")
    language = re.split("[-_]", (target_lang or "").lower())[0]
    return METRICS["sacrebleu_zh" if (name, language) == ("sacrebleu", "zh") else name]


def compute_perplexity(
    log_prob: float, *, lines: int, subwords: int, words: int, eos: bool = True
) -> Score:
    """Perplexity per word; parts: per word and per subword, bits of each, and the counts.

    log_prob  sum of the natural logarithms of all tokens that count
    lines     number of texts, each with one EOS
    subwords  number of subwords of all lines without EOS; words likewise
    eos       whether `log_prob` has the EOS of each line, which then counts as word and subword
    """
    if math.isnan(log_prob) or log_prob > 0.0:
        raise ValueError(
            f"log_prob={log_prob}, expected a sum of logarithms of probabilities, at most 0. "
            "Is it a loss? Turn its sign"
        )
    if lines < 1:
        raise ValueError(f"lines={lines}, expected at least one")
    least = 0 if eos else 1
    for name, count in {"words": words, "subwords": subwords}.items():
        if count < least:
            raise ValueError(f"{name}={count}, expected at least {least} with eos={eos}")
    if subwords < words:
        raise ValueError(f"subwords={subwords}, expected at least as many as words={words}")
    ends = lines if eos else 0
    counted = {"subword": subwords + ends, "word": words + ends}
    nats = {unit: -log_prob / count for unit, count in counted.items()}
    parts: dict[str, float] = {
        **{f"per_{unit}": _exp(nat) for unit, nat in nats.items()},
        **{f"bits_per_{unit}": nat / math.log(2.0) for unit, nat in nats.items()},
        **{f"{unit}s": count for unit, count in counted.items()},
        "log_prob": float(log_prob),
    }
    fields = {"unit": "word", "base": "e", "eos": "counted" if eos else "left-out", "lines": lines}
    return Score(parts["per_word"], parts, Signature(PERPLEXITY, fields))


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def check_texts(hypotheses: Texts, references: Sequence[Texts]) -> None:
    """Raises ValueError unless each hypothesis has one text in each of the references."""
    if not references:
        raise ValueError("no references, expected one text or more for each hypothesis")
    one = len(references) == 1
    named = {f"references {n}" if not one else "references": t for n, t in enumerate(references, 1)}
    for name, texts in {"hypotheses": hypotheses, **named}.items():
        if isinstance(texts, str | bytes):
            raise ValueError(f"{name} is one text, expected a list of texts")
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValueError(f"{name}[{number}] is {type(text).__name__}, expected a text")
        if len(texts) != len(hypotheses):
            raise ValueError(
                f"{len(hypotheses)} hypotheses and {len(texts)} {name}, expected the same number. "
                "An empty hypothesis is an empty text, not a missing one"
            )
    if not hypotheses:
        raise ValueError("0 hypotheses and 0 references, expected at least one of each")
