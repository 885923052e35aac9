"""Which training examples are left out, and why; of other splits none ever is."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightconv.data.config import FilterConfig

# In the order in which they are looked for: an example is counted once.
REASONS = ("empty", "short", "long", "ratio")


def find_reasons(config: FilterConfig, lengths: Sequence[NDArray[Any]]) -> NDArray[np.int8]:
    """What is wrong with each example: its place in REASONS, or -1 for nothing.

    lengths  for each side [n]
    """
    shortest, longest = np.minimum.reduce(lengths), np.maximum.reduce(lengths)
    found = np.full(len(shortest), -1, dtype=np.int8)
    # From the last reason to the first, which overwrites it.
    if config.max_ratio is not None:
        found[longest > config.max_ratio * shortest] = REASONS.index("ratio")
    if config.max_len is not None:
        found[longest > config.max_len] = REASONS.index("long")
    found[shortest < config.min_len] = REASONS.index("short")
    if config.min_len > 0 or len(lengths) > 1:
        found[shortest == 0] = REASONS.index("empty")
    return found


def before_tokens(config: FilterConfig) -> FilterConfig:
    """What can be said of texts whose length is known as 0, nothing in it, or 1."""
    return replace(config, min_len=min(config.min_len, 1), max_len=None, max_ratio=None)


def count_reasons(found: NDArray[np.int8]) -> Counter[str]:
    """How often each reason was found."""
    counts = np.bincount(found[found >= 0], minlength=len(REASONS))
    return Counter(
        {reason: count for reason, count in zip(REASONS, counts.tolist(), strict=True) if count}
    )
