"""Lexical shortlist: the words that outputs of a source may consist of.

Those are, for each of its tokens, the words that went with it most often in the training data, and
the most frequent words. An output's product and its search then read a twentieth of the vocabulary.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightconv.data.vocabulary import EOS, UNK
from lightconv.models import Seq2Seq
from lightconv.models.tensors import read_tensors

SHORTLIST_FILE = "shortlist.safetensors"
PAIRS_AT_ONCE = 20_000  # sentences whose pairs of words are counted together
MOST_PAIRS = 1 << 25  # pairs of words that are remembered


class Shortlist(NamedTuple):
    """Words by source token, and those of every source."""

    best: Tensor  # [source vocabulary, n] int32; -1 where there are no more
    always: Tensor  # [m] int32

    @classmethod
    def read(cls, folder: Path) -> "Shortlist":
        """The shortlist of a model folder; ValueError if it has none."""
        path = folder / SHORTLIST_FILE
        if not path.exists():
            raise ValueError(
                f"{folder} has no {SHORTLIST_FILE}, expected one. `lightconv shortlist` makes it"
            )
        found = read_tensors(path)
        names = {name: (str(each.dtype), each.dim()) for name, each in found.items()}
        if names != {"best": ("torch.int32", 2), "always": ("torch.int32", 1)}:
            raise ValueError(f"{path} has {names}, expected a shortlist. Make it again")
        return cls(**found)

    def check(self, model: Any) -> None:
        """ValueError unless it is one of that model's vocabularies."""
        if not isinstance(model, Seq2Seq):
            raise ValueError("a shortlist is for sources and targets, not for a language model")
        rows, words = model.config.vocab_sizes
        both = torch.cat([self.best.flatten(), self.always, self.always.new_zeros(1)])
        if len(self.best) != rows or int(both.min()) < -1 or int(both.max()) >= words:
            raise ValueError("the shortlist is that of another vocabulary. Make it again")

    def choose(self, ids: Tensor | Sequence[int], also: Sequence[int] = ()) -> Tensor:
        """The words [n] int64 of a source [S], in their order, and those of `also`."""
        more = torch.tensor([EOS, UNK, *also])
        found = torch.cat([self.best[ids].flatten(), self.always, more]).unique()
        words: Tensor = found[found >= 0].long()
        return words


def make_shortlist(
    pairs: Iterable[Sequence[NDArray[Any]]],
    sizes: tuple[int, int],
    best: int,
    always: int,
) -> Shortlist:
    """A shortlist from ids of sources and targets.

    sizes   number of source and target words
    best    words for each source token: those of the highest log-likelihood ratio (Dunning, 1993)
            of being in one pair of sentences
    always  most frequent words
    """
    S, T = sizes
    source, target = np.zeros(S, np.int64), np.zeros(T, np.int64)
    keys, counts, waiting = np.zeros(0, np.int64), np.zeros(0, np.int64), list[NDArray[Any]]()
    total = 0

    def merge() -> None:
        nonlocal keys, counts
        fresh, number = np.unique(np.concatenate(waiting or [keys[:0]]), return_counts=True)
        waiting.clear()
        both, places = np.unique(np.concatenate([keys, fresh]), return_inverse=True)
        counts = np.bincount(places, np.concatenate([counts, number]), len(both)).astype(np.int64)
        keys = both
        if len(keys) > MOST_PAIRS:
            keys, counts = keys[counts > 1], counts[counts > 1]

    for pair in pairs:
        total += 1
        ours, theirs = (np.unique(ids).astype(np.int64) for ids in pair)
        source[ours] += 1
        target[theirs] += 1
        waiting.append((ours[:, None] * T + theirs).ravel())
        if len(waiting) >= PAIRS_AT_ONCE:
            merge()
    merge()
    rows, words = np.divmod(keys, T)
    one, other = source[rows], target[words]
    neither = total - one - other + counts
    strength = np.zeros(len(keys))
    for seen, ours, theirs in (
        (counts, one, other),
        (one - counts, one, total - other),
        (other - counts, total - one, other),
        (neither, total - one, total - other),
    ):
        strength += seen * np.log(np.maximum(seen, 1) * total / np.maximum(ours * theirs, 1))
    strength[counts * total <= one * other] = 0.0  # together less often than by chance
    order = np.lexsort((words, -strength, rows))
    rows, words, strength = rows[order], words[order], strength[order]
    rank = np.arange(len(rows)) - np.searchsorted(rows, rows)
    kept = (rank < best) & (strength > 0)
    table = np.full((S, best), -1, np.int32)
    table[rows[kept], rank[kept]] = words[kept]
    frequent = np.argsort(-target, kind="stable")[:always]
    frequent = np.sort(frequent[target[frequent] > 0]).astype(np.int32)
    return Shortlist(torch.from_numpy(table), torch.from_numpy(frequent))
