"""The search over tables of numbers: against enumeration, and against its definition in Python."""

import itertools
import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from lightconv.decode import Hypothesis, beam_search

EOS = 2
CONTEXTS = 7


class TableState(NamedTuple):
    """Where each row is: its sentence, a digest of its tokens, and how many there were."""

    sentence: Tensor
    digest: Tensor
    position: int


class Table:
    """Random logits [B, max_len, CONTEXTS, V] for a digest of the tokens before."""

    def __init__(self, B: int, V: int, max_len: int, seed: int = 0, spread: float = 2.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        shape = (B, max_len, CONTEXTS, V)
        self.logits = spread * torch.randn(shape, generator=generator, dtype=torch.float64)
        self.logprobs = self.logits.log_softmax(-1)
        self.calls: list[int] = []

    def start(self) -> TableState:
        B = len(self.logits)
        return TableState(torch.arange(B), torch.zeros(B, dtype=torch.int64), 0)

    def step(self, tokens: Tensor, state: TableState) -> tuple[Tensor, TableState]:
        self.calls.append(len(tokens))
        digest = (3 * state.digest + tokens[:, 0]) % CONTEXTS
        logits = self.logits[state.sentence, state.position, digest]
        return logits[:, None], TableState(state.sentence, digest, state.position + 1)

    def score_next(self, sentence: int, prefix: list[int]) -> list[float]:
        """Log-probabilities of what follows the prefix (without its first EOS)."""
        digest = 0
        for token in [EOS, *prefix]:
            digest = (3 * digest + token) % CONTEXTS
        return self.logprobs[sentence, len(prefix), digest].tolist()

    def search(self, **options: object) -> list[list[Hypothesis]]:
        first = torch.full((len(self.logits),), EOS)
        return beam_search(self.step, self.start(), first, eos=EOS, **options)


def enumerate_all(
    table: Table, sentence: int, max_len: int, length_penalty: float
) -> list[tuple[float, list[int]]]:
    """(score, tokens) of every sequence that ends with EOS, best first."""
    V = table.logits.shape[-1]
    others = [v for v in range(V) if v != EOS]
    found = []
    for length in range(max_len):
        for prefix in itertools.product(others, repeat=length):
            tokens = [*prefix, EOS]
            total = sum(
                table.score_next(sentence, tokens[:i])[token] for i, token in enumerate(tokens)
            )
            found.append((total / len(tokens) ** length_penalty, tokens))
    return sorted(found, reverse=True)


def define(
    table: Table,
    sentence: int,
    *,
    beam: int,
    max_len: int,
    min_len: int = 1,
    pad: int | None = None,
    length_penalty: float = 1.0,
) -> list[tuple[float, list[int]]]:
    """Beam search of one sentence as it is told, hypothesis by hypothesis."""
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, max_len + 1):
        candidates = []
        for total, prefix in live:
            for token, logprob in enumerate(table.score_next(sentence, prefix)):
                if token == pad or (token == EOS and length < min_len):
                    continue
                if token != EOS and length == max_len:
                    continue
                candidates.append((total + logprob, [*prefix, token]))
        candidates = sorted(candidates, reverse=True)[: 2 * beam]
        for total, tokens in candidates[:beam]:
            if tokens[-1] == EOS and len(finished) < beam:
                finished.append((total / length**length_penalty, tokens))
        if len(finished) == beam:
            break
        live = [c for c in candidates if c[1][-1] != EOS][:beam]
    return sorted(finished, reverse=True)


def assert_same(found: list[Hypothesis], expected: list[tuple[float, list[int]]]) -> None:
    assert [h.tokens for h in found] == [tokens for _, tokens in expected]
    assert [h.score for h in found] == pytest.approx([score for score, _ in expected], abs=1e-12)


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("V, max_len, beam", [(4, 4, 40), (3, 5, 31), (6, 2, 6), (5, 1, 3)])
def test_a_beam_wide_enough_finds_everything(
    V: int, max_len: int, beam: int, length_penalty: float
) -> None:
    table = Table(3, V, max_len, seed=V)
    found = table.search(beam=beam, max_len=max_len, length_penalty=length_penalty)
    for sentence in range(3):
        expected = enumerate_all(table, sentence, max_len, length_penalty)
        assert_same(found[sentence], expected)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("beam", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("V, max_len", [(3, 6), (5, 9), (11, 12), (40, 15)])
def test_narrow_beams_follow_the_definition(V: int, max_len: int, beam: int, seed: int) -> None:
    table = Table(5, V, max_len, seed=seed)
    options = {"beam": beam, "max_len": max_len, "length_penalty": 0.8}
    found = table.search(**options)
    for sentence in range(5):
        assert_same(found[sentence], define(table, sentence, **options))


@pytest.mark.parametrize("min_len, max_len, pad", [(1, 8, 1), (3, 8, None), (5, 5, 1), (1, 1, 1)])
def test_lengths_and_padding_follow_the_definition(
    min_len: int, max_len: int, pad: int | None
) -> None:
    table = Table(6, 9, max_len, seed=5)
    options = {"beam": 3, "min_len": min_len, "max_len": max_len, "pad": pad}
    found = table.search(**options)
    for sentence in range(6):
        assert_same(found[sentence], define(table, sentence, **options))
        for hypothesis in found[sentence]:
            assert min_len <= len(hypothesis.tokens) <= max_len
            assert pad not in hypothesis.tokens


def test_logprobs_are_those_of_each_token() -> None:
    table = Table(2, 8, 6, seed=1)
    for sentence, hypotheses in enumerate(table.search(beam=3, max_len=6, length_penalty=0.5)):
        for tokens, score, logprobs in hypotheses:
            expected = [
                table.score_next(sentence, tokens[:i])[token] for i, token in enumerate(tokens)
            ]
            assert logprobs == pytest.approx(expected, abs=1e-12)
            assert score == pytest.approx(sum(expected) / len(tokens) ** 0.5, abs=1e-12)


def test_the_first_step_reads_one_row_per_sentence_and_finished_sentences_leave() -> None:
    table = Table(3, 6, 10, seed=2)
    # Sentence 1 ends at once and for good, the others never want to.
    table.logits[..., EOS] = -50.0
    table.logits[1, ..., EOS] = 50.0
    table.search(beam=1, max_len=10)
    assert table.calls == [3] + [2] * 9
    table.calls.clear()
    table.search(beam=2, max_len=10)
    assert table.calls[:2] == [3, 6]
    assert set(table.calls[2:]) == {4}


def test_batched_search_equals_one_sentence_at_a_time() -> None:
    table = Table(6, 12, 9, seed=3)
    together = table.search(beam=4, max_len=9)
    for sentence in range(6):
        alone = Table(1, 12, 9)
        alone.logits = table.logits[sentence : sentence + 1]
        assert alone.search(beam=4, max_len=9)[0] == together[sentence]


def test_an_eos_below_the_first_beam_candidates_does_not_count() -> None:
    table = Table(1, 4, 2)
    # After nothing: token 3 is best, then 0, then EOS. With a beam of 2 EOS is only third.
    table.logits[0, 0] = torch.tensor([1.0, -9.0, 0.5, 2.0], dtype=torch.float64)
    assert [EOS] not in [h.tokens for h in table.search(beam=2, max_len=2)[0]]
    assert [EOS] in [h.tokens for h in table.search(beam=3, max_len=2)[0]]


def test_half_precision_logits_are_summed_in_float32() -> None:
    logits = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)

    def step(tokens: Tensor, state: TableState) -> tuple[Tensor, TableState]:
        return logits[state.sentence, state.position][:, None], state._replace(
            position=state.position + 1
        )

    start = TableState(torch.arange(2), torch.zeros(2, dtype=torch.int64), 0)
    best = beam_search(step, start, torch.tensor([EOS, EOS]), beam=2, max_len=5, eos=EOS)[0][0]
    exact = logits.double().log_softmax(-1)[0, range(len(best.tokens)), best.tokens]
    assert math.isclose(best.score, exact.mean().item(), abs_tol=1e-6)


def test_an_empty_batch_gives_no_sentences() -> None:
    table = Table(0, 5, 3)
    assert table.search(beam=2, max_len=3) == []


@pytest.mark.parametrize("beam", [0, -1])
def test_beam_below_one_is_refused(beam: int) -> None:
    with pytest.raises(ValueError, match="beam must be at least 1"):
        Table(1, 4, 3).search(beam=beam, max_len=3)


@pytest.mark.parametrize("min_len, max_len", [(0, 3), (4, 3), (1, 0)])
def test_impossible_lengths_are_refused(min_len: int, max_len: int) -> None:
    with pytest.raises(ValueError, match="min_len and max_len"):
        Table(1, 4, 3).search(beam=2, min_len=min_len, max_len=max_len)
