"""The command `lightconv`, and `python -m lightconv`: quiet about Ctrl-C, also during imports."""

import atexit
import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import Any

EXIT_INTERRUPT = 130


def main() -> int:
    """Runs one sub-command of the program's arguments and returns the exit code."""
    sys.unraisablehook = _report
    codes: list[int] = []
    atexit.register(_leave, codes)  # the first to be registered is the last to be called
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else as by nohup
            signal.signal(signal.SIGINT, _interrupt)
        from lightconv.cli import main

        codes.append(main())
    except KeyboardInterrupt:
        codes.append(EXIT_INTERRUPT)
    finally:
        if signal.getsignal(signal.SIGINT) is _interrupt:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own end is not quiet
    return codes[0]


def _leave(codes: list[int]) -> None:
    """Ends without Python's clean-up of every object, which takes a second after `import torch`."""
    if codes:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(codes[0])


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
        os.write(2, b"\x1b[?25h")  # a live line may have hidden it
    os._exit(EXIT_INTERRUPT)


if __name__ == "__main__":
    sys.exit(main())
