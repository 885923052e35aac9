"""Synthetic text with the word frequencies and line lengths of a language."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# One consonant, one vowel: different sequences of syllables are different words.
_SYLLABLES = [consonant + vowel for consonant in "bcdfghjklmnpqrstvwxz" for vowel in "aeiou"]
# The frequency of the word of rank r is proportional to 1 / (r + _SHIFT) ** _POWER.
_SHIFT, _POWER = 2.7, 1.05
_BLOCK = 50_000


class Language:
    """`types` different words; the frequent ones are short."""

    def __init__(self, types: int, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self._words = np.array(list(_words(types, draw)), dtype=object)
        weights = (np.arange(types) + _SHIFT) ** -_POWER
        self._shares = np.cumsum(weights / weights.sum())

    def lines(self, lengths: NDArray[Any], seed: int) -> list[str]:
        """Lines with these numbers of words: [n]."""
        draw = np.random.default_rng(seed)
        places = np.searchsorted(self._shares, draw.random(int(lengths.sum())))
        words = self._words[np.minimum(places, len(self._words) - 1)].tolist()
        ends = np.cumsum(lengths).tolist()
        begins = [0, *ends[:-1]]
        return [" ".join(words[a:b]) for a, b in zip(begins, ends, strict=True)]

    def write(self, path: Path, lengths: NDArray[Any], seed: int) -> None:
        """A file of such lines."""
        with path.open("w", encoding="utf-8") as file:
            for begin in range(0, len(lengths), _BLOCK):
                lines = self.lines(lengths[begin : begin + _BLOCK], seed + begin)
                file.write("\n".join(lines) + "\n")


def ted_like(examples: int, seed: int = 0) -> list[NDArray[Any]]:
    """Lengths of two sides, [examples] each: log-normal, mean 23, correlated, like talks."""
    draw = np.random.default_rng(seed)
    common, own = 0.6, 0.15
    mean = np.log(23) - (common**2 + own**2) / 2
    shared = draw.normal(size=examples)
    sides = np.exp(mean + common * shared + own * draw.normal(size=(2, examples)))
    return [np.clip(np.rint(side), 1, 175).astype(np.int64) for side in sides]


def _words(types: int, draw: np.random.Generator) -> Iterator[str]:
    """All words of one syllable in random order, then those of two, ..."""
    base, width, left = len(_SYLLABLES), 1, types
    while left > 0:
        there_are = base**width
        for number in _some(there_are, min(left, there_are), draw).tolist():
            rest, word = number, ""
            for _ in range(width):
                rest, digit = divmod(rest, base)
                word += _SYLLABLES[digit]
            yield word
        left, width = left - there_are, width + 1


def _some(below: int, count: int, draw: np.random.Generator) -> NDArray[np.int64]:
    """`count` different numbers below a power of ten, in mixed order, without a table of all."""
    step = int(draw.integers(below // 3, below // 2)) * 10 + 3  # coprime to `below`
    return (np.arange(count, dtype=np.int64) * (step % below) + 7) % below
