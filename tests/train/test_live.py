"""What people see: the numbers of the line, plain lines in a pipe, a live line on a terminal."""

import errno
import io
import math
import re
import sys

import pytest
from rich.console import Console

from lightconv.train import Record, live
from lightconv.train.live import (
    Lines,
    LiveLine,
    Pace,
    Silence,
    describe_validation,
    open_display,
    perplexity,
    show_duration,
)


class Clock:
    """A time that goes on when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(live, "time", found)
    return found


def record(step: int, loss: float = 2.0) -> Record:
    return Record(step, loss, 1000, 3e-4, math.log(6.5), 1.0)


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0.4, "0:00"),
        (59.6, "1:00"),
        (187, "3:07"),
        (7387, "2:03:07"),
        (86400, "1 day 0:00:00"),
        (5 * 86400 + 7387, "5 days 2:03:07"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text


def test_perplexity_does_not_overflow() -> None:
    assert perplexity(math.log(8.0)) == pytest.approx(8.0)
    assert perplexity(1e6) == math.inf
    assert math.isnan(perplexity(math.nan))


def test_the_pace(clock: Clock) -> None:
    pace = Pace(max_steps=100)
    clock.now += 60.0  # torch.compile, say
    pace.add(1000)
    assert not pace.known
    for _ in range(9):
        clock.now += 2.0
        pace.add(1000)
    assert pace.tokens_per_second() == pytest.approx(500.0)
    assert pace.known
    assert pace.left(10) == pytest.approx(180.0)
    # Only the last updates count: a slow start is forgotten.
    for _ in range(live.RECENT + 1):
        clock.now += 1.0
        pace.add(1000)
    assert pace.tokens_per_second() == pytest.approx(1000.0)


def test_plain_lines(clock: Clock) -> None:
    file = io.StringIO()
    lines = Lines(2000, file)
    clock.now += 30.0  # of a start that tells nothing about the rest
    for step in range(1, 5):
        clock.now += 0.5
        lines.update(record(step), logged=step in (1, 4))
    lines.note("a note")
    lines.close()
    assert file.getvalue() == (
        "step 1/2,000  loss 2.000  ppl 6.5  lr 3.00e-04\n"
        "step 4/2,000  loss 2.000  ppl 6.5  lr 3.00e-04  2,000 tokens/s  16:38 left\na note\n"
    )


def test_a_live_line_is_drawn_a_few_times_a_second(clock: Clock) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100, _environ={})
    line = LiveLine(50, console)
    for step in range(1, 41):
        clock.now += 0.05
        line.update(record(step), logged=step % 10 == 0)
    line.note("a [note]")
    line.close()
    text = file.getvalue()
    drawn = {int(step) for step in re.findall(r"step (\d+)/50", text)}
    assert 7 <= len(drawn) <= 11
    assert "a [note]" in text
    # The line goes, and the cursor comes back.
    assert text.rstrip().endswith("\x1b[2K") or "\x1b[?25h" in text


def test_a_narrow_terminal_cuts_the_line(clock: Clock) -> None:
    file = io.StringIO()
    line = LiveLine(50, Console(file=file, force_terminal=True, width=30, _environ={}))
    line.update(record(1), logged=False)
    line.close()
    plain = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", file.getvalue())
    assert all(len(part) <= 30 for part in re.split("[\r\n]", plain))


def test_the_display_fits_to_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(open_display(10), Lines)
    assert isinstance(open_display(10, quiet=True), Silence)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    display = open_display(10)
    assert isinstance(display, LiveLine)
    display.close()


def test_nobody_listens() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.EIO, "the terminal is gone")

    for display in (
        Lines(10, Closed()),
        LiveLine(10, Console(file=io.StringIO(), force_terminal=True)),
    ):
        if isinstance(display, LiveLine):
            display._live.console.file = Closed()
        display.update(record(1), logged=True)
        display.note("x")
        display.close()


def test_a_validation_is_one_line() -> None:
    entry = {"step": 1000, "loss": 3.25, "perplexity": 12.345678, "metric": {"bleu": 27.123}}
    assert describe_validation(entry, improved=True) == (
        "step 1,000  validation  loss 3.250  ppl 12.35  bleu 27.12  (best so far)"
    )
    del entry["metric"]
    assert describe_validation(entry, improved=False).endswith("ppl 12.35")
