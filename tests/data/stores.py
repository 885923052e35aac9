"""Splits to test with: random sentences, and what a batch of them must be, in plain Python."""

import random
from collections.abc import Sequence
from pathlib import Path

from lightconv.data import Store, StoreWriter

EOS, PAD = 2, 1
VOCAB = {"source": 300, "target": 400}

Sentence = list[int]


def sentences(count: int, seed: int = 0, longest: int = 20, vocab: int = 300) -> list[Sentence]:
    """Of 0 to `longest` ordinary ids each."""
    rng = random.Random(seed)
    return [[rng.randrange(4, vocab) for _ in range(rng.randint(0, longest))] for _ in range(count)]


def write_pairs(folder: Path, pairs: Sequence[list[Sentence]], split: str = "train") -> Store:
    """A split of source and target."""
    with StoreWriter(folder, split, VOCAB) as writer:
        writer.append(*pairs)
    return Store(folder, split)


def write_text(folder: Path, text: list[Sentence], split: str = "train") -> Store:
    """A split of one side."""
    with StoreWriter(folder, split, {"text": 300}) as writer:
        writer.append(text)
    return Store(folder, split)


def pad(rows: list[Sentence]) -> list[Sentence]:
    """Padded on the right to the longest."""
    longest = max(map(len, rows))
    return [row + [PAD] * (longest - len(row)) for row in rows]
