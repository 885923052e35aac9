"""The command `lightconv`, and `python -m lightconv`: quiet about Ctrl-C, also during imports."""

import os
import signal
import sys
from types import FrameType
from typing import Any

EXIT_INTERRUPT = 130
_SHOW_CURSOR = b"\x1b[?25h"


def main() -> int:
    """Runs one sub-command of the program's arguments and returns the exit code."""
    sys.unraisablehook = _report
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else as by nohup
            signal.signal(signal.SIGINT, _interrupt)
        from lightconv.cli import main

        return main()
    except KeyboardInterrupt:
        return EXIT_INTERRUPT
    finally:
        if signal.getsignal(signal.SIGINT) is _interrupt:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own end is not quiet


def _interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        # C++ parts of a module make another error of it, or none.
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _quit()
        frame = frame.f_back
    raise KeyboardInterrupt


def _report(error: Any) -> None:
    """Ends the process if Ctrl-C came where Python can only ignore an exception."""
    if isinstance(error.exc_value, KeyboardInterrupt):
        _quit()
    sys.__unraisablehook__(error)


def _quit() -> None:
    if os.isatty(2):
        os.write(2, _SHOW_CURSOR)  # a live line may have hidden it
    os._exit(EXIT_INTERRUPT)


if __name__ == "__main__":
    sys.exit(main())
