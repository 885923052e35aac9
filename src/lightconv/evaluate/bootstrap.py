"""How sure a score is: bootstrap resampling of lines, of one system or of two (Koehn, 2004).

A sample takes as many lines as there are, with replacement. A corpus measure is a function of sums
over lines, so a sample is a row of counts, and a thousand of them are one matrix product.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from lightconv.evaluate.signature import Signature
from lightconv.evaluate.texts import Texts

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Array = NDArray[numpy.float64]

SAMPLES = 1000
SEED = 12345
LEVEL = 95
# Counts in memory at once: 32 MB of them.
_CELLS = 1 << 22


@runtime_checkable
class Summed(Protocol):
    """A measure that is a function of sums over lines."""

    @property
    def name(self) -> str:
        """As recipes have it."""

    def statistics(self, hypotheses: Texts, *references: Texts) -> "Array":
        """[lines, k]: what is summed."""

    def value(self, totals: "Array") -> float:
        """[k], sums of statistics -> the measure."""

    def signature(self, lines: int, references: int) -> Signature:
        """Of as many lines and references for each."""


@dataclass(frozen=True)
class Interval:
    """A value, and the bounds that hold the middle 95 % of the samples."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"

    def plain(self) -> dict[str, float]:
        """For JSON."""
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Comparison:
    """Two systems on the same samples; printed as one line."""

    first: Interval
    second: Interval
    # Of the first over the second.
    difference: Interval
    # How many of all samples give the better system of the two no advantage: Koehn's test.
    p_value: float
    signature: Signature

    def __str__(self) -> str:
        return (
            f"{self.signature} = {self.first} against {self.second}, difference {self.difference}, "
            f"p {self.p_value:.4f}"
        )

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "metric": self.signature.name,
            "first": self.first.plain(),
            "second": self.second.plain(),
            "difference": self.difference.plain(),
            "p_value": self.p_value,
            "signature": str(self.signature),
        }


def confidence(
    metric: Summed,
    hypotheses: Texts,
    *references: Texts,
    samples: int = SAMPLES,
    seed: int = SEED,
) -> tuple[Interval, Signature]:
    """The score of a system with its bounds."""
    statistics = metric.statistics(hypotheses, *references)
    (values,) = resample(metric, [statistics], samples, seed)
    signature = metric.signature(len(hypotheses), len(references))
    return (
        _interval(metric.value(statistics.sum(axis=0)), values),
        signature.extend(_settings(samples, seed)),
    )


def paired_bootstrap(
    metric: Summed,
    first: Texts,
    second: Texts,
    *references: Texts,
    samples: int = SAMPLES,
    seed: int = SEED,
) -> Comparison:
    """Two systems' hypotheses for the same lines: is one better by more than chance?"""
    statistics = [metric.statistics(hypotheses, *references) for hypotheses in (first, second)]
    values = resample(metric, statistics, samples, seed)
    scores = [metric.value(lines.sum(axis=0)) for lines in statistics]
    difference = scores[0] - scores[1]
    gains = values[0] - values[1]
    # Rounding is no advantage.
    missed = int(((gains if difference >= 0 else -gains) <= 1e-9).sum())
    signature = metric.signature(len(first), len(references))
    return Comparison(
        _interval(scores[0], values[0]),
        _interval(scores[1], values[1]),
        _interval(difference, gains),
        # The lines as they are count as one more sample: none of finitely many proves certainty.
        (missed + 1) / (samples + 1),
        signature.extend({"test": "paired", **_settings(samples, seed)}),
    )


def resample(
    metric: Summed, systems: "list[Array]", samples: int = SAMPLES, seed: int = SEED
) -> "list[Array]":
    """Statistics [lines, k] of each system -> its values [samples], for the same samples."""
    import numpy

    if samples < 1:
        raise ValueError(f"samples={samples}, expected at least one")
    lines = len(systems[0])
    totals: list[list[Array]] = [[] for _ in systems]
    for counts in draw(lines, samples, seed):
        for sums, statistics in zip(totals, systems, strict=True):
            sums.append(counts @ statistics)
    return [
        numpy.array([metric.value(row) for part in sums for row in part], dtype=numpy.float64)
        for sums in totals
    ]


def draw(lines: int, samples: int, seed: int) -> "Iterator[Array]":
    """[some of the samples, lines]: how often a sample has each line; all samples in turn."""
    import numpy

    # Unlike those of its successors, this generator's numbers are the same in every numpy.
    random = numpy.random.RandomState(seed)
    some = max(1, _CELLS // lines)
    for start in range(0, samples, some):
        size = min(some, samples - start)
        picks = random.randint(0, lines, size=(size, lines), dtype=numpy.int64)
        picks += lines * numpy.arange(size)[:, None]
        counts = numpy.bincount(picks.reshape(-1), minlength=size * lines)
        yield counts.reshape(size, lines).astype(numpy.float64)


def _interval(value: float, values: "Array") -> Interval:
    import numpy

    tail = (100 - LEVEL) / 2
    low, high = numpy.percentile(values, [tail, 100 - tail])
    return Interval(value, float(low), float(high))


def _settings(samples: int, seed: int) -> dict[str, object]:
    return {"bs": samples, "seed": seed, "level": LEVEL}
