"""Text for people: tables, progress, names and durations."""

import io
import re
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from lightconv import console
from lightconv.console import (
    Display,
    aligned,
    markdown,
    print_groups,
    read_duration,
    show_duration,
    suggest,
    tell,
    tell_waiting,
)

GROUPS = {"One": [["a", "1"], ["long name", "20"]], "Two": [["b", "300"]]}
HEADER = ("name", "count")


def test_tables() -> None:
    assert aligned(GROUPS, HEADER, ("count",)) == (
        "One\n\nname       count\na              1\nlong name     20\n\n"
        "Two\n\nname       count\nb            300"
    )
    assert aligned({"": [["a", "1"], ["bb", "2"]]}, ("", ""), ()) == "a   1\nbb  2"
    assert markdown({"One": [["a", "1"]]}, HEADER, ("count",)) == (
        "### One\n\n| name | count |\n| --- | ---: |\n| a | 1 |"
    )


def test_a_narrow_terminal_loses_nothing_and_a_pipe_is_wide(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_groups(GROUPS, HEADER, ("count",))
    assert capsys.readouterr().out == aligned(GROUPS, HEADER, ("count",)) + "\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    row = ["x" * 10, "[not markup] " + "y" * 40, "12,345"]
    print_groups({"Title": [row]}, ("a", "b", "c"), ("c",))
    out = capsys.readouterr().out
    assert all(text in out for text in ("Title", row[0], "[not markup]", row[2]))
    assert out.count("y") == 40
    assert max(map(len, out.splitlines())) <= 40


# --- Progress, with a clock of the test's own


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(console, "time", clock)
    return clock


class Stderr(io.StringIO):
    terminal = False

    def isatty(self) -> bool:
        return self.terminal

    def plain(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch) -> Stderr:
    """The stderr of a test; it is a terminal if told so."""
    file = Stderr()
    monkeypatch.setattr(console, "sys", SimpleNamespace(stderr=file))
    return file


def test_lines_come_now_and_then(clock: Any, file: Stderr) -> None:
    with Display() as display:
        display.show("reading", 0, 4000)
        for second in range(1, 25):
            clock.now = 100 + second
            display.show("reading", 100 * second, 4000)
        display.note("a note")
        clock.now = 100 + 190
        display.show("counting", 7)
        clock.now += 0.5
        display.end()
        display.end()
        display.line("not kept")
        display.line("kept", keep=True)
        display.show("without a total", 1000)  # done before, so not part of the rate
        clock.now += 20
        display.show("without a total", 41000)
    assert file.getvalue().splitlines() == [
        "reading: 1,000 of 4,000 (25%), 100/s, 30.0 s left",
        "reading: 2,000 of 4,000 (50%), 100/s, 20.0 s left",
        "a note",
        "reading: 2,400 in 3:10",
        "counting: 7 in 0.5 s",
        "kept",
        "without a total: 41,000, 2,000/s",
        "without a total: 41,000 in 20.0 s",
    ]


def test_a_terminal_keeps_notes_and_ends(clock: Any, file: Stderr) -> None:
    file.terminal = True
    with Display() as display:
        display.show("reading", 0, 10)
        clock.now += 1.0
        display.show("reading", 5, 10)
        display.note("[a note]")
        display.line("a live line")
    text = file.plain()
    assert "reading: 5 of 10 (50%), 5/s, 1.0 s left" in text
    assert "[a note]\n" in text and "reading: 5 in 1.0 s" in text


def test_whoever_watches_is_told_to_wait(file: Stderr) -> None:
    for file.terminal, text in ((False, ""), (True, "counting ...\n")):
        tell_waiting("counting")
        assert file.getvalue() == text


def test_a_quiet_display_says_nothing(file: Stderr) -> None:
    with Display(quiet=True, idle="waiting") as display:
        display.show("reading", 1, 2)
        display.note("a note")
        display.line("a line", keep=True)
    assert file.getvalue() == ""


# --- No silence: a thread writes when nothing else does


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "BLINK", 0.02)
    monkeypatch.setattr(console, "IDLE_PAUSE", 0.1)


def wait_for(file: Stderr, pattern: str, count: int = 1) -> None:
    until = time.monotonic() + 60
    while len(re.findall(pattern, file.getvalue())) < count:
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.usefixtures("quick")
def test_an_idle_display_tells_the_time(file: Stderr) -> None:
    with Display(idle="preparing") as display:
        wait_for(file, r"preparing: \d+ s so far\n")
        display.show("thinking")
        wait_for(file, r"thinking: \d+ s so far\n")
        display.note("a note")
    lines = file.getvalue().splitlines()
    assert "a note" in lines
    assert re.fullmatch(r"thinking: \d+\.\d s", lines[-1])
    assert not [thread for thread in threading.enumerate() if thread.name == "display"]


@pytest.mark.usefixtures("quick")
def test_an_idle_terminal_sees_one_line_change(file: Stderr) -> None:
    file.terminal = True
    with Display(idle="waiting") as display:
        display.show("thinking")
        wait_for(file, r"thinking: \d+ s so far", 2)
    assert re.search(r"thinking: \d+\.\d s\n", file.plain())


@pytest.mark.usefixtures("quick")
def test_an_error_is_not_an_end(file: Stderr) -> None:
    with pytest.raises(KeyError), Display(idle="waiting") as display:
        display.show("thinking")
        raise KeyError
    assert "so far" in file.getvalue() or file.getvalue() == ""


# --- Names and durations


def test_the_nearest_name_is_suggested() -> None:
    assert suggest("trian", ["train", "valid"]) == "; did you mean 'train'?"
    assert suggest("zzz", ["train", "valid"]) == "; known: train, valid"
    assert suggest("zzz", []) == ""


def test_durations() -> None:
    shown = {7.4: "0:07", 187: "3:07", 7387: "2:03:07", 86_400: "1 day 0:00:00"}
    for seconds, text in (shown | {439_387: "5 days 2:03:07"}).items():
        assert show_duration(seconds) == text
    read = {"90s": 90, "30m": 1800, " 8h ": 28_800, "1.5d": 129_600, "45": 45}
    for text, seconds in read.items():
        assert read_duration(text) == seconds
    for text in ("", "0", "0h", "-5s", "h", "5w", "1e3", "nan", "5 h", "9" * 99):
        with pytest.raises(ValueError, match="is not a time"):
            read_duration(text)


def test_a_closed_stderr_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stderr in (closed, None):
        monkeypatch.setattr(sys, "stderr", stderr)
        tell("a line")
