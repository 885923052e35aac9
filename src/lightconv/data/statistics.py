"""Statistics of a prepared split: filters by length, and counts of lengths."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightconv.data.config import FilterConfig

# Reasons to leave out an example, in the order of the checks: it is counted once.
REASONS = ("empty", "short", "long", "ratio")
PERCENTILES = (50, 90, 99)
# Bars of a histogram.
BARS = 12


def apply_filters(
    config: FilterConfig, lengths: Sequence[NDArray[Any]]
) -> tuple[NDArray[np.bool_], Counter[str]]:
    """A mask of the examples to keep [n], and counts of the others; lengths [n] for each side."""
    shortest, longest = np.minimum.reduce(lengths), np.maximum.reduce(lengths)
    found = np.full(len(shortest), -1)
    # From the last reason to the first, which overwrites it.
    if config.max_ratio is not None:
        found[longest > config.max_ratio * shortest] = REASONS.index("ratio")
    if config.max_len is not None:
        found[longest > config.max_len] = REASONS.index("long")
    found[shortest < config.min_len] = REASONS.index("short")
    if config.min_len > 0 or len(lengths) > 1:
        found[shortest == 0] = REASONS.index("empty")
    counts = np.bincount(found[found >= 0], minlength=len(REASONS)).tolist()
    return found < 0, Counter({each: n for each, n in zip(REASONS, counts, strict=True) if n})


def count_lengths(counts: NDArray[np.int64], lengths: NDArray[Any]) -> NDArray[np.int64]:
    """Counts of sentences by length, with more sentences of `lengths` [n] added."""
    found = np.bincount(lengths.astype(np.int64), minlength=len(counts))
    found[: len(counts)] += counts
    return found


def find_percentile(counts: NDArray[np.int64], share: float) -> int:
    """The least length that `share` percent of the sentences do not exceed."""
    rank = max(1, int(np.ceil(counts.sum() * share / 100)))
    return int(np.searchsorted(np.cumsum(counts), rank)) if counts.any() else 0


def find_edges(sides: Iterable[NDArray[np.int64]]) -> list[int]:
    """The least length of each bar; the last bar has at most the longest hundredth."""
    most = max((find_percentile(counts, 99) for counts in sides), default=0)
    steps = (digit * 10**power for power in range(20) for digit in (1, 2, 5))
    step = next(step for step in steps if step * (BARS - 1) >= most)
    last = -(-most // step) * step
    # Length 0 should be rare and has a bar of its own.
    return [0, *range(1, last + 2, step)]


def describe_side(counts: NDArray[np.int64], unknown: int, edges: Sequence[int]) -> dict[str, Any]:
    """One side of a split as in statistics.json; counts of its sentences by length."""
    tokens = int(counts @ np.arange(len(counts)))
    ends = [*(edge - 1 for edge in edges[1:]), None]
    return {
        "tokens": tokens,
        "unknown": unknown,
        "unknown_rate": unknown / max(tokens, 1),
        "mean": tokens / max(int(counts.sum()), 1),
        "percentiles": {str(each): find_percentile(counts, each) for each in PERCENTILES},
        "longest": int(np.flatnonzero(counts)[-1]) if counts.any() else 0,
        "histogram": [
            {"from": first, "to": last, "count": int(counts[first:end].sum())}
            for first, last, end in zip(edges, ends, [*edges[1:], None], strict=True)
        ],
    }
