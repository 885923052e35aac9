"""Tables: aligned in a pipe, whole on a narrow terminal, Markdown for a page."""

import sys

import pytest

from lightconv.console import aligned, markdown, print_groups, tell_waiting

GROUPS = {"One": [["a", "1"], ["long name", "20"]], "Two": [["b", "300"]]}
HEADER = ("name", "count")


def test_aligned() -> None:
    assert aligned(GROUPS, HEADER, ("count",)) == (
        "One\n\n"
        "name       count\n"
        "a              1\n"
        "long name     20\n\n"
        "Two\n\n"
        "name       count\n"
        "b            300"
    )


def test_without_title_and_header() -> None:
    assert aligned({"": [["a", "1"], ["bb", "2"]]}, ("", ""), ()) == "a   1\nbb  2"


def test_markdown() -> None:
    assert markdown({"One": [["a", "1"]]}, HEADER, ("count",)) == (
        "### One\n\n| name | count |\n| --- | ---: |\n| a | 1 |"
    )


def test_a_pipe_gets_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_groups(GROUPS, HEADER, ("count",))
    assert capsys.readouterr().out == aligned(GROUPS, HEADER, ("count",)) + "\n"


def test_a_narrow_terminal_loses_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    row = ["x" * 30, "[not markup] " + "y" * 40, "12,345"]
    print_groups({"Title": [row]}, ("a", "b", "c"), ("c",))
    out = capsys.readouterr().out
    assert all(cell in out for cell in row)
    assert "Title" in out


def test_whoever_watches_is_told_to_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tell_waiting("counting")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    tell_waiting("counting")
    assert capsys.readouterr() == ("", "counting ...\n")
