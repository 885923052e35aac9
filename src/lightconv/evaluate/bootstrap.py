"""Bootstrap resampling of lines: confidence intervals and paired comparisons (Koehn, 2004).

A sample draws as many lines as there are, with replacement. A corpus measure is a function of sums
over lines, so a sample is a row of counts, and all samples are one matrix product.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lightconv.evaluate.metrics import Signature, Summed, Texts

if TYPE_CHECKING:
    from lightconv.evaluate.metrics import Array

SAMPLES = 1000
SEED = 12345
LEVEL = 95
# Counts in memory at once: 32 MB.
_CELLS = 1 << 22


@dataclass(frozen=True)
class Interval:
    """A value, and bounds that hold the middle 95 % of the samples."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Comparison:
    """Two systems on the same samples; printed as one line.

    difference  first minus second
    p_value     share of the samples in which the better system is not better: Koehn's test
    """

    first: Interval
    second: Interval
    difference: Interval
    p_value: float
    signature: Signature

    def __str__(self) -> str:
        return (
            f"{self.signature} = {self.first} against {self.second}, difference {self.difference}, "
            f"p {self.p_value:.4f}"
        )

    def plain(self) -> dict[str, Any]:
        """A JSON object with unrounded numbers."""
        name, text = self.signature.name, str(self.signature)
        return {"metric": name} | asdict(self) | {"signature": text}


def confidence(
    metric: Summed,
    hypotheses: Texts,
    *references: Texts,
    samples: int = SAMPLES,
    seed: int = SEED,
) -> tuple[Interval, Signature]:
    """The score of one system with its bounds."""
    statistics = metric.statistics(hypotheses, *references)
    (values,) = resample(metric, [statistics], samples, seed)
    signature = metric.signature(len(hypotheses), len(references))
    return (
        _interval(metric.value(statistics.sum(axis=0)), values),
        signature.extend({"bs": samples, "seed": seed, "level": LEVEL}),
    )


def paired_bootstrap(
    metric: Summed,
    first: Texts,
    second: Texts,
    *references: Texts,
    samples: int = SAMPLES,
    seed: int = SEED,
) -> Comparison:
    """Compares two systems' hypotheses for the same lines."""
    statistics = [metric.statistics(hypotheses, *references) for hypotheses in (first, second)]
    values = resample(metric, statistics, samples, seed)
    scores = [metric.value(lines.sum(axis=0)) for lines in statistics]
    difference = scores[0] - scores[1]
    gains = values[0] - values[1]
    # A difference within rounding is not an advantage.
    missed = int(((gains if difference >= 0 else -gains) <= 1e-9).sum())
    signature = metric.signature(len(first), len(references))
    return Comparison(
        _interval(scores[0], values[0]),
        _interval(scores[1], values[1]),
        _interval(difference, gains),
        # The lines themselves count as one more sample, so that p is never 0.
        (missed + 1) / (samples + 1),
        signature.extend({"test": "paired", "bs": samples, "seed": seed, "level": LEVEL}),
    )


def resample(
    metric: Summed, systems: "list[Array]", samples: int = SAMPLES, seed: int = SEED
) -> "list[Array]":
    """Statistics [lines, k] of each system -> its values [samples], for the same samples."""
    import numpy

    if samples < 1:
        raise ValueError(f"samples={samples}, expected at least one")
    totals: list[list[Array]] = [[] for _ in systems]
    for counts in draw(len(systems[0]), samples, seed):
        for sums, statistics in zip(totals, systems, strict=True):
            sums.append(counts @ statistics)
    return [
        numpy.array([metric.value(row) for part in sums for row in part], dtype=numpy.float64)
        for sums in totals
    ]


def draw(lines: int, samples: int, seed: int) -> "Iterator[Array]":
    """[some of the samples, lines] counts of each line in a sample; all samples in turn."""
    import numpy

    # numpy keeps the numbers of this generator, unlike those of its successors.
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
