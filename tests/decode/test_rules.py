"""The rules one by one, on numbers worked out by hand or by plain Python."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightconv.decode.rules import PENALTIES, Rules, coverage_penalty, repeats

EOS = 2


def make(B: int, **options: Any) -> Rules:
    return Rules(torch.full((B,), EOS), **{"eos": EOS, "max_len": 9, **options})


def allowed(rules: Rules, tokens: list[list[int]], V: int = 6) -> list[list[int]]:
    """The words with a probability after each row, with one row per sentence."""
    length = len(tokens[0]) + 1
    rows = torch.tensor(tokens, dtype=torch.int64).view(len(tokens), -1)
    logits = torch.randn(len(tokens), V, generator=torch.Generator().manual_seed(length))
    found = rules.allow(logits, length, torch.arange(len(tokens)), rows)
    kept = found > -torch.inf
    torch.testing.assert_close(found[kept].double(), logits.double().log_softmax(-1)[kept])
    return [row.nonzero()[:, 0].tolist() for row in kept]


@pytest.mark.parametrize(
    "name, length, alpha, penalty",
    [
        *(("power", 8, 0.0, 1.0), ("power", 8, 1.0, 8.0), ("power", 9, 0.5, 3.0)),
        *(("stepwise", 1, 0.9, 1.0), ("stepwise", 7, 1.0, 2.0), ("stepwise", 19, 0.5, 2.0)),
    ],
)
def test_penalties(name: str, length: int, alpha: float, penalty: float) -> None:
    assert PENALTIES[name](length, alpha) == penalty


def test_coverage() -> None:
    # Position 0 was looked at once and a half, 1 half, 2 a quarter; 3 is padding.
    attention = torch.tensor([[[0.75, 0.25, 0.0, 0.0], [0.75, 0.25, 0.25, 0.0], [0.0] * 4]])
    padding = torch.tensor([[False, False, False, True]])
    found = coverage_penalty(attention, padding)
    assert found.tolist() == pytest.approx([math.log(0.5) + math.log(0.25)])
    never = coverage_penalty(torch.zeros(1, 2, 3), torch.zeros(1, 3, dtype=torch.bool))
    assert -1000 < never.item() < -100


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 4),
    st.integers(0, 10).flatmap(
        lambda t: st.lists(
            st.lists(st.integers(3, 5), min_size=t, max_size=t), min_size=1, max_size=4
        )
    ),
)
def test_repeats_are_exact(n: int, rows: list[list[int]]) -> None:
    found = repeats(torch.tensor(rows, dtype=torch.int64).view(len(rows), -1), n)
    banned: list[set[int]] = [set() for _ in rows]
    for row, word in [] if found is None else zip(*(x.tolist() for x in found), strict=True):
        banned[row].add(word)
    for row, tokens in enumerate(rows):
        grams = {tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)} if n > 0 else set()
        tail = tuple(tokens[len(tokens) - n + 1 :]) if n > 1 else ()
        enough = len(tokens) >= n - 1
        expected = {w for w in range(3, 6) if n > 0 and enough and (*tail, w) in grams}
        assert banned[row] == expected
    assert any(banned) or found is None, "nothing to do"


LENGTHS = {"min_len": [1, 2, 3], "max_len": [2, 3, 4], "forbidden": [0, 1]}
# A prefix goes before all other rules.
PREFIX = {"prefix": [[4, 1], [], [5, EOS]], "forbidden": [1], "min_len": 3, "max_len": [3, 4, 3]}
BLOCK = {"block_ngrams": 2, "forbidden": [0, 1]}


@pytest.mark.parametrize(
    "options, tokens, words",
    [
        ({}, [[3], [4]], [[0, 1, 2, 3, 4, 5]] * 2),
        ({"forbidden": [1, 4, 1]}, [[3], [4]], [[0, 2, 3, 5]] * 2),
        (LENGTHS, [[], [], []], [[2, 3, 4, 5], [3, 4, 5], [3, 4, 5]]),
        (LENGTHS, [[3]] * 3, [[2], [2, 3, 4, 5], [3, 4, 5]]),
        (LENGTHS, [[3, 3]] * 3, [[2], [2], [2, 3, 4, 5]]),
        (LENGTHS, [[3, 3, 3]] * 3, [[2], [2], [2]]),
        ({"min_len": [1, 3]}, [[3], [3]], [[0, 1, 2, 3, 4, 5], [0, 1, 3, 4, 5]]),
        (PREFIX, [[], [], []], [[4], [0, 3, 4, 5], [5]]),
        (PREFIX, [[4], [4], [5]], [[1], [0, 3, 4, 5], [2]]),
        (PREFIX, [[4, 1], [4, 4], [5, 2]], [[2], [0, 2, 3, 4, 5], [2]]),
        # It may fill the length with EOS.
        ({"prefix": [[3, EOS]], "max_len": 2}, [[3]], [[EOS]]),
        (
            BLOCK,
            [[3, 4, 3, 5, 3], [3, 4, 5, 3, 4], [5, 5, 4, 3, 4]],
            [[2, 3], [2, 3, 4], [2, 4, 5]],
        ),
    ],
)
def test_what_may_follow(options: Any, tokens: list[list[int]], words: list[list[int]]) -> None:
    assert allowed(make(len(tokens), **options), tokens) == words


def test_each_row_follows_its_sentence() -> None:
    rules = make(3, min_len=[3, 1, 1], max_len=[9, 9, 2], prefix=[[], [4, 5], []])
    rules.take(torch.tensor([0, 2, 1]))
    rows = torch.tensor([0, 0, 2, 1])
    for length, ends, counts in (
        (2, [False, False, False, True], [5, 5, 1, 1]),
        (3, [True, True, True, True], [6, 6, 6, 1]),
    ):
        found = rules.allow(torch.zeros(4, 6), length, rows, None) > -torch.inf
        assert found[:, EOS].tolist() == ends and found.sum(1).tolist() == counts


@pytest.mark.parametrize(
    "options, message",
    [
        ({"max_len": [3, 4]}, r"max_len must be one number or 3, got \[2\]"),
        ({"min_len": [1, 5, 1], "max_len": [9, 4, 9]}, r"got 5 and 4 \(sentence 1\)"),
        ({"prefix": [[3]]}, "prefix must be given for each of 3 sentences, got 1"),
        ({"prefix": [[], [3, EOS, 3], []]}, r"prefix 1 must be words, .* got \[3, 2, 3\]"),
        ({"prefix": [[], [], [-1]]}, "prefix 2 must be words"),
        ({"prefix": [[3] * 9, [], []]}, "prefix 0 of 9 tokens leaves no room .* max_len=9"),
        ({"prefix": [[3] * 9 + [EOS], [], []]}, "prefix 0 of 10 tokens leaves no room"),
        ({"forbidden": [EOS]}, r"forbidden must not have EOS \(2\)"),
        ({"block_ngrams": -1}, "block_ngrams must be at least 0, got -1"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(3, **options)
