"""A model on one split beside other systems: baselines, another model, a file of outputs.

Baselines need no model: copy the source, the target of the nearest training source, unigrams. A
trained model must beat them.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lightconv.config import override
from lightconv.console import Display
from lightconv.data.prepared import Prepared
from lightconv.data.store import PAIR
from lightconv.data.text import read_lines
from lightconv.data.vocabulary import EOS
from lightconv.decode import DecodeConfig
from lightconv.decode.options import TextOptions
from lightconv.evaluate.bootstrap import SAMPLES, SEED, Comparison, paired_bootstrap
from lightconv.evaluate.metrics import Summed
from lightconv.evaluate.signature import Score
from lightconv.evaluate.system import (
    Forms,
    Outputs,
    Show,
    count_lines,
    describe_search,
    evaluate_pairs,
    evaluate_texts,
    find_metrics,
    of_ids,
    of_references,
    of_texts,
    open_model,
    score_forms,
    sign,
    sign_perplexity,
)
from lightconv.models import LanguageModel, Seq2Seq

MODEL = "model"
FLOAT = "float32"
# Training examples that are searched; more would take hours in a large corpus.
MOST_EXAMPLES = 200_000
# Tokens in more than this share of the examples are ignored in the search for the nearest.
COMMON = 0.1

Ids = NDArray[np.int64]


def copy_baseline(prepared: Prepared, split: str, most: int | None = None) -> Forms:
    """The first `most` sources as their own outputs."""
    texts = list(islice(prepared.texts(split, PAIR[0]), most))
    return of_texts(prepared, texts, tokenized=prepared.tokenized)


def nearest_baseline(prepared: Prepared, split: str, most: int | None = None) -> Forms:
    """For each source the target of the training example with the nearest source."""
    train = prepared.store("train")
    rows = find_nearest(_sources(prepared, "train", MOST_EXAMPLES), _sources(prepared, split, most))
    return of_ids(prepared.pipeline, (train[row][-1].tolist() for row in rows))


def find_nearest(known: Sequence[Ids], asked: Sequence[Ids]) -> list[int]:
    """For each asked sequence [n] of ids the row of the nearest known one, the first of equals.

    Nearness is the cosine of the sets of tokens, each weighted by log(1 + examples / examples that
    have it); common tokens are ignored.
    """
    found_in: dict[int, list[int]] = defaultdict(list)
    for row, ids in enumerate(known):
        for token in set(ids.tolist()):
            found_in[token].append(row)
    most = max(1.0, COMMON * len(known))
    postings: dict[int, tuple[Ids, float]] = {}
    norms = np.full(len(known), 1e-9)
    for token, rows in found_in.items():
        if len(rows) <= most:
            weight = float(np.log(1.0 + len(known) / len(rows)) ** 2)
            postings[token] = np.array(rows, dtype=np.int64), weight
            norms[rows] += weight

    def nearest(tokens: set[int]) -> int:
        sums = np.zeros(len(norms))
        for token in sorted(tokens & postings.keys()):
            rows, weight = postings[token]
            sums[rows] += weight
        return int((sums / np.sqrt(norms)).argmax())

    return [nearest(set(ids.tolist())) for ids in asked]


def unigram_baseline(prepared: Prepared, split: str, most: int | None = None) -> float:
    """Log-probability of a split's first `most` texts by the frequencies of training.

    EOS counts as a token; every count is increased by one.
    """
    train, store = prepared.store("train"), prepared.store(split)
    side = train.sides[-1]
    counts = np.bincount(train.column(side).tokens, minlength=prepared.vocab_sizes[-1]) + 1.0
    counts[EOS] += len(train)
    logs = np.log(counts / counts.sum())
    rows = range(count_lines(prepared, split, most))
    return float(sum(logs[store[row][-1]].sum() + logs[EOS] for row in rows))


def _sources(prepared: Prepared, split: str, most: int | None) -> list[Ids]:
    store = prepared.store(split)
    return [store[row][0].astype(np.int64) for row in range(count_lines(prepared, split, most))]


BASELINES = {"copy": copy_baseline, "nearest": nearest_baseline}


@dataclass
class Report:
    """Scores by system, the model first, and comparisons.

    outputs, texts  of the model's search; `exact` are the outputs in float32 of `compare`
    same            number of texts that are the same in float32
    """

    scores: dict[str, list[Score]] = field(default_factory=dict)
    comparisons: list[Comparison] = field(default_factory=list)
    outputs: Outputs | None = None
    exact: Outputs | None = None
    texts: Sequence[str] = ()
    same: int = 0


@dataclass(kw_only=True)
class Evaluation:
    """Opens and checks a model folder and prepared data; `run` decodes and scores.

    settings   changes of the model's search, as for --set
    metrics    names of measures; default: that of the task and the usual ones
    against    another model folder, or a file of outputs, one per line
    ensemble   other models of this data; the mean of all probabilities is searched
    compare    decode in float32 too, to see the cost of `text.quantize`
    baselines  score systems without a model too
    limit      number of examples, the first ones of the split
    """

    model: Path
    data: Path
    split: str = "test"
    settings: Sequence[str] = ()
    metrics: Sequence[str] = ()
    against: Path | None = None
    ensemble: Sequence[Path] = ()
    compare: bool = False
    baselines: bool = False
    limit: int | None = None
    samples: int = SAMPLES
    seed: int = SEED
    text: TextOptions = field(default_factory=TextOptions)

    def __post_init__(self) -> None:
        self.prepared = Prepared.open(self.data)
        self.count = count_lines(self.prepared, self.split, self.limit)
        folder, decode = open_model(self.model, self.prepared)
        self.decode = override(decode, self.settings)
        self.folders = [folder, *(open_model(each, self.prepared)[0] for each in self.ensemble)]
        self._metrics = find_metrics(self.prepared, self.metrics) if folder.pairs else []
        if self.against is not None and self.against.is_dir():
            open_model(self.against, self.prepared)
        elif self.against is not None:
            lines = len(list(read_lines(self.against)))
            count = len(self.prepared.store(self.split))
            if lines != count:
                raise ValueError(
                    f"{self.against} has {lines} lines, expected {count}, one for each example of "
                    f"{self.split}"
                )

    def run(self, device: torch.device | str = "cpu") -> Report:
        """Decodes, scores and compares."""
        loaded = [folder.load(device) for folder in self.folders]
        models = [model for model in loaded if isinstance(model, Seq2Seq)]
        return self._run_pairs(models, device) if models else self._run_texts(loaded[0])

    def _run_texts(self, model: Seq2Seq | LanguageModel) -> Report:
        assert isinstance(model, LanguageModel)
        with Display() as display:
            show = self._shown(display, MODEL)
            score = evaluate_texts(model, self.prepared, self.split, most=self.limit, show=show)
        report = Report({MODEL: [score]})
        if self.baselines:
            total = unigram_baseline(self.prepared, self.split, self.limit)
            score = sign_perplexity(self.prepared, self.split, total, self.count)
            report.scores["unigram"] = [score]
        return report

    def _run_pairs(self, models: Sequence[Seq2Seq], device: torch.device | str) -> Report:
        report = Report()
        references = of_references(self.prepared, self.split).first(self.count)

        def add(name: str, forms: Forms, how: Mapping[str, object]) -> None:
            report.scores[name] = score_forms(
                self.prepared, self.split, forms, self._metrics, how, references
            )

        report.outputs, forms, scores = self._search(MODEL, models, self.decode, self.text)
        report.texts, report.scores[MODEL] = forms.plain, scores
        if self.baselines:
            for name, make in BASELINES.items():
                add(name, make(self.prepared, self.split, self.limit), {"floor": name})
        if self.compare:
            exact = replace(self.text, quantize="none")
            report.exact, other, scores = self._search(FLOAT, models, self.decode, exact)
            report.scores[FLOAT] = scores
            report.same = sum(a == b for a, b in zip(forms.plain, other.plain, strict=True))
            report.comparisons += self._compare(forms, other, references)
        if self.against is not None:
            other, how = self._find_other(self.against, device)
            add("against", other, how)
            report.comparisons += self._compare(forms, other, references)
        return report

    def _search(
        self, name: str, models: Sequence[Seq2Seq], decode: DecodeConfig, text: TextOptions
    ) -> tuple[Outputs, Forms, list[Score]]:
        where = (models[0], self.prepared, self.split, decode, self._metrics)
        with Display() as display:
            show, others = self._shown(display, name), models[1:]
            return evaluate_pairs(*where, others=others, most=self.limit, show=show, options=text)

    def _shown(self, display: Display, name: str) -> Show:
        return lambda done: display.show(f"{name}: lines", done, self.count)

    def _find_other(
        self, other: Path, device: torch.device | str
    ) -> tuple[Forms, dict[str, object]]:
        """Outputs of the other system, and the fields of their signatures."""
        if not other.is_dir():
            forms = of_texts(self.prepared, list(read_lines(other)))
            return forms.first(self.limit), {"system": "file"}
        folder, decode = open_model(other, self.prepared)
        model = folder.load(device)
        assert isinstance(model, Seq2Seq)
        _, forms, _ = self._search("against", [model], decode, self.text)
        return forms, describe_search(decode)

    def _compare(self, first: Forms, second: Forms, references: Forms) -> Iterator[Comparison]:
        """Paired bootstraps of the measures that can be resampled."""
        for metric in self._metrics:
            if isinstance(metric, Summed):
                texts = (each.for_metric(metric) for each in (first, second, references))
                found = paired_bootstrap(metric, *texts, samples=self.samples, seed=self.seed)
                yield sign(found, self.prepared, self.split, {})
