"""Progress as people see it, with a clock of the test's own."""

import io
import re

import pytest
from lightconv.data.progress import Bar, Lines

from lightconv.data import progress


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_lines_come_now_and_then(clock: Clock) -> None:
    file = io.StringIO()
    lines = Lines(file)
    lines.show("reading", 0, 4000)
    for second in range(1, 25):
        clock.now = 100 + second
        lines.show("reading", 100 * second, 4000)
    lines.note("a note")
    clock.now = 100 + 190
    lines.show("counting", 7)
    clock.now += 0.5
    lines.end()
    lines.end()
    assert file.getvalue().splitlines() == [
        "reading: 1,000 of 4,000 (25%), 100/s, 30.0 s left",
        "reading: 2,000 of 4,000 (50%), 100/s, 20.0 s left",
        "a note",
        "reading: 2,400 in 0:03:10",
        "counting: 7 in 0.5 s",
    ]


def test_without_a_total_there_is_a_rate(clock: Clock) -> None:
    file = io.StringIO()
    lines = Lines(file)
    lines.show("reading", 1000)
    clock.now += 20
    lines.show("reading", 41000)
    assert file.getvalue() == "reading: 41,000, 2,000/s\n", "what was done before takes no time"


def test_a_bar_leaves_lines(clock: Clock) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100)
    columns = (BarColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as shown:
        bar = Bar(shown)
        bar.show("reading", 0, 10)
        clock.now += 1.0
        bar.show("reading", 5, 10)
        bar.note("[a note]")
        bar.end()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    assert "reading: 5 of 10 (50%), 5/s, 1.0 s left" in plain
    assert "[a note]\n" in plain and "reading: 5 in 1.0 s" in plain
