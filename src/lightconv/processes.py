"""Processes that end with their parent, and an ordered pool of workers.

Each worker of the pool has its own pipe and shares no lock or queue with another, so the death of
one is noticed at once. A `ProcessPoolExecutor` can wait forever if a worker dies while it
holds the lock of the queue.
"""

import ctypes
import gc
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

# Environment variable: the process that a command must not outlive.
PARENT = "LIGHTCONV_PARENT"
# Exit codes of commands.
EXIT_FAILURE = 1  # the machine or the program failed
EXIT_INPUT = 2  # the user gave something unusable
EXIT_DIVERGED = EXIT_DIFFERS = 3  # a run; data that is not the paper's
EXIT_STOPPED = 75  # stopped by SIGTERM after saving
EXIT_INTERRUPT = 130
# Items queued per worker, so that none waits for its next one.
AHEAD = 2
# Seconds a worker that died or was killed has to leave its exit code.
PATIENCE = 10.0


def exit_code(error: BaseException) -> int:
    """Exit code of a command that ends with this error, which may have one as an attribute."""
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPT
    if code := getattr(error, "exit_code", 0):
        return int(code)
    # The last four are about a name that the user gave.
    names = FileNotFoundError | FileExistsError | IsADirectoryError | NotADirectoryError
    return EXIT_INPUT if isinstance(error, ValueError | names) else EXIT_FAILURE


def watch_parent(parent: int, interval: float = 0.5) -> None:
    """Kills this process when `parent` ends: by the kernel on Linux, else a thread watches."""
    if sys.platform == "linux":  # at any moment, also while no thread can run
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

    def watch() -> None:  # it may have ended before this
        while os.getppid() == parent:
            time.sleep(interval)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="parent").start()


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
    idle: SimpleQueue[_Worker] = SimpleQueue()
    pending: deque[Future[R]] = deque()

    def call(item: T) -> R:
        worker = idle.get()
        try:
            return worker.call(function, item)
        finally:
            idle.put(worker)

    with ThreadPoolExecutor(processes) as threads:
        try:
            for item in items:
                while len(team) < processes:  # all at once: they take a moment to start
                    team.append(_Worker())
                    idle.put(team[-1])
                pending.append(threads.submit(call, item))
                if len(pending) == AHEAD * processes:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            for worker in team:
                worker.end()


class _Worker:
    """A worker process with its own pipe; one thread at a time calls it."""

    def __init__(self) -> None:
        # Not forked: a copy of a process with threads may hang.
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, os.getpid()), daemon=True)
        # Otherwise the first start would start the tracker, which unblocks SIGINT.
        resource_tracker.ensure_running()
        # A worker inherits the blocked SIGINT and leaves Ctrl-C to its parent.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def call(self, function: Callable[[T], R], item: T) -> R:
        message = pickle.dumps((function, item))
        try:
            self._pipe.send_bytes(message)
            # Its exit is watched too, since another process may hold a copy of its end of the pipe.
            wait([self._pipe, self._process.sentinel])
            if not self._pipe.poll():
                raise EOFError
            succeeded, value = pickle.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            self._process.join(PATIENCE)
            code = self._process.exitcode
            names = {-number: number.name for number in signal.Signals}
            raise ChildProcessError(
                f"a worker process died ({names.get(code or 0, f'exit code {code}')}), expected it "
                "to finish. If memory ran out, use fewer --processes; a script needs "
                "`if __name__ == '__main__':` around its code"
            ) from None
        if not succeeded:
            raise value
        result: R = value
        return result

    def end(self) -> None:
        self._process.kill()
        self._process.join(PATIENCE)


def _work(pipe: Connection, parent: int) -> None:
    """Answers messages until the process is killed."""
    # Lists of words and ids are many and never cyclic: frequent collections only cost time.
    gc.set_threshold(200_000)
    watch_parent(parent)
    with suppress(EOFError, OSError):  # the parent is gone
        while True:
            message = pipe.recv_bytes()
            try:
                function, item = pickle.loads(message)
                answer = pickle.dumps((True, function(item)))
            except Exception as error:
                answer = pickle.dumps((False, _portable(error)))
            pipe.send_bytes(answer)


def _portable(error: Exception) -> Exception:
    """The error with its traceback as a note; a RuntimeError if it cannot be pickled."""
    note = "".join(traceback.format_exception(error))
    try:
        found: Exception = pickle.loads(pickle.dumps(error))
    except Exception:
        found = RuntimeError(f"{type(error).__name__}: {error}")
    found.add_note(f"in a worker process:\n{note}")
    return found
