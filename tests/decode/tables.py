"""Models that are tables of numbers, and the search over them as it is told, in plain Python."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightconv.decode import Hypothesis, beam_search

EOS = 2
CONTEXTS = 7
SOURCE = 4  # positions of a source

Scored = tuple[float, list[int]]


class TableState(NamedTuple):
    """Where each row is: its sentence, a digest of its tokens, and how many there were."""

    sentence: Tensor
    digest: Tensor
    position: int


class Table:
    """Random logits [B, max_len, CONTEXTS, V] for a digest of the tokens before.

    looks [B, max_len, CONTEXTS, SOURCE] is where it looks in the source, of which padding [B,
    SOURCE] is not there.
    """

    def __init__(self, B: int, V: int, max_len: int, seed: int = 0, spread: float = 2.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        shape = (B, max_len, CONTEXTS, V)
        self.logits = spread * torch.randn(shape, generator=generator, dtype=torch.float64)
        looks = 3.0 * torch.randn(
            (B, max_len, CONTEXTS, SOURCE), generator=generator, dtype=torch.float64
        )
        self.padding = torch.arange(SOURCE) >= (torch.arange(B)[:, None] % SOURCE) + 1
        looks = looks.masked_fill(self.padding[:, None, None], -torch.inf)
        self.looks = looks.softmax(-1)
        self.calls: list[int] = []

    def start(self) -> TableState:
        B = len(self.logits)
        return TableState(torch.arange(B), torch.zeros(B, dtype=torch.int64), 0)

    def step(self, tokens: Tensor, state: TableState) -> tuple[Tensor, TableState]:
        self.calls.append(len(tokens))
        digest = (3 * state.digest + tokens[:, 0]) % CONTEXTS
        logits = self.logits[state.sentence, state.position, digest]
        return logits[:, None], TableState(state.sentence, digest, state.position + 1)

    def step_attending(
        self, tokens: Tensor, state: TableState
    ) -> tuple[Tensor, TableState, Tensor]:
        logits, after = self.step(tokens, state)
        looks = self.looks[state.sentence, state.position, after.digest]
        return logits, after, looks[:, None]

    def digest(self, prefix: Sequence[int]) -> int:
        digest = 0
        for token in [EOS, *prefix]:
            digest = (3 * digest + token) % CONTEXTS
        return digest

    def score_next(self, sentence: int, prefix: Sequence[int]) -> list[float]:
        """Log-probabilities of what follows the prefix (without its first EOS)."""
        logits = self.logits[sentence, len(prefix), self.digest(prefix)]
        return logits.log_softmax(-1).tolist()

    def look(self, sentence: int, tokens: Sequence[int]) -> list[list[float]]:
        """Where it looked for each of the tokens: [tokens, SOURCE]."""
        return [
            self.looks[sentence, place, self.digest(tokens[:place])].tolist()
            for place in range(len(tokens))
        ]

    def logprob(self, sentence: int, tokens: Sequence[int]) -> float:
        return sum(self.score_next(sentence, tokens[:i])[word] for i, word in enumerate(tokens))

    def search(self, *, attend: bool = False, **options: Any) -> list[list[Hypothesis]]:
        first = torch.full((len(self.logits),), EOS)
        step: Any = self.step_attending if attend else self.step
        return beam_search(step, self.start(), first, eos=EOS, **options)

    def only(self, sentences: Sequence[int]) -> "Table":
        """The table of those sentences, in that order."""
        table = Table(0, self.logits.shape[-1], 1)
        table.logits = self.logits[[*sentences]]
        table.looks, table.padding = self.looks[[*sentences]], self.padding[[*sentences]]
        return table


class Told(NamedTuple):
    """The rules of one sentence."""

    max_len: int
    min_len: int = 1
    forbidden: tuple[int, ...] = ()
    block: int = 0
    prefix: tuple[int, ...] = ()

    def allows(self, tokens: list[int], word: int) -> bool:
        """Whether `word` may follow `tokens`."""
        length = len(tokens) + 1
        if length <= len(self.prefix):
            return word == self.prefix[length - 1]
        if length == self.max_len:
            return word == EOS
        if word in self.forbidden or (word == EOS and length < self.min_len):
            return False
        longer = [*tokens, word]
        grams = [tuple(longer[i : i + self.block]) for i in range(len(longer) - self.block + 1)]
        return self.block == 0 or not grams or grams[-1] not in grams[:-1]


def enumerate_all(
    table: Table, sentence: int, rules: Told, penalty: Callable[[int], float]
) -> list[Scored]:
    """(score, tokens) of every sequence that ends with EOS, best first."""
    others = [v for v in range(table.logits.shape[-1]) if v != EOS]
    found = []
    for length in range(rules.max_len):
        for words in itertools.product(others, repeat=length):
            tokens = [*words, EOS]
            if all(rules.allows(tokens[:i], word) for i, word in enumerate(tokens)):
                found.append((table.logprob(sentence, tokens) / penalty(len(tokens)), tokens))
    return sorted(found, reverse=True)


def define(
    table: Table, sentence: int, beam: int, rules: Told, penalty: Callable[[int], float]
) -> list[Scored]:
    """Beam search of one sentence as it is told, hypothesis by hypothesis."""
    live: list[Scored] = [(0.0, [])]
    finished: list[Scored] = []
    for length in range(1, rules.max_len + 1):
        candidates = [
            (total + logprob, [*tokens, word])
            for total, tokens in live
            for word, logprob in enumerate(table.score_next(sentence, tokens))
            if rules.allows(tokens, word)
        ]
        # A stable sort: of equal sums the better past first, then the lower word.
        candidates = sorted(candidates, key=lambda c: -c[0])[: 2 * beam]
        for total, tokens in candidates[:beam]:
            if tokens[-1] == EOS and len(finished) < beam:
                finished.append((total / penalty(length), tokens))
        if len(finished) == beam:
            break
        live = [c for c in candidates if c[1][-1] != EOS][:beam]
    return sorted(finished, key=lambda c: -c[0])
