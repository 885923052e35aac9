"""Requests to stop: by a signal, by Ctrl-C or by the clock."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import Self

from lightconv.processes import EXIT_INTERRUPT, EXIT_STOPPED

_SHOW_CURSOR = b"\x1b[?25h"
_HINT = b"\nstopping after this update; Ctrl-C once more quits at once\n"


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Passes SIGTERM, SIGHUP and Ctrl-C to `handler`, except those ignored before, as by nohup."""
    before = {}
    if threading.current_thread() is threading.main_thread():  # others may have no handlers
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            if signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


class Stop(ExitStack):
    """A request to save and end; a context manager.

    While it is open, SIGTERM, SIGHUP and the first Ctrl-C are noted and interrupt nothing; a second
    Ctrl-C is a KeyboardInterrupt.

    code         0, or the exit code of the request
    max_seconds  time after which it asks by itself
    quiet        print nothing
    hard         a second Ctrl-C ends the process at once: an exception that comes while a pool of
                 threads holds a lock would wait forever. Checkpoints survive it as they do kill -9
    """

    def __init__(
        self, max_seconds: float | None = None, *, quiet: bool = False, hard: bool = False
    ) -> None:
        super().__init__()
        self._code = 0
        self._quiet = quiet
        self._hard = hard
        self._deadline = None if max_seconds is None else time.monotonic() + max_seconds

    @property
    def code(self) -> int:
        late = self._deadline is not None and time.monotonic() >= self._deadline
        return self._code or (EXIT_STOPPED if late else 0)

    def __enter__(self) -> Self:
        self.enter_context(handled(self._note))
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGINT:
            self._code = self._code or EXIT_STOPPED
        elif self._code != EXIT_INTERRUPT:
            self._code = EXIT_INTERRUPT
            if not self._quiet:
                with suppress(OSError):
                    os.write(2, _HINT)  # not print: the signal may have come in the middle of one
        elif not self._hard:
            raise KeyboardInterrupt
        else:
            with suppress(OSError):
                if os.isatty(2):
                    os.write(2, _SHOW_CURSOR)  # a live line may have hidden it
            os._exit(EXIT_INTERRUPT)
