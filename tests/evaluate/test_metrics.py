"""The measures by name, and what none of them takes."""

import subprocess
import sys

import pytest

from lightconv.corpora.own import METRICS as DEFAULTS
from lightconv.evaluate.metrics import METRICS, PERPLEXITY, Metric, find_metric
from lightconv.paper.recipes import RECIPES


def test_every_metric_of_a_recipe_is_known() -> None:
    named = {recipe.task.metric for recipe in RECIPES.values()} | set(DEFAULTS.values())
    assert named <= METRICS.keys() | {PERPLEXITY}
    assert {"tokenized_bleu", "tokenized_bleu_lowercase", "tokenized_bleu_compounds"} <= named
    assert {"sacrebleu", "rouge", PERPLEXITY} <= named


def test_names() -> None:
    assert all(metric.name == name for name, metric in METRICS.items())


def test_chinese_is_cut_its_own_way() -> None:
    for lang in ("zh", "zh_CN", "zh-Hant", "ZH"):
        assert find_metric("sacrebleu", lang) is METRICS["sacrebleu_zh"]
    assert find_metric("sacrebleu", "de") is METRICS["sacrebleu"]
    assert find_metric("sacrebleu") is METRICS["sacrebleu"]
    assert find_metric("chrf", "zh") is METRICS["chrf"]
    assert find_metric("tokenized_bleu", "lowercase") is METRICS["tokenized_bleu"]


@pytest.mark.parametrize(
    "name, message",
    [
        ("tokenised_bleu", "unknown metric 'tokenised_bleu'; did you mean 'tokenized_bleu'?"),
        ("xyz", "unknown metric 'xyz'; known: tokenized_bleu, "),
        ("perplexity", "perplexity is of a model, not of texts, expected one of tokenized_bleu, "),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        find_metric(name)
    assert str(caught.value).startswith(message)


EACH = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)


@EACH
def test_different_counts(metric: Metric) -> None:
    with pytest.raises(ValueError, match=r"^2 hypotheses and 3 references, expected as many"):
        metric.score(["a", "b"], ["a", "b", "c"])
    with pytest.raises(ValueError, match=r"^2 hypotheses and 1 references 2, expected as many"):
        metric.score(["a", "b"], ["a", "b"], ["a"])


@EACH
def test_nothing_to_score(metric: Metric) -> None:
    with pytest.raises(ValueError, match="0 hypotheses and 0 references, expected at least one"):
        metric.score([], [])
    with pytest.raises(ValueError, match="no references"):
        metric.score(["a"])
    with pytest.raises(ValueError, match="0 hypotheses and 1 references, expected as many"):
        metric.score([], ["a"])


@EACH
def test_what_is_no_list_of_texts(metric: Metric) -> None:
    with pytest.raises(ValueError, match="hypotheses is one text, expected a list"):
        metric.score("a", ["a"])
    with pytest.raises(ValueError, match="references is one text, expected a list"):
        metric.score(["a"], "a")
    with pytest.raises(ValueError, match=r"references\[1\] is NoneType, expected a text"):
        metric.score(["a", "b"], ["a", None])  # type: ignore[list-item]


@EACH
def test_empty_lines(metric: Metric) -> None:
    text = "one two three four"
    assert metric.score(["", text], ["", text]).value >= 50.0
    assert metric.score(["", ""], [text, text]).value == 0.0
    assert metric.score([text], [""]).value == 0.0
    assert metric.score([""], [""]).value == 0.0


@EACH
def test_odd_characters(metric: Metric) -> None:
    odd = "\u2028 \x0b\x1c \u200d 👩‍👩‍👧 \ufeff \u0301 ﷽ x"
    assert 0.0 <= metric.score([odd], [odd]).value <= 100.0 + 1e-9


def test_no_torch() -> None:
    code = (
        "import sys; from lightconv.evaluate import METRICS, compute_perplexity, paired_bootstrap;"
        "import lightconv.commands.evaluate; assert 'sacrebleu' not in sys.modules;"
        "METRICS['sacrebleu'].score(['a'], ['a']); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
