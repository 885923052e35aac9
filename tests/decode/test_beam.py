"""The search over tables of numbers: against enumeration, and against its definition in Python."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lightconv.decode import DecodeConfig, Hypothesis, beam_options, beam_search

from .tables import EOS, SOURCE, Table, TableState, Told, define, enumerate_all


def check(
    table: Table, beam: int, told: list[Told], expect: Any = define, penalty: Any = 1.0
) -> list[list[Hypothesis]]:
    """Each sentence has the outputs that its rules leave."""
    found = table.search(
        beam=beam,
        max_len=[each.max_len for each in told],
        min_len=torch.tensor([each.min_len for each in told]),
        prefix=[each.prefix for each in told],
        forbidden=told[0].forbidden,
        block_ngrams=told[0].block,
        length_penalty=penalty,
    )
    exact = penalty if callable(penalty) else lambda length: length**penalty
    how = (beam,) if expect is define else ()
    for sentence, rules in enumerate(told):
        scores, tokens = zip(*expect(table, sentence, *how, rules, exact), strict=True)
        assert [h.tokens for h in found[sentence]] == [*tokens]
        assert [h.score for h in found[sentence]] == pytest.approx(scores, abs=1e-12)
    return found


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("V, max_len, beam", [(4, 4, 40), (3, 5, 31), (6, 2, 6), (5, 1, 3)])
def test_a_beam_wide_enough_finds_everything(V: int, max_len: int, beam: int, alpha: float) -> None:
    check(Table(3, V, max_len, seed=V), beam, [Told(max_len)] * 3, enumerate_all, alpha)


def test_a_beam_wide_enough_finds_everything_that_the_rules_allow() -> None:
    told = [
        Told(6, 2, (1,), 2, ()),
        Told(4, 1, (1,), 2, (3,)),
        Told(5, 5, (1,), 2, (1, 4)),
        Told(3, 1, (1,), 2, (0, EOS)),
    ]
    found = check(Table(4, 5, 6, seed=8), 250, told, enumerate_all, lambda n: ((5 + n) / 6) ** 0.7)
    assert all(found)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("beam", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("V, max_len", [(3, 6), (5, 9), (11, 12), (40, 15)])
def test_narrow_beams_follow_the_definition(V: int, max_len: int, beam: int, seed: int) -> None:
    check(Table(5, V, max_len, seed=seed), beam, [Told(max_len)] * 5, penalty=0.8)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Table, int, list[Told]]:
    """A table of up to three sentences with rules of their own; words are not too few for them."""
    B, V = draw(st.integers(1, 3)), draw(st.integers(8, 12))
    forbidden = tuple(draw(st.sets(st.sampled_from([0, 1, 5]), max_size=2)))
    block = draw(st.integers(0, 3))
    words = st.sampled_from([v for v in range(V) if v != EOS])
    told = []
    for _ in range(B):
        max_len = draw(st.integers(1, 7))
        min_len = draw(st.integers(1, min(max_len, 4)))
        prefix = tuple(draw(st.lists(words, max_size=min(3, max_len - 1))))
        told.append(Told(max_len, min_len, forbidden, block, prefix))
    spread = draw(st.sampled_from([0.5, 2.0, 5.0]))
    return Table(B, V, 7, draw(st.integers(0, 999)), spread), draw(st.integers(1, 5)), told


@settings(max_examples=150, deadline=None)
@given(problems())
def test_all_rules_follow_the_definition(problem: tuple[Table, int, list[Told]]) -> None:
    check(*problem, penalty=0.9)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.sampled_from([0, 1, 3]))
def test_equal_sums_follow_the_definition(seed: int, beam: int, levels: int) -> None:
    # Logits of few values: most words are equally good. The lower one, of the better past, wins.
    table = Table(2, 6, 5, seed)
    table.logits = (table.logits * levels / 4).round()
    check(table, beam, [Told(5)] * 2)


def test_logprobs_and_attention_are_those_of_each_token() -> None:
    table = Table(5, 8, 9, seed=3)
    plain = table.search(beam=3, max_len=9, length_penalty=0.5)
    found = table.search(beam=3, max_len=9, length_penalty=0.5, attend=True)
    assert len({len(h.tokens) for each in found for h in each}) > 2
    for sentence, pairs in enumerate(zip(plain, found, strict=True)):
        for one, (tokens, score, logprobs, attention) in zip(*pairs, strict=True):
            assert one == (tokens, score, logprobs, None)
            expected = [table.score_next(sentence, tokens[:i])[w] for i, w in enumerate(tokens)]
            assert logprobs == pytest.approx(expected, abs=1e-12)
            assert score == pytest.approx(sum(expected) / len(tokens) ** 0.5, abs=1e-12)
            assert attention is not None
            looks = torch.tensor(table.look(sentence, tokens))
            torch.testing.assert_close(attention, looks, atol=1e-6, rtol=0)


def test_coverage_is_added_to_the_score() -> None:
    table = Table(SOURCE, 8, 9, seed=4)
    plain = table.search(beam=4, max_len=9)
    found = table.search(beam=4, max_len=9, attend=True, coverage=0.3, padding=table.padding)
    changed = 0
    for sentence, hypotheses in enumerate(found):
        scores = {tuple(h.tokens): h.score for h in plain[sentence]}
        assert {tuple(h.tokens) for h in hypotheses} == set(scores)
        changed += [h.tokens for h in hypotheses] != [h.tokens for h in plain[sentence]]
        for h in hypotheses:
            looks = table.look(sentence, h.tokens)
            penalty = sum(
                math.log(min(sum(row[i] for row in looks), 1.0))
                for i in range(SOURCE)
                if not table.padding[sentence, i]
            )
            assert h.score == pytest.approx(scores[tuple(h.tokens)] + 0.3 * penalty, abs=1e-6)
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
    assert changed > 0


def test_nbest_are_the_first() -> None:
    table = Table(3, 8, 6, seed=9)
    whole = table.search(beam=4, max_len=6)
    assert table.search(beam=4, max_len=6, nbest=2) == [each[:2] for each in whole]


@pytest.mark.parametrize(
    "options, calls",
    [
        ({"beam": 1, "max_len": 8}, [3] * 8),
        # At its own limit a sentence leaves.
        ({"beam": 2, "max_len": [2, 8, 5]}, [3, 6, 4, 4, 4, 2, 2, 2]),
        # A prefix of all is stepped once per sentence.
        ({"beam": 3, "max_len": 6, "prefix": [[4, 5, 6], [5, 5], [7, 8]]}, [3, 3, 3, 7, 9, 9]),
        # A prefix with EOS is all there is.
        ({"beam": 3, "max_len": 6, "prefix": [[4, 5, EOS], [], [7]]}, [3, 5, 7, 6, 6, 6]),
    ],
)
def test_rows_of_each_step(options: dict[str, Any], calls: list[int]) -> None:
    """One for each sentence at first; no sentence ends of itself."""
    table = Table(3, 9, 8, seed=2)
    table.logits[..., EOS] = -50.0
    found = table.search(**options)
    assert table.calls == calls
    lengths, prefix = options["max_len"], options.get("prefix", [[]] * 3)
    for b, hypotheses in enumerate(found):
        if EOS in prefix[b]:
            assert [h.tokens for h in hypotheses] == [prefix[b]]
            assert hypotheses[0].score == pytest.approx(table.logprob(b, prefix[b]) / 3, abs=1e-12)
            continue
        assert len(hypotheses) == options["beam"]
        limit = lengths if isinstance(lengths, int) else lengths[b]
        for h in hypotheses:
            assert len(h.tokens) == limit and h.tokens[: len(prefix[b])] == prefix[b]


@pytest.mark.parametrize("beam, calls", [(1, [3] * 5 + [2] * 5), (2, [3] + [6] * 4 + [4] * 5)])
def test_finished_sentences_leave_and_nothing_else_moves(beam: int, calls: list[int]) -> None:
    moved: list[list[int]] = []

    def reorder(state: TableState, rows: Tensor) -> TableState:
        moved.append(rows.tolist())
        return TableState(state.sentence[rows], state.digest[rows], state.position)

    table = Table(3, 6, 10, seed=2)
    # Sentence 1 ends at the fifth step for good, the others never want to.
    table.logits[..., EOS] = -50.0
    table.logits[1, 4, :, EOS] = 50.0
    table.search(beam=beam, max_len=10, reorder=reorder)
    assert table.calls == calls
    assert beam > 1 or moved == [[0, 2]]


@pytest.mark.parametrize("beam", [1, 4])
def test_a_sentence_does_not_know_its_batch(beam: int) -> None:
    table = Table(64, 12, 9, seed=3)
    together = table.search(beam=beam, max_len=9)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1)).tolist()
    assert table.only(order).search(beam=beam, max_len=9) == [together[b] for b in order]
    for b in range(64):
        assert table.only([b]).search(beam=beam, max_len=9)[0] == together[b]


def search_positions(logits: Tensor, B: int = 1, **options: Any) -> list[list[Hypothesis]]:
    """The hypotheses of sentences whose scores [T, V] depend on the position alone."""

    def step(tokens: Tensor, position: int) -> tuple[Tensor, int]:
        return logits[position].expand(len(tokens), 1, -1), position + 1

    options |= {"beam": 2, "max_len": len(logits), "eos": EOS}
    return beam_search(step, 0, torch.full((B,), EOS), **options)


@pytest.mark.parametrize("T, dtype, abs", [(5, torch.bfloat16, 1e-6), (300, torch.float32, 2e-6)])
def test_sums_keep_the_digits_of_each_token(T: int, dtype: torch.dtype, abs: float) -> None:
    # In single precision a sum of 300 log-probabilities has lost the last digits of each.
    logits = torch.randn(T, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
    for hypothesis in search_positions(logits, min_len=T)[0]:
        exact = logits.double().log_softmax(-1)[range(T), hypothesis.tokens]
        assert hypothesis.logprobs == pytest.approx(exact.tolist(), abs=abs)
        assert hypothesis.score == pytest.approx(exact.mean().item(), abs=1e-6)


def test_the_logits_of_a_step_are_not_written_to() -> None:
    logits = Table(1, 8, 6).logits[0, :, 0]
    before = logits.clone()
    search_positions(logits, 2, pad=1, min_len=2, block_ngrams=1, prefix=[[4], []])
    assert torch.equal(logits, before)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"beam": 0}, "beam must be at least 1"),
        ({"nbest": 0}, "nbest must be from 1 to beam=2, got 0"),
        ({"nbest": 3}, "nbest must be from 1 to beam=2, got 3"),
        ({"min_len": 0}, "min_len and max_len"),
        ({"min_len": 4}, "min_len and max_len"),
        ({"max_len": 0}, "min_len and max_len"),
        ({"coverage": 0.3}, "coverage needs a step that returns the attention"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Table(1, 4, 3).search(**({"beam": 2, "max_len": 3} | options))


@pytest.mark.parametrize("beam", [1, 3])
def test_no_numbers_and_no_sentences(beam: int) -> None:
    table = Table(3, 6, 5)
    table.logits[1] = math.nan
    with pytest.raises(ValueError, match="sentence 1 has no output: every one has probability"):
        table.search(beam=beam, max_len=5)
    assert table.only([]).search(beam=beam, max_len=3) == []
    assert table.only([]).search(beam=beam, max_len=3, prefix=[], min_len=[]) == []


def test_a_configuration_becomes_keywords() -> None:
    config = DecodeConfig(
        beam=3, length_penalty="stepwise", alpha=0.5, coverage=0.2, min_len=2, min_len_ratio=0.5,
        max_len_ratio=1.5, max_len_plus=1, block_ngrams=3, allow_unknown=False,
    )  # fmt: skip
    options = beam_options(config, [1, 5, 9], eos=EOS, pad=1, unknown=3)
    assert options.pop("length_penalty")(7) == pytest.approx(2**0.5)
    limits = {"max_len": [2, 8, 14], "min_len": [2, 2, 4], "forbidden": (3,), "block_ngrams": 3}
    assert options == {"beam": 3, "coverage": 0.2, "eos": EOS, "pad": 1, **limits}
    short = beam_options(DecodeConfig(max_len_ratio=0.1, max_len_plus=0), [1, 4, 19], eos=EOS)
    assert (short["max_len"], short["min_len"]) == ([1, 1, 1], [1, 1, 1])
    options = beam_options(DecodeConfig(alpha=0.5), [4], eos=EOS, unknown=3)
    assert options["length_penalty"](9) == pytest.approx(3.0)
    assert (options["max_len"], options["min_len"], options["forbidden"]) == ([200], [1], ())
