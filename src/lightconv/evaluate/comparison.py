"""A model on one split beside other systems: baselines, another model, a file of outputs.

Baselines need no model: the source or its first words, the target of the nearest training source,
unigrams, bigrams. A trained model must beat them.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lightconv.config import override
from lightconv.console import Display
from lightconv.data.config import TaskKind
from lightconv.data.prepared import Prepared
from lightconv.data.store import PAIR
from lightconv.data.text import read_lines
from lightconv.data.vocabulary import EOS
from lightconv.decode import DecodeConfig
from lightconv.decode.options import TextOptions
from lightconv.evaluate.bootstrap import SAMPLES, SEED, Comparison, paired_bootstrap
from lightconv.evaluate.metrics import Score, Summed
from lightconv.evaluate.system import (
    Examples,
    Forms,
    Outputs,
    Show,
    describe_search,
    find_metrics,
    of_ids,
    of_texts,
    open_model,
)
from lightconv.models import LanguageModel, Seq2Seq

MODEL = "model"
FLOAT = "float32"
# Training examples that are searched; more would take hours in a large corpus.
MOST_EXAMPLES = 200_000
# Training tokens whose bigrams are counted, which need some 50 bytes each.
MOST_TOKENS = 20_000_000
# Tokens in more than this share of the examples are ignored in the search for the nearest.
COMMON = 0.1


def copy_baseline(examples: Examples) -> Forms:
    """The sources as their own outputs."""
    prepared = examples.prepared
    texts = list(islice(prepared.texts(examples.name, PAIR[0]), examples.count))
    return of_texts(prepared, texts, tokenized=prepared.tokenized)


def nearest_baseline(examples: Examples) -> Forms:
    """For each source the target of the training example with the nearest source."""
    train = Examples(examples.prepared, "train", MOST_EXAMPLES)
    rows = find_nearest(train.sources(), examples.sources())
    return of_ids(examples.prepared.pipeline, (train.store[row][-1].tolist() for row in rows))


def find_nearest(known: Iterable[Iterable[int]], asked: Iterable[Iterable[int]]) -> list[int]:
    """For each asked sequence of ids the row of the nearest known one, the first of equals.

    Nearness is the cosine of the sets of tokens, each weighted by log(1 + examples / examples that
    have it); common tokens are ignored.
    """
    found_in: dict[int, list[int]] = defaultdict(list)
    count = 0
    for count, ids in enumerate(known, 1):
        for token in set(ids):
            found_in[token].append(count - 1)
    most = max(1.0, COMMON * count)
    postings: dict[int, tuple[NDArray[np.int64], float]] = {}
    norms = np.full(count, 1e-9)
    for token, rows in found_in.items():
        if len(rows) <= most:
            weight = float(np.log(1.0 + count / len(rows)) ** 2)
            postings[token] = np.array(rows, dtype=np.int64), weight
            norms[rows] += weight

    def nearest(tokens: set[int]) -> int:
        sums = np.zeros(count)
        for token in sorted(tokens & postings.keys()):
            rows, weight = postings[token]
            sums[rows] += weight
        return int((sums / np.sqrt(norms)).argmax())

    return [nearest(set(ids)) for ids in asked]


def lead_baseline(examples: Examples) -> Forms:
    """First sentence of every source, cut to the average words of a validation summary."""
    prepared = examples.prepared
    known = prepared.references("valid")
    count = max(1, round(sum(len(text.split()) for text in known) / max(1, len(known))))
    found = []
    for text in islice(prepared.texts(examples.name, PAIR[0]), examples.count):
        words = text.split()[:count]
        ends = [place for place, word in enumerate(words, 1) if word.endswith((".", "!", "?"))]
        found.append(" ".join(words[: ends[0]] if ends else words))
    return of_texts(prepared, found, tokenized=prepared.tokenized)


def unigram_baseline(examples: Examples) -> float:
    """Log-probability of the texts by the frequencies of training.

    EOS counts as a token; every count is increased by one.
    """
    train = Examples(examples.prepared, "train").store
    tokens = train.column(train.sides[-1]).tokens
    counts = np.bincount(tokens, minlength=examples.prepared.vocab_sizes[-1]) + 1.0
    counts[EOS] += len(train)
    logs = np.log(counts / counts.sum())
    return float(sum(logs[ids].sum() + logs[EOS] for ids in examples.sources()))


def bigram_baseline(examples: Examples) -> float:
    """Log-probability of the texts by bigrams of training with Kneser-Ney smoothing."""
    train = Examples(examples.prepared, "train").store
    column = train.column(train.sides[-1])
    rows = np.arange(max(1, int(np.searchsorted(np.cumsum(column.lengths()), MOST_TOKENS))))
    tokens, sizes = column.take(rows[: len(train)])
    asked = np.concatenate([[EOS], *([*ids, EOS] for ids in examples.sources())])
    known = np.insert(tokens.astype(np.int64), np.cumsum([0, *sizes]), EOS)
    return kneser_ney(known, asked.astype(np.int64), examples.prepared.vocab_sizes[-1])


def kneser_ney(known: NDArray[np.int64], asked: NDArray[np.int64], vocab: int) -> float:
    """Log-probability of all ids of `asked` [M] but the first, each after the one before.

    Interpolated Kneser-Ney bigrams of `known` [N]: a discounted count, and below it the number of
    different ids that an id follows, discounted towards the uniform distribution.
    """
    kinds, counts = np.unique(known[:-1] * vocab + known[1:], return_counts=True)
    once, twice = (counts == 1).sum(), (counts == 2).sum()
    discount = once / max(once + 2 * twice, 1)
    first, second = np.divmod(kinds, vocab)
    times = np.bincount(first, weights=counts, minlength=vocab)
    followers, before = (np.bincount(ids, minlength=vocab) for ids in (first, second))
    lower = np.maximum(before - discount, 0.0) + discount * np.count_nonzero(before) / vocab
    lower /= len(kinds)
    left, right = asked[:-1], asked[1:]
    pairs = left * vocab + right
    places = np.minimum(np.searchsorted(kinds, pairs), len(kinds) - 1)
    seen = np.where(kinds[places] == pairs, np.maximum(counts[places] - discount, 0.0), 0.0)
    weight = discount * followers[left] * lower[right]
    each = np.where(times[left] > 0, (seen + weight) / np.maximum(times[left], 1), lower[right])
    return float(np.log(each).sum())


BASELINES: dict[TaskKind, dict[str, Callable[[Examples], Forms]]] = {
    "translation": {"copy": copy_baseline, "nearest": nearest_baseline},
    "summarization": {"lead": lead_baseline, "nearest": nearest_baseline},
}
TEXT_BASELINES = {"unigram": unigram_baseline, "bigram": bigram_baseline}


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
        self.examples = Examples(self.prepared, self.split, self.limit)
        self.count = self.examples.count
        folder, decode = open_model(self.model, self.prepared)
        self.decode = override(decode, self.settings)
        self.folders = [folder, *(open_model(each, self.prepared)[0] for each in self.ensemble)]
        self._metrics = find_metrics(self.prepared, self.metrics) if folder.pairs else []
        if self.against is not None and self.against.is_dir():
            open_model(self.against, self.prepared)
        elif self.against is not None:
            lines = len(list(read_lines(self.against)))
            count = len(self.examples.store)
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
        examples = self.examples
        with Display() as display:
            report = Report({MODEL: [examples.evaluate_texts(model, self._shown(display, MODEL))]})
        for name, make in TEXT_BASELINES.items() if self.baselines else ():
            report.scores[name] = [examples.perplexity(make(examples))]
        return report

    def _run_pairs(self, models: Sequence[Seq2Seq], device: torch.device | str) -> Report:
        report = Report()

        def add(name: str, forms: Forms, how: Mapping[str, object]) -> None:
            report.scores[name] = self.examples.score(forms, self._metrics, how)

        report.outputs, forms, scores = self._search(MODEL, models, self.decode, self.text)
        report.texts, report.scores[MODEL] = forms.plain, scores
        for name, make in BASELINES[self.prepared.task.kind].items() if self.baselines else ():
            add(name, make(self.examples), {"floor": name})
        if self.compare:
            exact = replace(self.text, quantize="none")
            report.exact, other, scores = self._search(FLOAT, models, self.decode, exact)
            report.scores[FLOAT] = scores
            report.same = sum(a == b for a, b in zip(forms.plain, other.plain, strict=True))
            report.comparisons += self._compare(forms, other)
        if self.against is not None:
            other, how = self._find_other(self.against, device)
            add("against", other, how)
            report.comparisons += self._compare(forms, other)
        return report

    def _search(
        self, name: str, models: Sequence[Seq2Seq], decode: DecodeConfig, text: TextOptions
    ) -> tuple[Outputs, Forms, list[Score]]:
        with Display() as display:
            how = {"others": models[1:], "show": self._shown(display, name), "options": text}
            return self.examples.evaluate(models[0], decode, self._metrics, **how)

    def _shown(self, display: Display, name: str) -> Show:
        return lambda done: display.show(f"{name}: lines", done, self.count)

    def _find_other(
        self, other: Path, device: torch.device | str
    ) -> tuple[Forms, dict[str, object]]:
        """Outputs of the other system, and the fields of their signatures."""
        if not other.is_dir():
            lines = list(islice(read_lines(other), self.count))
            return of_texts(self.prepared, lines), {"system": "file"}
        folder, decode = open_model(other, self.prepared)
        model = folder.load(device)
        assert isinstance(model, Seq2Seq)
        _, forms, _ = self._search("against", [model], decode, self.text)
        return forms, describe_search(decode)

    def _compare(self, first: Forms, second: Forms) -> Iterator[Comparison]:
        """Paired bootstraps of the measures that can be resampled."""
        for metric in self._metrics:
            if isinstance(metric, Summed):
                forms = (first, second, self.examples.references)
                texts = (each.for_metric(metric) for each in forms)
                found = paired_bootstrap(metric, *texts, samples=self.samples, seed=self.seed)
                yield self.examples.sign(found, {})
