"""What a prepared split is like: counts, drops, unknown words, and how long its sentences are."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Reasons to leave out an example, in the order of the checks: it is counted once.
REASONS = ("empty", "short", "long", "ratio")
PERCENTILES = (50, 90, 99)
# How many bars a histogram has, and how wide the longest is.
BARS = 12
WIDEST = 24

# A split as plain values, as statistics.json has them.
Plain = dict[str, Any]


class Lengths:
    """How often each length occurs: constant memory, however many sentences there are."""

    def __init__(self) -> None:
        self.counts: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def add(self, lengths: NDArray[Any]) -> None:
        """Some more sentences: [n]."""
        found = np.bincount(lengths.astype(np.int64), minlength=len(self.counts))
        found[: len(self.counts)] += self.counts
        self.counts = found

    @property
    def sentences(self) -> int:
        """How many there are."""
        return int(self.counts.sum())

    @property
    def tokens(self) -> int:
        """How many tokens they have together."""
        return int(self.counts @ np.arange(len(self.counts)))

    @property
    def longest(self) -> int:
        """The length of the longest."""
        return int(np.flatnonzero(self.counts)[-1]) if self.sentences else 0

    def percentile(self, share: float) -> int:
        """The shortest length that so many of a hundred sentences do not exceed."""
        if not self.sentences:
            return 0
        rank = max(1, int(np.ceil(self.sentences * share / 100)))
        return int(np.searchsorted(np.cumsum(self.counts), rank))

    def between(self, first: int, last: int | None) -> int:
        """How many sentences have a length from `first` to `last`; None: and all longer ones."""
        return int(self.counts[first : None if last is None else last + 1].sum())


def describe_side(lengths: Lengths, unknown: int, edges: Sequence[int]) -> Plain:
    """One side of a split as plain values."""
    tokens = lengths.tokens
    return {
        "tokens": tokens,
        "unknown": unknown,
        "unknown_rate": unknown / max(tokens, 1),
        "mean": tokens / max(lengths.sentences, 1),
        "percentiles": {str(each): lengths.percentile(each) for each in PERCENTILES},
        "longest": lengths.longest,
        "histogram": [
            {"from": first, "to": last, "count": lengths.between(first, last)}
            for first, last in bins(edges)
        ],
    }


def find_edges(sides: Iterable[Lengths]) -> list[int]:
    """Where the bars of a histogram begin, the same for all sides.

    Steps of 1, 2, 5, 10, 20, ... so that all but the longest hundredth fall into the bars before
    the last one.
    """
    most = max((side.percentile(99) for side in sides), default=0)
    step = next(
        step
        for power in range(20)
        for step in (10**power, 2 * 10**power, 5 * 10**power)
        if step * (BARS - 1) >= most
    )
    last = -(-most // step) * step
    # Nothing has a bar of its own: it should be rare.
    return [0, *range(1, last + 2, step)]


def bins(edges: Sequence[int]) -> list[tuple[int, int | None]]:
    """First and last length of each bar; the last one has no end."""
    ends = [edge - 1 for edge in edges[1:]]
    return [*zip(edges, ends, strict=False), (edges[-1], None)]


def count_rows(splits: Mapping[str, Plain]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: for each split what was read, kept, and dropped for which reason."""
    reasons = [
        reason
        for reason in REASONS
        if any(split["dropped"].get(reason) for split in splits.values())
    ]
    rows = [
        [
            name,
            f"{split['read']:,}",
            f"{split['kept']:,}",
            *(f"{split['dropped'].get(reason, 0):,}" for reason in reasons),
        ]
        for name, split in splits.items()
    ]
    return ["split", "read", "kept", *reasons], rows


def length_rows(splits: Mapping[str, Plain]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: for each side of each split its tokens and lengths."""
    rows = [
        [
            name,
            side,
            f"{about['tokens']:,}",
            _share(about["unknown_rate"]),
            f"{about['mean']:.1f}",
            *(f"{about['percentiles'][str(each)]:,}" for each in PERCENTILES),
            f"{about['longest']:,}",
        ]
        for name, split in splits.items()
        for side, about in split["sides"].items()
    ]
    percentiles = [f"{each} %" for each in PERCENTILES]
    return ["split", "side", "tokens", "unknown", "mean", *percentiles, "longest"], rows


def draw_histogram(split: Plain) -> list[str]:
    """Bars for every side, the most frequent length with the longest bar."""
    sides = split["sides"]
    histograms = [about["histogram"] for about in sides.values()]
    if not any(bars[0]["count"] for bars in histograms):  # hardly ever is there nothing
        histograms = [bars[1:] for bars in histograms]
    columns = list(map(_bars, histograms))
    labels = list(map(_label, histograms[0]))
    width = max(map(len, labels))
    column = max(len(cell) for cells in columns for cell in cells)
    head = "  ".join(f"{side:<{column}}" for side in sides)
    lines = [f"{'':{width}}  {head}".rstrip()]
    for label, *cells in zip(labels, *columns, strict=True):
        line = "  ".join(f"{cell:<{column}}" for cell in cells)
        lines.append(f"{label:>{width}}  {line}".rstrip())
    return lines


def _bars(histogram: Sequence[Plain]) -> list[str]:
    counts = [bar["count"] for bar in histogram]
    all_, most = max(sum(counts), 1), max(*counts, 1)
    return [f"{count / all_:>6.1%} {'#' * -(-WIDEST * count // most)}".rstrip() for count in counts]


def _label(bar: Plain) -> str:
    if bar["to"] is None:
        return f"{bar['from']:,} and more"
    return f"{bar['from']:,}" if bar["from"] == bar["to"] else f"{bar['from']:,}-{bar['to']:,}"


def _share(rate: float) -> str:
    """A rate with as many digits as it takes to see that it is not zero."""
    return "0" if rate == 0 else f"{rate:.2%}" if rate >= 1e-4 else f"{rate:.0e}"
