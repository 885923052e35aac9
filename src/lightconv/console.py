"""Text for people: tables, notes and progress."""

import difflib
import json
import re
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import zip_longest
from typing import Any, Self, TextIO

Rows = Sequence[Sequence[str]]

# Seconds between two lines about the same work, in an idle display, and between two redraws.
PAUSE, IDLE_PAUSE, BLINK = 10.0, 2.0, 0.2
# Characters that a wrapped column keeps on a narrow terminal.
NARROWEST = 16
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def tell(text: str) -> None:
    """Prints a line to stderr; a closed stderr is not an error."""
    with suppress(OSError, ValueError, AttributeError):
        print(text, file=sys.stderr, flush=True)


def tell_waiting(what: str) -> None:
    """Announces seconds of silence on a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        tell(f"{what} ...")


def suggest(name: str, known: Collection[str]) -> str:
    """The end of an error about an unknown name: the nearest known one, else all of them."""
    if near := difflib.get_close_matches(name, known, n=1):
        return f"; did you mean '{near[0]}'?"
    return f"; known: {', '.join(known)}" if known else ""


def show_duration(seconds: float) -> str:
    """`0:07`, `3:07`, `2:03:07`, `5 days 2:03:07`."""
    return re.sub("^0:0?", "", str(timedelta(seconds=round(seconds)))).replace(",", "")


def read_duration(text: str) -> float:
    """`90s`, `30m`, `8h`, `1.5d`, or a number of seconds."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhd]?)", text.strip())
    if found is None or float(found[1]) == 0.0:
        raise ValueError(f"{text[:60]!r} is not a time, expected one such as 90s, 30m, 8h or 2d")
    return float(found[1]) * _UNITS[found[2] or "s"]


def print_groups(groups: Mapping[str, Rows], header: Sequence[str], right: Sequence[str]) -> None:
    """Prints one table in titled parts, as `aligned`, in the width of a terminal, or as JSON."""
    if _json is None:
        print(aligned(groups, header, right, _width()), flush=True)
        return
    for record in _records(groups, header):
        print(json.dumps(record, ensure_ascii=False), file=_json, flush=True)


_json: TextIO | None = None  # the standard output, once tables are JSON


def set_json(*, on: bool) -> None:
    """Tables become lines of JSON, and all else that is printed goes to stderr; or no longer."""
    global _json
    if on and _json is None:
        _json, sys.stdout = sys.stdout, sys.stderr
    elif not on and _json is not None:
        sys.stdout, _json = _json, None


def _records(groups: Mapping[str, Rows], header: Sequence[str]) -> Iterator[dict[str, Any]]:
    """An object for each row; one for each part if rows are names and values."""
    for title, part in groups.items():
        named = {"part": title} if title else {}
        if len(header) == 2 and not any(header):
            yield named | {name: _number(value) for name, value in part if name}
            continue
        keys = [name or ("name" if place == 0 else f"{place}") for place, name in enumerate(header)]
        for row in part:
            yield named | dict(zip(keys, map(_number, row), strict=True))


def _number(cell: str) -> Any:
    """`1,234.5` as a number; other text as it is."""
    if not re.fullmatch(r"-?\d[\d,]*(\.\d+)?", cell):
        return cell
    plain = cell.replace(",", "")
    return float(plain) if "." in plain else int(plain)


def print_text(text: str) -> None:
    """Prints a paragraph, wrapped on a terminal."""
    width = _width()
    print(text if width is None else textwrap.fill(text, width), flush=True)


def _width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_rows(rows: Rows, header: Sequence[str] = ("", ""), right: Sequence[str] = ()) -> None:
    """Prints a table; without a header, of names and values."""
    print_groups({"": rows}, header, right)


def aligned(
    groups: Mapping[str, Rows],
    header: Sequence[str],
    right: Sequence[str],
    width: int | None = None,
) -> str:
    """Plain text; all parts share their column widths. An empty title or header is left out.

    right  names of the columns that are aligned to the right
    width  of the terminal: columns are wrapped to fit; rows with too many become records
    """
    rows = [header, *(row for part in groups.values() for row in part)]
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    excess = sum(widths) + 2 * (len(widths) - 1) - (width or sys.maxsize)
    left = [place for place, name in enumerate(header) if name not in right]
    words = [max(len(w) for cell in column for w in cell.split() or [""]) for column in columns]
    least = [NARROWEST if place in left else words[place] for place in range(len(widths))]
    for place in sorted(range(len(widths)), key=lambda n: (n in left, widths[n]), reverse=True):
        cut = max(min(excess, widths[place] - least[place]), 0)
        widths[place], excess = widths[place] - cut, excess - cut
    if excess > 0 and len(header) > 2:
        parts = [textwrap.fill(title, width or sys.maxsize) for title in groups if title]
        records = [list(zip(header, row, strict=True)) for row in rows[1:]]
        parts += [aligned({"": record}, ("", ""), (), width) for record in records]
        return "\n\n".join(parts)
    signs = [">" if name in right else "<" for name in header]

    def lines(row: Sequence[str]) -> Iterator[str]:
        wrapped = [
            textwrap.wrap(cell, size) if len(cell) > size else [cell]
            for cell, size in zip(row, widths, strict=True)
        ]
        for cells in zip_longest(*wrapped, fillvalue=""):
            yield "  ".join(map("{:{}{}}".format, cells, signs, widths)).rstrip()

    parts = []
    for title, part in groups.items():
        body = [header, *part] if any(header) else part
        top = [textwrap.fill(title, width or sys.maxsize), ""] if title else []
        parts.append("\n".join([*top, *(line for row in body for line in lines(row))]))
    return "\n\n".join(parts)


def markdown(groups: Mapping[str, Rows], header: Sequence[str], right: Sequence[str]) -> str:
    """A heading and a Markdown table for each part."""
    rule = ["---:" if name in right else "---" for name in header]
    parts = []
    for title, part in groups.items():
        lines = ["| " + " | ".join(row) + " |" for row in (header, rule, *part)]
        parts.append("\n".join([f"### {title}", "", *lines]))
    return "\n\n".join(parts)


class Display:
    """Progress on stderr, a context manager: a live line on a terminal, occasional lines elsewhere.

    quiet  show nothing
    idle   text to show while nothing is counted; the line is then redrawn by a thread
    """

    def __init__(self, *, quiet: bool = False, idle: str = "") -> None:
        self._file, self._idle = sys.stderr, idle
        self._quiet = quiet or self._file is None
        self._pause = IDLE_PAUSE if idle else PAUSE
        self._live: Any = None
        self._lock, self._ended = threading.RLock(), threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True, name="display")
        self._begin("")
        self._shown = self._began

    def __enter__(self) -> Self:
        if not self._quiet and self._file.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(file=self._file), auto_refresh=False, transient=True)
            self._live.start()
            self._pause = BLINK
        if self._idle and not self._quiet:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        if kind is None:
            self.end()
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._live is not None:
            with suppress(OSError):
                self._live.stop()

    def note(self, text: str) -> None:
        """Prints a line that stays."""
        with self._lock, suppress(OSError, ValueError):
            if self._quiet:
                return
            self._shown = time.monotonic()
            if self._live is not None:
                self._live.console.print(text, highlight=False, markup=False, soft_wrap=True)
            else:
                print(text, file=self._file, flush=True)

    def show(self, what: str, done: int = 0, total: int | None = None) -> None:
        """Shows how much of some work is done; another `what` ends the work before it."""
        with self._lock:
            if what != self._what:
                self.end()
                self._begin(what, done)
                if not self._idle:
                    self._shown = self._began
            self._done, self._total = done, total
            self._refresh(self._progress())

    def line(self, text: str, *, keep: bool = False) -> None:
        """Redraws the live line; without a terminal it is printed if `keep`."""
        with self._lock:
            if self._live is not None:
                self._refresh(text)
            elif keep:
                self.note(text)

    def end(self) -> None:
        """Ends the work shown last; a line says how long it took."""
        with self._lock:
            if self._what:
                count = f"{self._done:,} in " if self._done else ""
                self.note(f"{self._what}: {count}{_short(time.monotonic() - self._began)}")
                self._begin("")

    def _begin(self, what: str, done: int = 0) -> None:
        self._what, self._first, self._done = what, done, done
        self._total = None
        self._began: float = time.monotonic()

    def _progress(self) -> str:
        """`encoding train: 120,000 of 160,000 (75%), 52,000/s, 0.8 s left`."""
        done, total = self._done, self._total
        rate = (done - self._first) / max(time.monotonic() - self._began, 1e-9)
        share = f" of {total:,} ({min(done / total, 1):.0%})" if total else ""
        left = f", {_short(max(total - done, 0) / rate)} left" if total and rate else ""
        return f"{self._what}: {done:,}{share}, {rate:,.0f}/s{left}"

    def _tick(self) -> None:
        """Redraws while the work itself reports nothing."""
        while not self._ended.wait(BLINK):
            with self._lock:
                spent = f"{time.monotonic() - self._began:.0f} s so far"
                waiting = f"{self._what or self._idle}: {spent}"
                self._refresh(self._progress() if self._done else waiting)

    def _refresh(self, text: str) -> None:
        if time.monotonic() - self._shown < self._pause:
            return
        if self._live is None:
            self.note(text)
            return
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        self._shown = time.monotonic()
        grid = Table.grid(padding=(0, 1))
        bar = [ProgressBar(self._total, self._done, width=24)] if self._total else []
        grid.add_row(*bar, Text(text, overflow="ellipsis", no_wrap=True))
        with suppress(OSError):
            self._live.update(grid, refresh=True)


def _short(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else show_duration(seconds)
