"""One line that says what is going on, also while nothing is being counted.

A thread draws it: a terminal sees it change, a file gets a line whenever nothing was written for
two seconds. It is a `lightconv.data.progress.Display`.
"""

import sys
import threading
import time
from contextlib import suppress
from typing import Self, TextIO

BLINK = 0.2
PAUSE = 2.0


class Watch:
    """A context manager; `file` is stderr unless given.

    idle  what is said between one thing that is shown and the next; nothing if it is empty
    """

    def __init__(self, file: TextIO | None = None, idle: str = "") -> None:
        self._idle = idle
        self._file = file or sys.stderr
        self._live = self._file.isatty()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._what = ""
        self._counts = ""
        self._begin = self._written = time.monotonic()
        self._thread = threading.Thread(target=self._draw, daemon=True, name="watch")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.end()
        self._ended.set()
        self._thread.join()
        with self._lock:
            self._write("")

    def note(self, text: str) -> None:
        """A line that stays."""
        with self._lock:
            self._write(f"  {text}\n")

    def show(self, what: str, done: int = 0, total: int | None = None) -> None:
        """What is done now, and how far it is; `end` or another `what` ends it."""
        if what != self._what:
            self.end()
            with self._lock:
                self._what, self._begin = what, time.monotonic()
        counts = f" {done:,}" if done else ""
        if done and total:
            counts += f" of {total:,}"
        self._counts = counts
        if not self._live and time.monotonic() - self._written >= PAUSE:
            self._tell()

    def end(self) -> None:
        """What was shown last is done: a line says how long it took."""
        with self._lock:
            if not self._what:
                return
            took = time.monotonic() - self._begin
            text = f"  {self._what}:{self._counts}{' in' if self._counts else ''} {took:.1f} s\n"
            self._what = self._counts = ""
            self._begin = time.monotonic()
            self._write(text)

    def _draw(self) -> None:
        while not self._ended.wait(BLINK):
            if self._live or time.monotonic() - self._written >= PAUSE:
                self._tell()

    def _tell(self) -> None:
        with self._lock:
            what = self._what or self._idle
            if not what:
                return
            spent = time.monotonic() - self._begin
            counts = f":{self._counts}," if self._counts else ":"
            text = f"  {what}{counts} {spent:.0f} s so far"
            self._write(text if self._live else f"{text}\n")

    def _write(self, text: str) -> None:
        """Over the line that is drawn, if there is one; nobody listening is no reason to stop."""
        self._written = time.monotonic()
        with suppress(OSError, ValueError):
            self._file.write(f"\r\x1b[K{text}" if self._live else text)
            self._file.flush()
