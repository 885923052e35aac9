"""Exact speculative decoding (Leviathan et al., 2023; Stern et al., 2018): a faster model proposes.

The model scores all proposed words of a sentence in one run and keeps them up to the first that it
would not have chosen. Its rows are those of single steps to the bit, so that outputs are too.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lightconv.data.vocabulary import EOS
from lightconv.decode.beam import Hypothesis
from lightconv.decode.engine import Engine
from lightconv.decode.native import EngineSearch
from lightconv.decode.options import Options
from lightconv.ops import program

if TYPE_CHECKING:
    from lightconv.decode.search import Request

AHEAD = 3  # words that are proposed at once: a run of four rows costs hardly more than one of one


class Draft(EngineSearch):
    """The search of the faster model: it never ends, and goes on from any words."""

    def __init__(self, engine: Engine, options: Options) -> None:
        super().__init__(engine, options, spare=AHEAD)
        self._task.eos = -1

    def propose(self, count: int) -> list[int]:
        """That many words at most; none if its scores are no numbers."""
        if not self._rows:
            return []
        length = self.length
        self.advance(count)
        words: list[int] = self._tables["words"][0, length : length + count * self._rows].tolist()
        return words[: words.index(EOS) + 1] if EOS in words else words

    def follow(self, length: int, word: int) -> None:
        """The output has that length and ends with that word; those before it were proposed."""
        if self._rows and self.length < length:  # it has not read the word before
            self.advance()
        if self._rows:
            t, back = self._tables, self.length - length
            self._run.time -= back
            t["positions"][0] -= back
            t["length"][t["sentences"][0]] = length
            t["words"][0, length - 1] = t["tokens"][0] = word


class DraftSearch(EngineSearch):
    """Greedy search of one sentence at a time, with words that a draft proposes."""

    def __init__(self, engine: Engine, draft: Engine, options: Options) -> None:
        super().__init__(engine, options, spare=AHEAD)
        self._draft = Draft(draft, options)
        self._zeros = np.zeros(AHEAD + 1, np.int64)

    def add(self, requests: "Sequence[Request]", seeds: Sequence[int] = ()) -> None:
        super().add(requests)
        self._draft.add(requests)

    def cancel(self, keys: Collection[Any]) -> None:
        super().cancel(keys)
        self._draft.cancel(keys)

    def advance(self, steps: int = 1, seconds: float = 0.0) -> list[tuple[Any, list[Hypothesis]]]:
        """At most so many runs of the model, until the sentence leaves."""
        found: list[tuple[Any, list[Hypothesis]]] = []
        while self._rows and steps and not found:
            found, steps = self._advance(), steps - 1
        self._draft.cancel([key for key, _ in found])
        return found

    def _advance(self) -> list[tuple[Any, list[Hypothesis]]]:
        run, task, t, length = self._run, self._task, self._tables, self.length
        most = int(t["most"][t["sentences"][0]])
        words = self._draft.propose(min(AHEAD, most - length - 1))
        if not words:
            return super().advance()
        if length + len(words) >= self._sizes["T"]:
            self._make_room(T=2 * (length + AHEAD))
        self._score(words)
        # Each row's scores go to a step of the search that runs no program.
        count, scores, run.count = run.count, task.scores, 0
        for word in [*words, -1]:
            found, length = self._search(1), length + 1
            task.scores += task.V * self._scores.itemsize
            if found or t["words"][0, length - 1] != word:
                break
        run.count, task.scores = count, scores
        if not found:
            self._draft.follow(length, int(t["words"][0, length - 1]))
        return found

    def _score(self, words: Sequence[int]) -> None:
        """Scores of what follows the last word and each of `words`, in one run."""
        run, t, n = self._run, self._tables, len(words)
        position = int(t["positions"][0])
        t["tokens"][1 : n + 1], t["sentences"][: n + 1] = words, t["sentences"][0]
        t["positions"][: n + 1] = range(position, position + n + 1)
        self._waves = self._engine.sinusoids(position + n + 1)
        ends = self._zeros + n + 1
        run.hypotheses = run.begins = self._zeros.ctypes.data
        run.sinusoids, run.ends = self._waves.data_ptr(), ends.ctypes.data
        run.rows, run.threads = n + 1, self._engine.threads(self._engine.decoder, n + 1)
        run.time += n
        program.run(self._engine.address, run)
        run.time -= n
        run.rows = run.threads = 1
        run.hypotheses = run.begins = run.ends = None
