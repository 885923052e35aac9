"""Being asked to stop: by a signal, by Ctrl-C or by the clock."""

import os
import signal
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn, Self

EXIT_STOPPED = 75  # saved, and worth going on with: the system's name for it is EX_TEMPFAIL
EXIT_INTERRUPT = 130

_SHOW_CURSOR = b"\x1b[?25h"
_HINT = b"\nstopping after this update; Ctrl-C once more quits at once\n"


class Stop:
    """Whether the run should save and end, and with which exit code; a context manager.

    While it is open, SIGTERM, the end of the terminal (SIGHUP) and the first Ctrl-C are noted, and
    nothing is interrupted; a second Ctrl-C is a KeyboardInterrupt as ever. What was ignored before,
    by nohup for instance, still is.

    max_seconds  after that time it says stop by itself
    quiet        nothing is printed
    hard         a second Ctrl-C ends the process there and then. An exception that comes while a
                 pool of threads holds one of its locks would wait for them for ever; checkpoints
                 survive it as they do kill -9
    """

    def __init__(
        self, max_seconds: float | None = None, *, quiet: bool = False, hard: bool = False
    ) -> None:
        self._code = 0
        self._quiet = quiet
        self._hard = hard
        self._deadline = None if max_seconds is None else time.monotonic() + max_seconds
        self._before: dict[int, Any] = {}

    @property
    def code(self) -> int:
        """0 to go on, else the exit code."""
        late = self._deadline is not None and time.monotonic() >= self._deadline
        return self._code or (EXIT_STOPPED if late else 0)

    def __enter__(self) -> Self:
        # Python lets the main thread alone have handlers; elsewhere the clock is what is left.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGINT:
            self._code = self._code or EXIT_STOPPED
            return
        if self._code == EXIT_INTERRUPT:
            if self._hard:
                _quit()
            raise KeyboardInterrupt
        self._code = EXIT_INTERRUPT
        if self._quiet:
            return
        # Not print: the signal may have come in the middle of one.
        with suppress(OSError):
            os.write(2, _HINT)


def _quit() -> NoReturn:
    """Ends the process; a live line may have hidden the cursor."""
    with suppress(OSError):
        if os.isatty(2):
            os.write(2, _SHOW_CURSOR)
    os._exit(EXIT_INTERRUPT)
