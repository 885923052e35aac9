"""Samples: where a uniform number falls, how often, and that nobody else's sample matters."""

import itertools
import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightconv.decode import Hypothesis, sample
from lightconv.decode.sampling import choose

from .tables import EOS, Table

PAD = 1


def draw(table: Table, seeds: list[int] | None = None, **options: Any) -> list[list[Hypothesis]]:
    B = len(table.logits)
    seeds = list(range(100, 100 + B)) if seeds is None else seeds
    first = torch.full((B,), EOS)
    options = {"max_len": table.logits.shape[1], **options}
    return sample(table.step, table.start(), first, seeds=seeds, eos=EOS, **options)


def pick(probs: list[float], uniform: float, top_p: float) -> int:
    """The same in plain Python."""
    kept: list[int] = []
    for word in sorted(range(len(probs)), key=lambda i: -probs[i]):
        if sum(probs[i] for i in kept) < top_p:
            kept.append(word)
    left = uniform * sum(probs[i] for i in kept)
    for word in sorted(kept):
        left -= probs[word]
        if left < 0:
            return word
    raise AssertionError


def test_choose_by_hand() -> None:
    probs = torch.tensor([[0.1, 0.4, 0.2, 0.3]], dtype=torch.float64).expand(5, 4)
    uniform = torch.tensor([0.05, 0.11, 0.49, 0.51, 0.99], dtype=torch.float64)
    assert choose(probs, uniform).tolist() == [0, 1, 1, 2, 3]
    # 0.4 alone is not 0.5: 0.3 comes too, and no more. Four sevenths are word 1.
    assert choose(probs, uniform, 0.5).tolist() == [1, 1, 1, 1, 3]
    assert choose(probs, uniform, 0.4).tolist() == [1] * 5
    assert choose(probs, uniform, 1e-9).tolist() == [1] * 5


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=8).filter(any),
    st.floats(0.001, 0.999),
    st.floats(0.01, 1.0),
)
def test_choose_follows_its_definition(counts: list[int], uniform: float, top_p: float) -> None:
    probs = [count / sum(counts) for count in counts]
    found = choose(
        torch.tensor([probs], dtype=torch.float64),
        torch.tensor([uniform], dtype=torch.float64),
        top_p,
    ).item()
    # At a border the last bit of a sum decides.
    nudges = itertools.product((-1e-9, 1e-9), repeat=2)
    near = {pick(probs, uniform + a, min(top_p + b, 1.0)) for a, b in nudges}
    assert found in near
    assert probs[int(found)] > 0


def test_frequencies_are_the_probabilities() -> None:
    table = Table(1, 6, 2, seed=3)
    n = 4000
    found = draw(table, samples=n, temperature=0.7)[0]
    counts = Counter(hypothesis.tokens[0] for hypothesis in found)
    probs = (table.logits[0, 0, table.digest([])] / 0.7).softmax(-1).tolist()
    chi2 = sum((counts[v] - n * p) ** 2 / (n * p) for v, p in enumerate(probs))
    assert chi2 < 20.5  # 5 degrees of freedom: one in a thousand
    # The second word depends on the first only by the model: a different draw.
    twos = Counter(h.tokens[1] for h in found if h.tokens[0] != EOS)
    assert set(twos) == {EOS}  # max_len


def test_positions_samples_and_seeds_are_independent() -> None:
    table = Table(1, 3, 3)
    table.logits[:] = torch.tensor([0.0, 0.0, -50.0], dtype=torch.float64)
    drawn = [h.tokens for h in draw(table, samples=2000)[0]]
    seeded = [each.tokens for (each,) in draw(table.only([0] * 301), [*range(301)])]
    for n, pairs in (
        (2000, [(a, b) for a, b, *_ in drawn]),
        (2000, [(a[1], b[0]) for a, b in itertools.pairwise(drawn)]),
        (2000, [(a[0], b[0]) for a, b in itertools.pairwise(drawn)]),
        (300, [(a[0], b[0]) for a, b in itertools.pairwise(seeded)]),
    ):
        counts = Counter(pairs)
        assert sum((counts[a, b] - n / 4) ** 2 for a in (0, 1) for b in (0, 1)) / (n / 4) < 16.3


@pytest.mark.parametrize("options", [{}, {"top_k": 4}, {"top_p": 0.8}, {"top_k": 6, "top_p": 0.7}])
def test_a_sentence_does_not_know_its_batch(options: dict[str, Any]) -> None:
    table = Table(9, 12, 8, seed=4)
    seeds = [7, 7, 3, 2**64 - 1, -5, 0, 1, 2, 2**40]
    together = draw(table, seeds, samples=3, **options)
    order = [8, 2, 5, 0, 1, 3, 7, 6, 4]
    turned = draw(table.only(order), [seeds[b] for b in order], samples=3, **options)
    assert turned == [together[b] for b in order]
    for b in range(9):
        alone = draw(table.only([b]), [seeds[b]], samples=1, **options)[0]
        assert alone == together[b][:1]
    assert len({tuple(h.tokens) for each in together for h in each}) > 15


def test_top_k_and_top_p_leave_the_most_probable() -> None:
    table = Table(1, 8, 1 + 1, seed=6)
    logits = table.logits[0, 0, table.digest([])]
    order = logits.argsort(descending=True).tolist()
    firsts = {h.tokens[0] for h in draw(table, samples=500, top_k=3, temperature=5.0)[0]}
    assert firsts == set(order[:3])
    probs = (logits / 2.0).softmax(-1)
    enough = next(k for k in range(1, 9) if probs[order[:k]].sum() >= 0.75)
    firsts = {h.tokens[0] for h in draw(table, samples=500, top_p=0.75, temperature=2.0)[0]}
    assert firsts == set(order[:enough])


@pytest.mark.parametrize("options", [{"top_k": 1}, {"temperature": 1e-4}, {"top_p": 1e-6}])
def test_the_most_probable_word_is_the_greedy_search(options: dict[str, Any]) -> None:
    table = Table(6, 12, 8, seed=5)
    prefix = [[4], [], [5, 6], [], [], [3]]
    rules: dict[str, Any] = {"pad": PAD, "min_len": 2, "block_ngrams": 2, "prefix": prefix}
    greedy = table.search(beam=1, max_len=8, **rules)
    assert draw(table, samples=1, **options, **rules) == greedy


@pytest.mark.parametrize("options", [{}, {"top_k": 5}])
def test_rules_hold_and_scores_are_the_models(options: dict[str, Any]) -> None:
    table = Table(3, 9, 7, seed=7)
    found = draw(
        table, samples=20, temperature=1.5, pad=PAD, forbidden=[0], min_len=[2, 1, 3],
        max_len=[4, 5, 7], prefix=[[], [6, 6], []], block_ngrams=2, length_penalty=0.5, **options,
    )  # fmt: skip
    for b, (low, high) in enumerate([(2, 4), (1, 5), (3, 7)]):
        assert len(found[b]) == 20
        for tokens, score, logprobs, _ in found[b]:
            assert low <= len(tokens) <= high
            assert tokens.index(EOS) == len(tokens) - 1
            assert not {0, PAD} & set(tokens)
            grams = list(itertools.pairwise(tokens))
            assert len(grams) == len(set(grams))
            assert b != 1 or tokens[:2] == [6, 6]
            assert sum(logprobs) == pytest.approx(table.logprob(b, tokens), abs=1e-9)
            assert score == pytest.approx(sum(logprobs) / len(tokens) ** 0.5, abs=1e-9)


def test_finished_sentences_leave() -> None:
    table = Table(3, 6, 10, seed=2)
    table.logits[..., EOS] = -50.0
    table.logits[1, ..., EOS] = 50.0
    draw(table, samples=2)
    assert table.calls == [6] + [4] * 9


@pytest.mark.parametrize(
    "options, message",
    [
        ({"samples": 0}, "samples=0"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"top_k": -1}, "top_k=-1"),
        ({"seeds": [1]}, "seeds must be one for each of 2 sentences, got 1"),
    ],
)
def test_nonsense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw(Table(2, 5, 3), **options)


def test_no_numbers_and_no_sentences() -> None:
    table = Table(2, 5, 3)
    table.logits[1] = math.nan
    with pytest.raises(ValueError, match="has no output"):
        draw(table)
    assert draw(Table(0, 5, 3)) == []
