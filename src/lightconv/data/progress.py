"""What people see while texts are prepared: a bar on a terminal, a line now and then elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

# Seconds between two lines about the same work, and between two pictures of a bar.
PAUSE = 10.0
BLINK = 0.2


class Display(Protocol):
    """Where progress is shown."""

    def note(self, text: str) -> None:
        """A line that stays."""

    def show(self, what: str, done: int, total: int | None = None) -> None:
        """How many examples of some work are done; of how many, if that is known."""

    def end(self) -> None:
        """The work shown last is done."""


class Silence:
    """Shows nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def show(self, what: str, done: int, total: int | None = None) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


class Pace:
    """How fast one piece of work goes, and how long it will take."""

    def __init__(self, what: str, done: int) -> None:
        self.what = what
        self.begin = time.monotonic()
        self._first = done
        self.done = done
        self.total: int | None = None

    def describe(self) -> str:
        """`encoding train: 120,000 of 160,000 (75 %), 52,000/s, 0.8 s left`."""
        rate = (self.done - self._first) / max(time.monotonic() - self.begin, 1e-9)
        parts = [f"{self.what}: {self.done:,}"]
        if self.total:
            parts[0] += f" of {self.total:,} ({min(self.done / self.total, 1):.0%})"
        parts.append(f"{rate:,.0f}/s")
        if self.total and rate:
            parts.append(f"{_clock(max(self.total - self.done, 0) / rate)} left")
        return ", ".join(parts)

    def describe_end(self) -> str:
        """`encoding train: 160,000 in 3.1 s`."""
        took = _clock(time.monotonic() - self.begin)
        return f"{self.what}: {self.done:,} in {took}" if self.done else f"{self.what}: {took}"


class Lines:
    """A line every ten seconds, and one when some work has ended."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._pace: Pace | None = None
        self._printed = 0.0

    def note(self, text: str) -> None:
        """Prints."""
        print(text, file=self._file, flush=True)

    def show(self, what: str, done: int, total: int | None = None) -> None:
        """Prints if it is time to."""
        if self._pace is None or self._pace.what != what:
            self.end()
            self._pace = Pace(what, done)
            self._printed = self._pace.begin
        self._pace.done, self._pace.total = done, total
        if time.monotonic() - self._printed >= PAUSE:
            self._printed = time.monotonic()
            self.note(self._pace.describe())

    def end(self) -> None:
        """Prints how long it took."""
        if self._pace is not None:
            self.note(self._pace.describe_end())
            self._pace = None


class Bar:
    """One line that is drawn again; notes and what has ended stay above it."""

    def __init__(self, progress: "Progress") -> None:
        self._progress = progress
        self._task = progress.add_task("", start=False, visible=False)
        self._pace: Pace | None = None
        self._drawn = 0.0

    def note(self, text: str) -> None:
        """Prints above the line."""
        self._progress.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, what: str, done: int, total: int | None = None) -> None:
        """Draws if it is time to."""
        if self._pace is None or self._pace.what != what:
            self.end()
            self._pace = Pace(what, done)
            self._progress.reset(self._task, visible=True)
        self._pace.done, self._pace.total = done, total
        if time.monotonic() - self._drawn >= BLINK:
            self._drawn = time.monotonic()
            self._progress.update(
                self._task, completed=done, total=total, description=self._pace.describe()
            )
            self._progress.refresh()

    def end(self) -> None:
        """Leaves how long it took."""
        if self._pace is not None:
            self._progress.update(self._task, visible=False)
            self.note(self._pace.describe_end())
            self._pace = None


@contextmanager
def open_display() -> Iterator[Display]:
    """What fits to stderr."""
    if not sys.stderr.isatty():
        yield Lines(sys.stderr)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (BarColumn(bar_width=24), TextColumn("{task.description}", markup=False))
    # No thread of its own: what is shown changes with the work, which draws it.
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True) as p:
        yield Bar(p)


def _clock(seconds: float) -> str:
    """`3.2 s`, `0:03:07`, `1 day, 2:03:07`."""
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))
