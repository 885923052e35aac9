"""What people see while a model is trained: a live line on a terminal, plain lines elsewhere."""

import math
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from lightconv.train.trainer import Record

if TYPE_CHECKING:
    from rich.console import Console

# Seconds between two pictures of the live line, and updates over which its rates are means.
PAUSE = 0.2
RECENT = 50


class Display(Protocol):
    """Where a run shows how far it is."""

    def update(self, record: Record, *, logged: bool) -> None:
        """After each update; `logged` every so many."""

    def note(self, text: str) -> None:
        """A line that stays."""

    def close(self) -> None:
        """Ends it."""


class Pace:
    """Tokens per second and the time that is left, from the last updates.

    Time counts from the end of the first update, which has all of a start in it: neither is known
    before the second one.
    """

    def __init__(self, max_steps: int) -> None:
        self.max_steps = max_steps
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT)

    def add(self, tokens: int) -> None:
        """After each update."""
        self._recent.append((time.monotonic(), tokens))

    @property
    def known(self) -> bool:
        """Whether there is something to go by."""
        return len(self._recent) > 1

    def tokens_per_second(self) -> float:
        """Of the last updates, whatever was done between them."""
        tokens = sum(count for _, count in self._recent) - self._recent[0][1]
        return tokens / self._seconds()

    def left(self, step: int) -> float:
        """Seconds until the last step."""
        return (self.max_steps - step) * self._seconds() / (len(self._recent) - 1)

    def _seconds(self) -> float:
        return max(self._recent[-1][0] - self._recent[0][0], 1e-9)


def show_duration(seconds: float) -> str:
    """`3:07`, `2:03:07`, `5 days 2:03:07`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    clock = f"{hours}:{minutes:02}:{rest:02}" if hours or days else f"{minutes}:{rest:02}"
    return clock if not days else f"{days} day{'s' if days > 1 else ''} {clock}"


def perplexity(nll: float) -> float:
    """exp(nll), which is infinite where no float holds it."""
    return math.inf if nll > 700.0 else math.exp(nll)


def describe(record: Record, pace: Pace) -> str:
    """One line about an update."""
    text = (
        f"step {record.step:,}/{pace.max_steps:,}  loss {record.loss:.3f}  "
        f"ppl {perplexity(record.nll):.4g}  lr {record.lr:.2e}"
    )
    if not pace.known:
        return text
    left = show_duration(pace.left(record.step))
    return f"{text}  {pace.tokens_per_second():,.0f} tokens/s  {left} left"


def describe_validation(entry: Mapping[str, Any], *, improved: bool) -> str:
    """One line about a validation."""
    parts = [f"step {entry['step']:,}  validation", f"loss {entry['loss']:.3f}"]
    parts.append(f"ppl {entry['perplexity']:.4g}")
    parts += [f"{name} {value:.4g}" for name, value in entry.get("metric", {}).items()]
    return "  ".join(parts) + ("  (best so far)" if improved else "")


def describe_patience(stale: int) -> str:
    """Why a run ends before its last step."""
    return f"training ends: validations without a better one, {stale} in a row (train.patience)"


class Lines:
    """A line for each logged update."""

    def __init__(self, max_steps: int, file: TextIO) -> None:
        self._pace = Pace(max_steps)
        self._file = file

    def update(self, record: Record, *, logged: bool) -> None:
        """Prints if `logged`."""
        self._pace.add(record.tokens)
        if logged:
            self.note(describe(record, self._pace))

    def note(self, text: str) -> None:
        """Prints; a run does not end because nobody listens any more."""
        with suppress(OSError):
            print(text, file=self._file, flush=True)

    def close(self) -> None:
        """Has nothing to do."""


class LiveLine:
    """One line that is drawn again, a few times a second; notes scroll away above it."""

    def __init__(self, max_steps: int, console: "Console") -> None:
        from rich.live import Live

        self._pace = Pace(max_steps)
        # No thread of its own: the line changes with updates, and these draw it.
        self._live: Live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()
        self._drawn = -math.inf

    def update(self, record: Record, *, logged: bool) -> None:
        """Draws if it is time to."""
        from rich.text import Text

        self._pace.add(record.tokens)
        now = time.monotonic()
        if now - self._drawn >= PAUSE:
            self._drawn = now
            text = Text(describe(record, self._pace), overflow="ellipsis", no_wrap=True)
            with suppress(OSError):
                self._live.update(text, refresh=True)

    def note(self, text: str) -> None:
        """Prints above the line."""
        with suppress(OSError):
            self._live.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Takes the line away."""
        with suppress(OSError):
            self._live.stop()


def open_display(max_steps: int, *, quiet: bool = False) -> Display:
    """What fits to stderr; nothing is shown if `quiet`."""
    if quiet:
        return Silence()
    if not sys.stderr.isatty():
        return Lines(max_steps, sys.stderr)
    from rich.console import Console

    return LiveLine(max_steps, Console(stderr=True))


class Silence:
    """Shows nothing: for all ranks but the first."""

    def update(self, record: Record, *, logged: bool) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""
