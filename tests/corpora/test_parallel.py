"""Sentences between tags, entities, and two texts line by line."""

from functools import partial

import pytest

from lightconv.corpora.parallel import segments, side_by_side, unescape


def test_segments_of_wmt_and_iwslt() -> None:
    sgm = [
        '<srcset setid="newstest2013" srclang="any">',
        '<doc sysid="ref" docid="cs/1" genre="news" origlang="cs">',
        "<hl>",
        '<seg id="1">A Republican strategy</seg>',
        "</hl>",
        "<p>",
        '<seg id="2"> AT&amp;T &lt;b&gt; &quot;x&quot; &#228; &apos; </seg>',
        '<seg id="3"></seg>',
        '<seg id="3a">&amp;lt;</seg>',
        '  <SEG ID="4">two</SEG> <seg id="5">on a line</seg>',
        '<seg id="6">over',
        "two lines</seg>",
        "</p>",
        "</doc>",
        "</srcset>",
    ]
    assert list(segments(sgm, "x.sgm")) == [
        "A Republican strategy",
        'AT&T <b> "x" ä \'',
        "",
        "&lt;",
        "two",
        "on a line",
        "over two lines",
    ]


def test_files_without_segments() -> None:
    with pytest.raises(ValueError, match=r"x\.sgm has no <seg>, expected a test set"):
        list(segments(["plain text", "another line"], "x.sgm"))
    with pytest.raises(ValueError, match=r"x\.sgm ends within a <seg>"):
        list(segments(['<seg id="1">one</seg>', '<seg id="2">cut'], "x.sgm"))
    endless = ['<seg id="1">', *["text"] * 2000]
    with pytest.raises(ValueError, match=r"x\.sgm, line \d+: a <seg> without its </seg>"):
        list(segments(endless, "x.sgm"))


@pytest.mark.parametrize(
    ("escaped", "plain"),
    [
        ("a &amp;amp; b", "a &amp; b"),  # once
        ("R&D, &copy=2 &unknown; & &;", "R&D, &copy=2 &unknown; & &;"),
        ("&#x4e2d;&#25991;", "中文"),
        ("&#0; &#xD800; &#9999999;", "&#0; &#xD800; &#9999999;"),
    ],
)
def test_entities(escaped: str, plain: str) -> None:
    assert unescape(escaped) == plain


def test_texts_of_different_length() -> None:
    english = [f"{'word ' * (3 + n % 7)}{n}" for n in range(40)]
    german = [f"{'Wort ' * (3 + n % 7)}{n}" for n in range(40)]
    assert list(side_by_side([english.__iter__, german.__iter__], "ab"))[39] == (
        english[39],
        german[39],
    )
    del german[25]
    pairs = side_by_side([partial(iter, english), partial(iter, german)], ("e.en", "g.de"))
    with pytest.raises(ValueError, match=r"e\.en has 40 lines and g\.de has 39.* part at line 26"):
        list(pairs)
