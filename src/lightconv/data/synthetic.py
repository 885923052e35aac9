"""Copy and reversal: tasks made of random symbols, to prove that a model learns and decodes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightconv.data.batches import Batch
from lightconv.data.vocabulary import EOS, PAD, SPECIALS


def copy(symbols: list[int]) -> list[int]:
    """The same symbols."""
    return symbols


def reverse(symbols: list[int]) -> list[int]:
    """The symbols from last to first."""
    return symbols[::-1]


TASKS: dict[str, Callable[[list[int]], list[int]]] = {"copy": copy, "reverse": reverse}


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """Endless batches of a task; batch i depends on (seed, i) and nothing else."""

    task: str
    symbols: int = 16
    min_len: int = 5
    max_len: int = 12
    sentences: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise ValueError(f"task must be one of {', '.join(TASKS)}, got {self.task!r}")
        if not 1 <= self.min_len <= self.max_len:
            raise ValueError(
                f"min_len and max_len must rise from 1, got {self.min_len} and {self.max_len}"
            )
        for name in ("symbols", "sentences"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def vocab(self) -> int:
        """How many ids there are: the special ones and one per symbol."""
        return SPECIALS + self.symbols

    def batch(self, index: int) -> Batch:
        """The batch with that number."""
        random = np.random.default_rng([self.seed, index])
        lengths = random.integers(self.min_len, self.max_len, size=self.sentences, endpoint=True)
        sources = [random.integers(SPECIALS, self.vocab, size=n).tolist() for n in lengths]
        targets = [TASKS[self.task](source) for source in sources]
        source = _pad([[*source, EOS] for source in sources])
        target_in = _pad([[EOS, *target] for target in targets])
        return Batch((source, target_in), _pad([[*target, EOS] for target in targets]))

    def __iter__(self) -> Iterator[Batch]:
        index = 0
        while True:
            yield self.batch(index)
            index += 1


def _pad(sentences: list[list[int]]) -> Tensor:
    """[B, longest] int64, padded on the right."""
    longest = max(map(len, sentences))
    return torch.tensor([s + [PAD] * (longest - len(s)) for s in sentences], dtype=torch.int64)
