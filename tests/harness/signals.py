"""Signals and time limits of the test processes."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

# Ignored by what is started with nohup or in the background of a script.
IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
# Limits of a test; far more than it takes on a busy machine.
SECONDS, SLOW_SECONDS = 600, 3600


def restore_signals() -> None:
    """Makes signals that this process was started to ignore arrive in its children.

    A child inherits that a signal is ignored, but not a handler: a handler that does nothing
    leaves this process as it was, and its children get the default.
    """
    for number in IGNORED:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, _nothing)


def _nothing(number: int, frame: Any) -> None:
    pass


@contextmanager
def time_limit(item: pytest.Item) -> Iterator[None]:
    """Fails a test that takes too long, also while it waits for something."""
    seconds = SLOW_SECONDS if item.get_closest_marker("slow") else SECONDS

    def stop(number: int, frame: Any) -> None:
        pytest.fail(f"not done after {seconds} s")  # no `except Exception` catches this

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
