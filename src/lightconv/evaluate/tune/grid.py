"""Searches on validation data, one for each setting, and all length penalties from each of them.

A length penalty only says which of the finished hypotheses is best, so one search knows the answer
for every alpha. Measures are sums over lines: each hypothesis is counted once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from lightconv.config import override
from lightconv.data.prepared import Prepared
from lightconv.decode import DecodeConfig
from lightconv.decode.beam import Hypothesis
from lightconv.decode.search import rank
from lightconv.evaluate.bootstrap import Summed
from lightconv.evaluate.forms import Forms, of_ids
from lightconv.evaluate.metrics import Metric, find_metric
from lightconv.evaluate.system import find_metrics

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

# From no penalty to twice the mean's.
ALPHAS = tuple(round(0.1 * i, 1) for i in range(21))

# A configuration -> for each source all hypotheses of its search.
Searching = Callable[[DecodeConfig], list[list[Hypothesis]]]


@dataclass(frozen=True)
class Trial:
    """A configuration and what it scores; `averaged` are the steps of the model, if it has such."""

    config: DecodeConfig
    value: float
    averaged: tuple[int, ...] = ()


def choose_metric(prepared: Prepared, name: str | None) -> Summed:
    """The measure asked for, else that of the task: of those that are sums over lines."""
    names = [] if name is None else [name]
    found: Metric = find_metrics(prepared, names)[0]
    if not isinstance(found, Summed):
        if name is not None:
            raise ValueError(f"{found.name} is no sum over lines, expected another measure")
        found = find_metric("sacrebleu", prepared.task.target_lang)
        assert isinstance(found, Summed)
    return found


def tune_search(
    search: Searching,
    prepared: Prepared,
    references: Forms,
    metric: Summed,
    config: DecodeConfig,
    *,
    alphas: Sequence[float] = ALPHAS,
    grid: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[Trial]:
    """Every setting of the grid with every alpha.

    grid  names of other fields, and the values to try for each, written as for --set
    """
    names = list(grid or {})
    for values in product(*(grid or {}).values()):
        settings = [f"{name}={value}" for name, value in zip(names, values, strict=True)]
        setting = override(config, settings)
        found = search(setting)
        yield from _each_alpha(found, prepared, references, metric, setting, alphas)


def best_trial(trials: Sequence[Trial], alpha: float) -> Trial:
    """The highest; of equally high ones, the one whose alpha is nearest to this."""
    return max(trials, key=lambda trial: (trial.value, -abs(trial.config.alpha - alpha)))


def _each_alpha(
    found: list[list[Hypothesis]],
    prepared: Prepared,
    references: Forms,
    metric: Summed,
    config: DecodeConfig,
    alphas: Sequence[float],
) -> Iterator[Trial]:
    import numpy

    statistics = _statistics(found, prepared, references, metric)
    lines = numpy.arange(len(found))
    for alpha in alphas:
        new = replace(config, alpha=alpha)
        chosen = numpy.array([_best(each, config, new) for each in found])
        yield Trial(new, metric.value(statistics[chosen, lines].sum(axis=0)))


def _best(hypotheses: list[Hypothesis], old: DecodeConfig, new: DecodeConfig) -> int:
    """Which of them is best with another penalty."""
    best = rank(hypotheses, old, new)[0]
    return next(place for place, each in enumerate(hypotheses) if each.tokens == best.tokens)


def _statistics(
    found: list[list[Hypothesis]], prepared: Prepared, references: Forms, metric: Summed
) -> "NDArray[numpy.float64]":
    """[hypotheses of a line, lines, k]; a line with fewer has its last one again."""
    import numpy

    columns = []
    for place in range(max(map(len, found))):
        ids = [each[min(place, len(each) - 1)].tokens for each in found]
        texts = of_ids(prepared.pipeline, ids).for_metric(metric)
        columns.append(metric.statistics(texts, references.for_metric(metric)))
    return numpy.stack(columns)
