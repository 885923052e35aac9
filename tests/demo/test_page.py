"""The page shows texts as they are."""

from lightconv.demo.page import make_page
from lightconv.demo.plots import Picture
from lightconv.demo.results import Results

NASTY = "<script>alert('x')</script> & \"quotes\" </dd></main>"


def results() -> Results:
    score = {"metric": "sacrebleu", "value": 12.3456, "parts": {}, "signature": f"a|{NASTY}"}
    return Results(
        "key",
        data={"corpus": NASTY, "invented": True, "lead": 24, "examples": {"train": 3}, "scored": 2},
        training={"parameters": 10, "layers": NASTY, "steps": 5, "tokens": 7, "seconds": 61.0},
        scores={"model": [score], "copy": [{**score, "value": 1.0}]},
        examples=[{"source": NASTY, "output": NASTY, "reference": "word " * 100}],
        growth=[
            {"length": 64, "microseconds": {"DynamicConv": 1.0, "attention, fused": 4.0}},
        ],
        kernels={},
        machine={"processor": NASTY},
    )


def test_texts_are_escaped() -> None:
    picture = (Picture(b"<svg/>", b"<svg/>"), NASTY)
    sections = ("learning", "growth", "learned", "dynamic")
    page = make_page("translation", results(), {name: [picture] for name in sections})
    assert "<script" not in page and "</dd></main>" not in page
    assert 'alt="&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; &quot;quotes' in page
    assert page.count("&lt;script&gt;") >= 8


def test_figures_of_the_cards() -> None:
    sections = ("learning", "growth", "learned", "dynamic")
    page = make_page("translation", results(), {name: [] for name in sections})
    assert "<b>12.3</b>" in page and "<b>4x</b>" in page
    assert "1 min 1 s" in page and "its first 24 words are read. The text is invented." in page
    assert "word …" in page and page.count("word ") < 70  # a long text is cut
