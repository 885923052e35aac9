"""Articles and summaries from JSON lines, whatever their fields are called."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightconv.corpora.summaries import parse_records, summary_text


def parse(*records: Any) -> list[tuple[str, ...]]:
    return list(parse_records([json.dumps(record) for record in records], "x.jsonl"))


@pytest.mark.parametrize(
    "record",
    [
        {"id": "1", "article": "One.\nTwo.", "highlights": "A b .\nC d ."},
        {"document": "One.\r\n\r\nTwo.", "summary": ["A b .", "C d ."]},
        {"text": ["One.", "Two."], "summary": "<s> A b . </s> <s> C d . </s>"},
    ],
)
def test_all_ways_to_say_the_same(record: dict[str, Any]) -> None:
    assert parse(record) == [("One. Two.", "A b . ¶ C d .")]


def test_a_pilcrow_of_the_text_is_no_end_of_a_sentence() -> None:
    assert summary_text(["a ¶ b", "", "  ", "c\u2028d"]) == "a b ¶ c d"


def test_blank_lines_and_empty_texts() -> None:
    lines = ["", json.dumps({"article": "", "highlights": ""}), "  "]
    assert list(parse_records(lines, "x")) == [("", "")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"x, line 2: no JSON \(.*\), expected \{\"article\": ..., \"highlights\": ...\}"),
        ("[" * 100_000, "x, line 2: no JSON"),
        ("[1, 2]", r"x, line 2: '\[1, 2\]', expected"),
        ('{"title": "a", "body": "b"}', "x, line 2: fields body, title, expected"),
        ("{}", r"x, line 2: fields \(none\), expected"),
        ('{"article": 3, "highlights": "a"}', "x, line 2, article: '3', expected text"),
        ('{"article": "a", "highlights": ["b", 4]}', "x, line 2, highlights: .* expected text"),
        (r'{"article": "\ud800", "highlights": "a"}', "x, line 2, article: a lone surrogate"),
    ],
)
def test_lines_that_are_none(line: str, message: str) -> None:
    good = '{"article": "a", "highlights": "b"}'
    with pytest.raises(ValueError, match=message):
        list(parse_records([good, line], "x"))


@given(st.text(max_size=60) | st.recursive(st.integers() | st.text(), st.lists).map(json.dumps))
def test_any_line_is_an_example_or_an_error(line: str) -> None:
    try:
        found = list(parse_records([line], "x"))
    except ValueError as error:
        assert str(error).startswith("x, line 1")
    else:
        assert found == []


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=5))
def test_a_summary_is_one_line_that_can_be_taken_apart(sentences: list[str]) -> None:
    line = summary_text(sentences)
    assert "\n" not in line
    assert len(line.splitlines()) <= 1
    kept = [" ".join(text.replace("¶", " ").split()) for text in sentences]
    assert [part.strip() for part in line.split("¶") if part] == [text for text in kept if text]
