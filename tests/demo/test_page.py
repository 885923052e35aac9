"""The page shows texts as they are; pictures show their numbers."""

import warnings
from typing import Any

import pytest

from lightconv.demo.page import make_page
from lightconv.demo.plots import draw_dynamic, draw_growth, draw_learned, draw_learning, spread

NASTY = "<script>alert('x')</script> & \"quotes\" </dd></main>"


def results(**changes: Any) -> dict[str, Any]:
    score = {"metric": "sacrebleu", "value": 12.3456, "parts": {}, "signature": f"a|{NASTY}"}
    times = {"DynamicConv": 1.0, "attention, fused": 4.0}
    training = {"parameters": 10, "layers": NASTY, "steps": 5, "tokens": 7, "seconds": 61.0}
    layer = {"layer": NASTY, "left": 0, "weights": [[[1.0], [1.0]]]}
    return {
        "key": "key",
        "data": {
            **{"corpus": NASTY, "invented": True, "lead": 24},
            **{"examples": {"train": 3}, "scored": 2},
        },
        "training": training | {"log": []},
        "scores": {"model": [score], "copy": [{**score, "value": 1.0}]},
        "examples": [{"source": NASTY, "output": NASTY, "reference": "word " * 100}],
        "growth": [{"length": 64, "tokens": 64, "microseconds": times, "bytes": None}],
        "kernels": {"text": ["a", NASTY], "learned": [], "dynamic": [layer]},
        "machine": {"processor": NASTY},
        **changes,
    }


def test_texts_are_escaped() -> None:
    page = make_page("translation", results())
    assert "<script" not in page and "</dd></main>" not in page
    assert 'alt="&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &#34;quotes' in page
    assert page.count("&lt;script&gt;") >= 8


def test_figures_of_the_page() -> None:
    page = make_page("translation", results())
    assert "<b>12.3</b>" in page and "<b>4x</b>" in page
    assert "1 min 1 s" in page and "the first 24 words are read. The text is invented." in page
    assert "word …" in page and page.count("word ") < 70  # a long text is cut
    plain = results()["data"] | {"lead": None, "invented": False}
    page = make_page("translation", results(data=plain))
    assert "words are read" not in page and "invented" not in page


# --- Pictures


def test_kernels_as_a_matrix() -> None:
    # Causal kernels of width 3 over four positions; the first two reach before the text.
    kernels = [[0.1, 0.2, 0.7], [0.1, 0.3, 0.6], [0.2, 0.3, 0.5], [0.3, 0.3, 0.4]]
    assert spread(kernels, left=2) == [
        [0.7, 0.0, 0.0, 0.0],
        [0.3, 0.6, 0.0, 0.0],
        [0.2, 0.3, 0.5, 0.0],
        [0.0, 0.3, 0.3, 0.4],
    ]
    assert spread([[0.2, 0.8], [0.4, 0.6]], left=0) == [[0.2, 0.8], [0.0, 0.4]]


@pytest.mark.parametrize("token", ["$x$", "$\\frac$", "<b>&", "\\alpha", "中文", "a b", "\x07"])
def test_any_text_is_a_label(token: str) -> None:
    layer = {"left": 1, "weights": [[[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]]]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert draw_dynamic(layer, [token, "</s>"]).startswith(b"<?xml")


def test_pictures_of_what_may_be_missing() -> None:
    assert draw_learning([])
    assert draw_learning([{"kind": "valid", "step": 3, "nll": None}])
    row = {"length": 8, "microseconds": {"a": 1.0, "b": 2.0}, "bytes": None}
    assert draw_growth([row])
    later = {"length": 16, "microseconds": {"a": 1.0}, "bytes": {"a": 0.0}}
    assert draw_growth([{**row, "bytes": {"a": 1.0, "b": 3.0}}, later])
    wide = [[1 / 31] * 31] * 16
    assert draw_learned([{"layer": "layer 1", "left": 30, "weights": wide}])


def test_the_same_results_are_the_same_picture() -> None:
    log = [{"kind": "train", "step": 1, "nll": 2.0}, {"kind": "train", "step": 2, "nll": 1.0}]
    assert draw_learning(log) == draw_learning(log) != draw_learning(log[:1])
