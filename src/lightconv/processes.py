"""Processes that end with their parent, and an ordered pool of workers.

Each worker of the pool has its own pipe and shares no lock or queue with another, so the death of
one is noticed within a second and blocks nobody. A pool of `concurrent.futures` can wait forever
when a worker dies while it holds the lock of the queue.
"""

import gc
import itertools
import os
import pickle
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

# Environment variable: the process that a command must not outlive.
PARENT = "LIGHTCONV_PARENT"
# Exit codes of commands.
EXIT_FAILURE = 1  # the machine or the program failed
EXIT_INPUT = 2  # the user gave something unusable
EXIT_DIVERGED = 3
EXIT_STOPPED = 75  # stopped by SIGTERM after saving
EXIT_INTERRUPT = 130
# System errors about a name that the user gave.
_INPUT_ERRORS = (
    ValueError,
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
)

# Items queued per worker, so that none waits for its next one.
AHEAD = 2
# Seconds between two checks that the other end of a pipe is alive.
PATIENCE = 1.0
# Seconds a process has to end after SIGTERM, once its parent is gone.
GRACE = 30.0


def exit_code(error: BaseException) -> int:
    """Exit code of a command that ends with this error."""
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPT
    return EXIT_INPUT if isinstance(error, _INPUT_ERRORS) else EXIT_FAILURE


def watch_parent(parent: int, interval: float = 0.5) -> None:
    """Sends this process SIGTERM when `parent` is no longer its parent; a thread watches.

    A parent that is killed cannot end its children itself.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(interval)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent").start()


def chunked(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items; the last one may be shorter."""
    source = iter(items)
    while chunk := list(itertools.islice(source, size)):
        yield chunk


def spread(function: Callable[[T], R], items: Iterable[T], processes: int = 1) -> Iterator[R]:
    """`map(function, items)` in worker processes, results in order; one process means this one.

    `function` and `items` must be picklable, and a script needs `if __name__ == "__main__":`.
    Items are read as they are needed. ChildProcessError if a worker dies.
    """
    if processes < 1:
        raise ValueError(f"processes={processes} must be at least 1")
    if processes == 1:
        yield from map(function, items)
        return
    team: list[_Worker] = []
    found: dict[int, tuple[bool, Any]] = {}
    wanted = 0
    try:
        for number, item in enumerate(items):
            while len(team) < processes:  # all at once: they take a moment to start
                team.append(_Worker())
            least = min(team, key=lambda worker: len(worker.busy))
            least.give(number, pickle.dumps((function, item)))
            if number - wanted >= AHEAD * processes - 1:
                yield _take(team, found, wanted)
                wanted += 1
        while found or any(worker.busy for worker in team):
            yield _take(team, found, wanted)
            wanted += 1
    finally:
        for worker in team:
            worker.end()


class _Worker:
    """A worker process; it answers the numbers in `busy` in order."""

    def __init__(self) -> None:
        # Not forked: a copy of a process with threads may hang.
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.busy: deque[int] = deque()
        self._process = context.Process(target=_work, args=(theirs, os.getpid()), daemon=True)
        # Otherwise the first start would start the tracker, which unblocks SIGINT.
        resource_tracker.ensure_running()
        with _uninterrupted():
            self._process.start()
        theirs.close()

    def give(self, number: int, message: bytes) -> None:
        """A piece of work; the process takes it from the pipe also while it does another."""
        try:
            self.pipe.send_bytes(message)
        except OSError:
            raise self._died() from None
        self.busy.append(number)

    def answer(self) -> tuple[int, tuple[bool, Any]]:
        """(number, (succeeded, result or error)) of the oldest item."""
        try:
            data = self.pipe.recv_bytes()
        except (EOFError, OSError):
            raise self._died() from None
        return self.busy.popleft(), pickle.loads(data)

    def check(self) -> None:
        """Raises ChildProcessError if the process has died without an answer."""
        if not self._process.is_alive() and not self.pipe.poll():
            raise self._died()

    def end(self) -> None:
        self._process.kill()
        self._process.join(10 * PATIENCE)
        self.pipe.close()

    def _died(self) -> ChildProcessError:
        self._process.join(PATIENCE)
        code = self._process.exitcode
        how = f"exit code {code}"
        if code is not None and code < 0:
            with suppress(ValueError):  # a number without a name
                how = signal.Signals(-code).name
        return ChildProcessError(
            f"a worker process died ({how}), expected it to finish. If memory ran out, use fewer "
            "--processes; a script needs `if __name__ == '__main__':` around what it does"
        )


def _take(team: list[_Worker], found: dict[int, tuple[bool, Any]], wanted: int) -> Any:
    """Waits for the result numbered `wanted`; results of others are kept in `found`."""
    while wanted not in found:
        ready = wait([worker.pipe for worker in team], PATIENCE)
        for worker in team:
            if worker.pipe in ready:
                number, answer = worker.answer()
                found[number] = answer
            elif not ready:
                worker.check()
    went_well, value = found.pop(wanted)
    if not went_well:
        raise value
    return value


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Blocks SIGINT, also for a process started in the block: its parent handles Ctrl-C."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(pipe: Connection, parent: int) -> None:
    """Answers messages until the process is killed."""
    # Lists of words and ids are many and never cyclic: frequent collections only cost time.
    gc.set_threshold(200_000)
    messages: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, parent, messages), daemon=True).start()
    while True:
        message = messages.get()
        try:
            function, item = pickle.loads(message)
            answer = pickle.dumps((True, function(item)))
        except Exception as error:
            answer = pickle.dumps((False, _portable(error)))
        with suppress(OSError):  # the parent is gone; the receiver ends this process
            pipe.send_bytes(answer)


def _receive(pipe: Connection, parent: int, messages: "SimpleQueue[bytes]") -> None:
    """Queues messages so that the parent never blocks; ends the process with its parent.

    The parent itself is checked, since another process may hold a copy of its end of the pipe.
    """
    while os.getppid() == parent:
        try:
            if pipe.poll(PATIENCE):
                messages.put(pipe.recv_bytes())
        except (EOFError, OSError):
            break
    os._exit(1)


def _portable(error: Exception) -> Exception:
    """The error with its traceback as a note; a RuntimeError if it cannot be pickled."""
    note = "".join(traceback.format_exception(error))
    try:
        found: Exception = pickle.loads(pickle.dumps(error))
    except Exception:
        found = RuntimeError(f"{type(error).__name__}: {error}")
    found.add_note(f"in a worker process:\n{note}")
    return found
