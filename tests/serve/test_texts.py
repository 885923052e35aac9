"""Texts in pieces, HTML, checked fields: against hand-made cases and by what must hold for all."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightconv.serve.api import PATHS, check, describe, parse_body
from lightconv.serve.texts import WHOLE, join, split_html, split_text


@given(st.text())
def test_pieces_are_the_text(text: str) -> None:
    pieces = split_text(text)
    assert "".join(piece.text for piece in pieces) == text
    kept = "".join(piece.text for piece in pieces if not piece.translate)
    assert not kept.strip()


def test_long_lines_are_cut_at_sentence_ends() -> None:
    sentence = "This is a sentence of forty characters. "
    pieces = [piece.text for piece in split_text(sentence * 20) if piece.translate]
    assert all(len(piece) <= WHOLE and piece.endswith(".") for piece in pieces)
    assert " ".join(pieces) == (sentence * 20).strip()
    assert [p.text for p in split_text("One. Two.\n\nThree.") if p.translate] == [
        "One. Two.",
        "Three.",
    ]


HTML = (
    ("<p>Hello &amp; <b>you</b></p>", "<p>HELLO &amp; <b>YOU</b></p>"),
    ("a<br/>b<!-- c --><script>d < e</script>", "A<br/>B<!-- c --><script>d < e</script>"),
    ('<a href="x">f</a> <code>g &lt;</code>', '<a href="x">F</a> <code>g &lt;</code>'),
    ("no tags &lt; here", "NO TAGS &lt; HERE"),
    ("", ""),
)


@pytest.mark.parametrize(("text", "expected"), HTML)
def test_html_keeps_its_tags(text: str, expected: str) -> None:
    pieces = split_html(text)
    answers = [piece.text.upper() for piece in pieces if piece.translate]
    assert join(pieces, answers, markup=True) == expected


@given(st.text(alphabet="<>;/ab!-\"' x", max_size=60))
def test_html_of_any_shape_is_kept(text: str) -> None:
    """Browsers see the same text before and after, and the same tags."""
    pieces = split_html(text)
    assert "".join(each.text for each in pieces) == text
    joined = join(pieces, [each.text for each in pieces if each.translate], markup=True)
    assert [each for each in split_html(joined) if not each.translate] == [
        each for each in pieces if not each.translate
    ]


@pytest.mark.parametrize("part", ["<a ", "<!--", "<a '", "<pre>", "</pre", "&lt;", "<![", "a. "])
def test_long_html_takes_no_time(part: str) -> None:
    begin = time.process_time()
    split_html(part * (20_000 // len(part)))
    assert time.process_time() - begin < 1


SCHEMA = PATHS["/translate"].takes
GOOD = {"q": "a", "source": "de", "target": "en"}
BAD = (
    ({"q": "a"}, "source is missing"),
    (GOOD | {"q": 5}, "q is a int, expected string or array"),
    (GOOD | {"q": ["a", 5]}, r"q\[1\] is a int"),
    (GOOD | {"q": "a" * 20_001}, "20001 characters"),
    (GOOD | {"q": ["a"] * 129}, "129 items"),
    (GOOD | {"q": "\ud800"}, "half a character"),
    (GOOD | {"alternatives": 10}, "alternatives is 10, expected 0 to 9"),
    (GOOD | {"alternatives": "x"}, "alternatives is 'x'"),
    (GOOD | {"alternatives": True}, "alternatives is a bool"),
    (GOOD | {"format": "pdf"}, "expected text or html"),
)


@pytest.mark.parametrize(("fields", "message"), BAD)
def test_bad_fields_are_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(fields, SCHEMA)


def test_forms_and_json_are_the_same() -> None:
    form = parse_body(
        b"q=a&source=de&target=en&alternatives=2", "application/x-www-form-urlencoded"
    )
    plain = parse_body(
        b'{"q":"a","source":"de","target":"en","alternatives":2}', "application/json"
    )
    assert check(form, SCHEMA) == check(plain, SCHEMA)
    assert parse_body(b"q=a&q=b", "application/x-www-form-urlencoded") == {"q": ["a", "b"]}
    for body in (b"[1]", b"{", b"[" * 100_000, b"\xff"):
        with pytest.raises(ValueError, match="expected"):
            parse_body(body, "application/json")


def test_openapi_describes_every_route() -> None:
    paths = describe([("de", "en"), ("fr", "en")], {})["paths"]
    assert set(paths) == set(PATHS)
    fields = paths["/translate"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert fields["properties"]["source"]["enum"] == ["de", "fr"]
