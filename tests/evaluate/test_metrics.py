"""Measures by name, inputs that none of them takes, perplexity by hand, scores as printed."""

import math
import subprocess
import sys
from typing import Any

import pytest

from lightconv import __version__
from lightconv.corpora.own import METRICS as DEFAULTS
from lightconv.evaluate import Score, Signature, compute_perplexity
from lightconv.evaluate.metrics import METRICS, PERPLEXITY, Metric, find_metric
from lightconv.paper.recipes import RECIPES

EACH = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)


def test_names() -> None:
    assert all(metric.name == name for name, metric in METRICS.items())
    named = {recipe.task.metric for recipe in RECIPES.values()} | set(DEFAULTS.values())
    assert named <= METRICS.keys() | {PERPLEXITY}
    assert {"tokenized_bleu", "tokenized_bleu_lowercase", "tokenized_bleu_compounds"} <= named
    assert {"sacrebleu", "rouge", PERPLEXITY} <= named


def test_chinese_has_its_own_tokeniser() -> None:
    for lang in ("zh", "zh_CN", "zh-Hant", "ZH"):
        assert find_metric("sacrebleu", lang) is METRICS["sacrebleu_zh"]
    for name, other in (("sacrebleu", "de"), ("sacrebleu", None), ("chrf", "zh")):
        assert find_metric(name, other) is METRICS[name]


@pytest.mark.parametrize(
    "name, message",
    [
        ("tokenised_bleu", r"'tokenised_bleu'; did you mean 'tokenized_bleu'\?"),
        ("xyz", "unknown metric 'xyz'; known: tokenized_bleu, "),
        ("perplexity", "perplexity .* not of texts, expected one of tokenized_bleu, "),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_metric(name)


BAD: list[tuple[Any, list[Any], str]] = [
    (["a", "b"], [["a", "b", "c"]], "^2 hypotheses and 3 references, expected the same number"),
    (["a", "b"], [["a", "b"], ["a"]], "^2 hypotheses and 1 references 2, "),
    ([], [["a"]], "^0 hypotheses and 1 references, "),
    ([], [[]], "^0 hypotheses and 0 references, expected at least one"),
    (["a"], [], "no references"),
    ("a", [["a"]], "hypotheses is one text, expected a list"),
    (["a"], ["a"], "references is one text, expected a list"),
    (["a", "b"], [["a", None]], r"references\[1\] is NoneType, expected a text"),
]


@EACH
def test_bad_texts(metric: Metric) -> None:
    for hypotheses, references, message in BAD:
        with pytest.raises(ValueError, match=message):
            metric.score(hypotheses, *references)


@EACH
def test_empty_lines_and_odd_characters(metric: Metric) -> None:
    text = "one two three four"
    assert metric.score(["", text], ["", text]).value >= 50.0
    assert metric.score(["", ""], [text, text]).value == 0.0
    assert metric.score([text], [""]).value == 0.0
    assert metric.score([""], [""]).value == 0.0
    odd = "\u2028 \x0b\x1c \u200d 👩‍👩‍👧 \ufeff \u0301 ﷽ x"
    assert 0.0 <= metric.score([odd], [odd]).value <= 100.0 + 1e-9


def test_no_torch() -> None:
    code = (
        "import sys; from lightconv.evaluate import METRICS, compute_perplexity, paired_bootstrap;"
        "import lightconv.commands.evaluate; assert 'sacrebleu' not in sys.modules;"
        "METRICS['sacrebleu'].score(['a'], ['a']); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- perplexity


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
    line = str(score)
    assert line.startswith("perplexity|unit:word|base:e|eos:counted|lines:2|lightconv:")
    assert " = 8.00 (per_subword 4.000, per_word 8.000, bits_per_subword 2.000, " in line
    score = compute_perplexity(-10 * math.log(4), lines=2, subwords=10, words=5, eos=False)
    assert score.parts["per_subword"] == pytest.approx(4.0)
    assert score.value == pytest.approx(16.0)
    assert "|eos:left-out|lines:2|" in str(score)


def test_impossible_texts_and_empty_ones() -> None:
    assert compute_perplexity(-math.inf, lines=1, subwords=1, words=1).value == math.inf
    assert compute_perplexity(-1e6, lines=1, subwords=1, words=1).value == math.inf
    ends = compute_perplexity(-2 * math.log(3), lines=2, subwords=0, words=0)
    assert ends.value == pytest.approx(3.0)


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
def test_bad_counts(log_prob: float, counts: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compute_perplexity(log_prob, **{"lines": 2, "subwords": 8, "words": 4, **counts})


# --- signatures

SIGNATURE = Signature("bleu", {"case": "mixed", "lines": 3})


def test_a_score_is_one_line() -> None:
    score = Score(27.318, {"bp": 0.98765, "ref_len": 12}, SIGNATURE)
    signature = f"bleu|case:mixed|lines:3|lightconv:{__version__}"
    assert str(score) == f"{signature} = 27.32 (bp 0.988, ref_len 12)"
    assert str(Score(1.0, {}, SIGNATURE)) == f"{signature} = 1.00"
    assert score.plain() == {
        "metric": "bleu",
        "value": 27.318,
        "parts": {"bp": 0.98765, "ref_len": 12},
        "signature": signature,
    }


def test_a_longer_signature() -> None:
    longer = SIGNATURE.extend({"beam": 4})
    assert str(longer) == f"bleu|case:mixed|lines:3|beam:4|lightconv:{__version__}"
    assert str(SIGNATURE) == f"bleu|case:mixed|lines:3|lightconv:{__version__}"
    with pytest.raises(ValueError, match="beam is already in the signature"):
        longer.extend({"beam": 5})


@pytest.mark.parametrize("text", ["", "a b", "a|b", "a\nb"])
def test_what_would_break_a_signature(text: str) -> None:
    for name, fields in ((text, {"a": "b"}), ("a", {text: "b"}), ("a", {"b": text})):
        with pytest.raises(ValueError, match="in a signature"):
            Signature(name, fields)
