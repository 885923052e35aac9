"""Tuning on validation data: the search, and for a run the number of averaged checkpoints.

A length penalty only ranks finished hypotheses, so one search serves every alpha. Measures are
functions of sums over lines, so each hypothesis is counted once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import product
from pathlib import Path

import numpy
import torch

from lightconv.config import override, to_dict
from lightconv.console import tell
from lightconv.data.prepared import Prepared
from lightconv.decode import DecodeConfig, Hypothesis
from lightconv.decode.options import read_decode
from lightconv.decode.search import rank
from lightconv.evaluate.metrics import METRICS, PERPLEXITY, Summed, find_metric
from lightconv.evaluate.system import Examples, check_data, of_ids, open_model
from lightconv.models import LanguageModel, Seq2Seq, Seq2SeqConfig
from lightconv.train.run import Run, is_run

ALPHAS = (*(i / 10 for i in range(11)), 1.2, 1.4, 1.6, 1.8, 2.0)
# Numbers of checkpoints to try averaging, as far as they exist.
COUNTS = (1, 2, 3, 5, 8, 10, 15, 20)


@dataclass(frozen=True)
class Trial:
    """A search and its value, more is better; `averaged` are the steps of the checkpoints."""

    config: DecodeConfig
    value: float
    averaged: tuple[int, ...] = ()


@dataclass
class Tuner:
    """Opens and checks a model folder, or a run, and the data to tune it on.

    alphas  length penalties to try
    counts  numbers of checkpoints to average; only for a run
    grid    values to try for other fields of the search, written as for --set
    limit   number of examples, the first ones of the split
    """

    folder: Path
    data: Path
    _: KW_ONLY
    split: str = "valid"
    alphas: Sequence[float] = ()
    counts: Sequence[int] = ()
    grid: Mapping[str, Sequence[str]] = field(default_factory=dict)
    metric: str | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        folder = self.folder
        self.run = Run.open(folder) if is_run(folder) else None
        if self.counts and self.run is None:
            raise ValueError(f"--counts: {folder} is not a run, expected one with checkpoints")
        self.prepared = Prepared.open(self.data)
        self.examples = Examples(self.prepared, self.split, self.limit)
        if self.run is not None:
            self.decode = read_decode(folder, self.run.recipe_tables, self.run.model_config)
            pairs = isinstance(self.run.model_config, Seq2SeqConfig)
            check_data(folder, self.prepared, pairs=pairs)
        else:
            self._model, self.decode = open_model(folder, self.prepared)
            pairs = self._model.pairs
            if not pairs:
                raise ValueError(
                    f"{folder} is a language model, whose search is not scored, expected a run: "
                    "the number of its checkpoints to average can be chosen"
                )
        self._metric = choose_metric(self.prepared, self.metric) if pairs else None
        values = product(*([f"{name}={each}" for each in v] for name, v in self.grid.items()))
        self._told: set[str] = set()
        self.configs = [override(self.decode, settings) for settings in values]

    def trials(self, device: torch.device | str = "cpu") -> Iterator[Trial]:
        """Tries every model with every search."""
        for steps, model in self._models(device):
            for trial in self._try(model):
                yield replace(trial, averaged=steps)

    def best(self, trials: Sequence[Trial]) -> Trial:
        """The highest value; among equals the alpha nearest to the present one."""
        alpha = self.decode.alpha
        return max(trials, key=lambda trial: (trial.value, -abs(trial.config.alpha - alpha)))

    def write(self, best: Trial) -> None:
        """Writes a choice, and how it was made, into the model folder, RUN/model for a run."""
        tuned = {
            "metric": PERPLEXITY if self._metric is None else self._metric.name,
            "value": abs(best.value),
            "split": self.split,
            "data": self.prepared.contents.splits[self.split].digest,
            "texts": self.examples.digest,
            "lines": self.examples.count,
            "averaged": list(best.averaged),
        }
        tables = {"decode": to_dict(best.config), "tuned": tuned}
        if self.run is None:
            self._model.set_tables(tables)
        else:
            self.run.export(self.run.average(best.averaged), tables=tables, overwrite=True)

    def _models(
        self, device: torch.device | str
    ) -> Iterator[tuple[tuple[int, ...], Seq2Seq | LanguageModel]]:
        """The model, or averages of checkpoints with their steps."""
        if self.run is None:
            tell(f"trying {self._model.path}")
            yield (), self._model.load(device)
            return
        known, counts = self.run.regular_steps(), self.counts or COUNTS
        wanted = [count for count in counts if count <= len(known)]
        if not wanted:
            raise ValueError(
                f"{self.run.path} has {len(known)} regular checkpoints, expected at least "
                f"{min(counts)}"
            )
        for count in wanted:
            tell(f"trying the last {count} of the checkpoints")
            yield tuple(known[-count:]), self.run.average(known[-count:]).to(device)

    def _try(self, model: Seq2Seq | LanguageModel) -> Iterator[Trial]:
        if isinstance(model, LanguageModel):
            yield Trial(self.decode, -self.examples.evaluate_texts(model).value)
            return
        assert self._metric is not None
        for config in self.configs:
            found = self.examples.search(model, config)
            if found.decoder not in self._told:
                self._told.add(found.decoder)
                tell(f"note: {found.decoder}")
            alphas = self.alphas or ALPHAS
            yield from try_alphas(self.examples, found.hypotheses, config, alphas, self._metric)


def choose_metric(prepared: Prepared, name: str | None) -> Summed:
    """The measure of that name, else that of the task; it must be a function of sums over lines."""
    task = prepared.task
    own = task.metric if isinstance(METRICS.get(task.metric), Summed) else "sacrebleu"
    found = find_metric(name or own, task.target_lang)
    if not isinstance(found, Summed):
        raise ValueError(f"--metric {found.name} is not a sum over lines, expected another measure")
    return found


def try_alphas(
    examples: Examples,
    hypotheses: Sequence[list[Hypothesis]],
    config: DecodeConfig,
    alphas: Sequence[float],
    metric: Summed,
) -> Iterator[Trial]:
    """Values of all length penalties from the hypotheses of one search with `config`."""
    # Statistics [places, lines, k]; a line with fewer hypotheses repeats its last one.
    columns = []
    for place in range(max(map(len, hypotheses))):
        ids = [each[min(place, len(each) - 1)].tokens for each in hypotheses]
        texts = of_ids(examples.prepared.pipeline, ids).for_metric(metric)
        columns.append(metric.statistics(texts, examples.references.for_metric(metric)))
    statistics = numpy.stack(columns)
    for alpha in alphas:
        new = replace(config, alpha=alpha)
        best = [rank(each, config, new)[0].tokens for each in hypotheses]
        pairs = zip(hypotheses, best, strict=True)
        chosen = [[one.tokens for one in each].index(tokens) for each, tokens in pairs]
        totals = statistics[chosen, numpy.arange(len(chosen))].sum(axis=0)
        yield Trial(new, metric.value(totals))
