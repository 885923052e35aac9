"""The page shows texts as they are; pictures show their numbers."""

import re
from typing import Any

from lightconv.demo.page import make_page
from lightconv.demo.plan import PLANS
from lightconv.demo.page import draw_growth, draw_learning

NASTY = "<script>alert('x')</script> & \"quotes\" </dd></main>"


def results(**changes: Any) -> dict[str, Any]:
    score = {"metric": "sacrebleu", "value": 12.3456, "parts": {}, "signature": f"a|{NASTY}"}
    times = {"DynamicConv": 1.0, "attention, fused": 4.0}
    # A causal DynamicConv of width 2 over two tokens, and a LightConv of width 3.
    dynamic = {"layer": NASTY, "left": 1, "weights": [[[0.25, 0.75], [0.5, 0.5]]]}
    learned = {"layer": "encoder 1", "left": 1, "weights": [[0.2, 0.7, 0.1]]}
    return {
        "key": "key",
        "data": {
            **{"corpus": f"synthetic-{NASTY}", "lead": 24},
            **{"examples": {"train": 3}, "scored": 2},
        },
        "training": {"parameters": 10, "tokens": 7, "seconds": 61.0, "log": []},
        "scores": {"model": [score], "copy": [{**score, "value": 1.0}]},
        "examples": [{"source": NASTY, "output": NASTY, "reference": "word " * 100}],
        "growth": [{"length": 64, "tokens": 64, "microseconds": times, "bytes": None}],
        "kernels": {"text": ["a", NASTY], "learned": [learned], "dynamic": [dynamic]},
        "machine": NASTY,
        **changes,
    }


def test_texts_are_escaped() -> None:
    page = make_page("translation", PLANS["translation"], results())
    assert "<script" not in page and "</dd></main>" not in page
    assert 'title="&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &#34;quotes' in page
    assert page.count("&lt;script&gt;") >= 8


def test_figures_of_the_page() -> None:
    page = make_page("translation", PLANS["translation"], results())
    assert "<b>12.3</b>" in page and "<b>4x</b>" in page
    assert "1 min 1 s" in page and "the first 24 words are read. The text is invented." in page
    assert "word …" in page and page.count("word ") < 70  # a long text is cut
    plain = results()["data"] | {"lead": None, "corpus": "debian-en-de"}
    page = make_page("translation", PLANS["translation"], results(data=plain))
    assert "words are read" not in page and "invented" not in page


# --- Pictures


def test_kernels_as_maps() -> None:
    page = make_page("translation", PLANS["translation"], results())
    assert "<th>-1</th><th>0</th><th>+1</th>" in page
    assert '<td style="--w:0.2">0.20</td><td style="--w:0.7">0.70</td>' in page
    # What reaches before the text is left out; shades are relative to the largest weight.
    first, second = re.findall(r"<tr><th>(?:a|&lt;.*?)</th>(<td.*?)</tr>", page)
    assert re.findall(r"<td(?: style=\"--w:(\S+)\")?", first) == ["1.000", ""]
    assert re.findall(r"<td(?: style=\"--w:(\S+)\")?", second) == ["0.667", "0.667"]
    without = results(kernels={"text": [], "learned": [], "dynamic": []})
    assert 'class="map' not in make_page("translation", PLANS["translation"], without)


def test_pictures_of_what_may_be_missing() -> None:
    assert draw_learning([])
    assert draw_learning([{"kind": "valid", "step": 3, "nll": None}])
    row = {"length": 8, "microseconds": {"a": 1.0, "b": 2.0}, "bytes": None}
    assert draw_growth([row])
    later = {"length": 16, "microseconds": {"a": 1.0}, "bytes": {"a": 0.0}}
    assert draw_growth([{**row, "bytes": {"a": 1.0, "b": 3.0}}, later])


def test_the_same_results_are_the_same_picture() -> None:
    log = [{"kind": "train", "step": 1, "nll": 2.0}, {"kind": "train", "step": 2, "nll": 1.0}]
    assert draw_learning(log) == draw_learning(log) != draw_learning(log[:1])
