"""Perplexity: hand-computed."""

import math

import pytest

from lightconv.evaluate import compute_perplexity


def test_a_uniform_model_is_as_perplexed_as_it_has_choices() -> None:
    # 12 subwords and 3 EOS, each one of eight: 3 bits.
    score = compute_perplexity(-15 * math.log(8), lines=3, subwords=12, words=12)
    assert score.value == pytest.approx(8.0)
    assert score.parts["bits_per_subword"] == pytest.approx(3.0)


def test_per_word_and_per_subword() -> None:
    # Two lines of 3 words in 5 subwords each, with EOS 8 words and 12 subwords, of 2 bits each.
    score = compute_perplexity(-12 * math.log(4), lines=2, subwords=10, words=6)
    assert score.parts == pytest.approx(
        {
            "per_subword": 4.0,
            "per_word": 4.0 ** (12 / 8),
            "bits_per_subword": 2.0,
            "bits_per_word": 3.0,
            "subwords": 12,
            "words": 8,
            "log_prob": -12 * math.log(4),
        }
    )
    assert score.value == score.parts["per_word"] == pytest.approx(8.0)


def test_without_eos() -> None:
    score = compute_perplexity(-10 * math.log(4), lines=2, subwords=10, words=5, eos=False)
    assert score.parts["per_subword"] == pytest.approx(4.0)
    assert score.value == pytest.approx(16.0)
    assert "|eos:left-out|lines:2|" in str(score)


def test_one_line() -> None:
    line = str(compute_perplexity(-15 * math.log(8), lines=3, subwords=12, words=12))
    assert line.startswith("perplexity|unit:word|base:e|eos:counted|lines:3|lightconv:")
    assert " = 8.00 (per_subword 8.000, per_word 8.000, bits_per_subword 3.000, " in line
    assert "subwords 15, words 15, " in line


def test_impossible_text_has_infinite_perplexity() -> None:
    assert compute_perplexity(-math.inf, lines=1, subwords=1, words=1).value == math.inf
    assert compute_perplexity(-1e6, lines=1, subwords=1, words=1).value == math.inf


def test_empty_lines_have_an_end() -> None:
    assert compute_perplexity(-2 * math.log(3), lines=2, subwords=0, words=0).value == (
        pytest.approx(3.0)
    )


@pytest.mark.parametrize(
    "log_prob, counts, message",
    [
        (math.nan, {}, "log_prob=nan, expected a sum of logarithms"),
        (12.5, {}, "log_prob=12.5, .* Is it a loss"),
        (-1.0, {"lines": 0}, "lines=0, expected at least one"),
        (-1.0, {"words": -1}, "words=-1, expected at least 0 with eos=True"),
        (-1.0, {"words": 0, "eos": False}, "words=0, expected at least 1 with eos=False"),
        (-1.0, {"subwords": 3}, "subwords=3, expected at least as many as words=4"),
    ],
)
def test_errors(log_prob: float, counts: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compute_perplexity(log_prob, **{"lines": 2, "subwords": 8, "words": 4, **counts})  # type: ignore[arg-type]
