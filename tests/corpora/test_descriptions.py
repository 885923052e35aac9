"""Package descriptions: records, paragraphs, list items, sentences; hand-made indices."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightconv.corpora.descriptions import Description, read_descriptions, sentences, units

INDEX = """\
Package: foo
Description-md5: 00ff
Description-de: Werkzeug   für Dinge
 Foo ist ein
 Werkzeug.
 .
 Es kann:
  * dies
  * das,
    und jenes
 .

Package: bar
Description-md5: 11ff
Description-de: Ohne Langtext
"""


def read(path: Path, data: bytes, language: str = "de") -> list[Description]:
    path.write_bytes(data)
    return list(read_descriptions([path], language))


def test_records(tmp_path: Path) -> None:
    foo, bar = read(tmp_path / "index", INDEX.encode())
    assert foo == (
        "foo",
        "00ff",
        "Werkzeug für Dinge",
        (
            ("Foo ist ein", "Werkzeug."),
            ("Es kann:", " * dies", " * das,", "   und jenes"),
        ),
    )
    assert foo.text == "Foo ist ein Werkzeug. Es kann: * dies * das, und jenes"
    assert bar == ("bar", "11ff", "Ohne Langtext", ())


@pytest.mark.parametrize(
    "damaged",
    [
        INDEX.replace("Package: bar\n", "").encode(),
        INDEX.replace("Description-md5: 11ff\n", "").encode(),
        INDEX.replace("Description-de: Ohne", "Description-fr: Ohne").encode(),
        INDEX.encode().replace(b"Ohne", b"\xff\xfe"),
        INDEX.encode().replace(b"Ohne Langtext", b""),
    ],
)
def test_damaged_records_are_left_out(tmp_path: Path, damaged: bytes) -> None:
    assert [found.package for found in read(tmp_path / "index", damaged)] == ["foo"]


@given(st.binary(max_size=300))
def test_no_garbage_crashes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage"
    for part in (data, INDEX.encode() + data, data + INDEX.encode()):
        for found in read(path, part):
            assert found.package and found.synopsis and isinstance(found.text, str)
            for paragraph in found.paragraphs:
                assert " ".join(units(paragraph)) == " ".join(" ".join(units(paragraph)).split())


def test_units_are_text_items_and_lines() -> None:
    paragraph = [
        "Foo has a list -",
        "- as you see - of",
        " * first item",
        "   that goes on",
        "  - deeper",
        " * second",
        "and an end",
        "of two lines",
        "  $ foo --help",
        "  $ foo --version",
    ]
    assert units(paragraph) == [
        "Foo has a list - - as you see - of",
        "first item that goes on",
        "deeper",
        "second",
        "and an end of two lines",
        "$ foo --help",
        "$ foo --version",
    ]


@pytest.mark.parametrize("mark", ["*", "-", "+", "o", "•", "–", "1.", "12)", "(3)"])
def test_marks_of_list_items(mark: str) -> None:
    assert units([f"  {mark} one", f"  {mark}  two"]) == ["one", "two"]
    assert units([f" \N{NO-BREAK SPACE}{mark}\N{NO-BREAK SPACE}one"]) == ["one"]


def test_what_is_no_list_item() -> None:
    assert units(["  -option x"]) == ["-option x"]
    assert units(["  2048 tiles"]) == ["2048 tiles"]
    assert units(["  open"]) == ["open"]
    assert units([]) == []


def test_sentences() -> None:
    text = (
        'It runs on e.g. Linux. It is "free." See J. R. Doe (2001). Is it? Yes! '
        "Version 1.5 has it, etc. 3 files. lower case goes on. The end"
    )
    assert sentences(text) == [
        "It runs on e.g. Linux.",
        'It is "free."',
        "See J. R. Doe (2001).",
        "Is it?",
        "Yes!",
        "Version 1.5 has it, etc. 3 files. lower case goes on.",
        "The end",
    ]
    assert sentences("") == []


@given(st.text(alphabet="aB .!?()\"'1", max_size=60))
def test_sentences_lose_nothing(text: str) -> None:
    assert " ".join(sentences(text)).split() == text.split()
