"""Work spread over processes: results in order, and never more waiting than is needed.

Each process has a pipe of its own and shares no lock or queue with another. So one that dies,
whenever and of whatever, hinders nobody, and is noticed: by the end of its pipe, or within a second
by its exit. A pool of `concurrent.futures` can wait for ever then.
"""

import gc
import itertools
import os
import pickle
import signal
import threading
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

# A process that has ended one piece of work finds the next one waiting.
AHEAD = 2
# Seconds after which it is looked whether the other end still lives.
PATIENCE = 1.0


def chunked(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items, the last one perhaps shorter."""
    source = iter(items)
    while chunk := list(itertools.islice(source, size)):
        yield chunk


def spread(function: Callable[[T], R], items: Iterable[T], processes: int = 1) -> Iterator[R]:
    """`map(function, items)`, computed by several processes; one means this one.

    `function` and `items` must be picklable, and a script that asks for more than one process needs
    `if __name__ == "__main__":` around what it does. Items are read as they are needed. A process
    that dies is a ChildProcessError.
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
    """A process, and what it has been given; the numbers of `busy` are answered in their order."""

    def __init__(self) -> None:
        # Not forked: a copy of a process with threads may hang.
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.busy: deque[int] = deque()
        self._process = context.Process(target=_work, args=(theirs, os.getpid()), daemon=True)
        # The first start of a process starts this one too, and that lets Ctrl-C through again.
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
        """The number of a piece of work that is done, whether it went well, and what came of it."""
        try:
            data = self.pipe.recv_bytes()
        except (EOFError, OSError):
            raise self._died() from None
        return self.busy.popleft(), pickle.loads(data)

    def check(self) -> None:
        """Raises ChildProcessError if the process is gone and has left no answer."""
        if not self._process.is_alive() and not self.pipe.poll():
            raise self._died()

    def end(self) -> None:
        """There is nothing it could lose."""
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
            f"a worker process died ({how}), expected it to work on. If memory ran out, give fewer "
            "--processes; a script needs `if __name__ == '__main__':` around what it does"
        )


def _take(team: list[_Worker], found: dict[int, tuple[bool, Any]], wanted: int) -> Any:
    """The result of that number, when it is there; others are kept in `found`."""
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
    """Ctrl-C waits; and a process that is started here never hears it, but leaves it to its parent.

    One that is interrupted as it starts would complain.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(pipe: Connection, parent: int) -> None:
    """What a process does: answers one message after the other, until it is killed."""
    # Lists of words and ids are many and never in a circle: looking through them often costs.
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
        with suppress(OSError):  # the parent is gone, and so is this process in a moment
            pipe.send_bytes(answer)


def _receive(pipe: Connection, parent: int, messages: "SimpleQueue[bytes]") -> None:
    """Takes what comes, so that the parent never waits; ends the process when its parent is gone.

    Who else holds a copy of the parent's end would keep it open: so the parent itself is looked at.
    """
    while os.getppid() == parent:
        try:
            if pipe.poll(PATIENCE):
                messages.put(pipe.recv_bytes())
        except (EOFError, OSError):
            break
    os._exit(1)


def _portable(error: Exception) -> Exception:
    """The error with its traceback as a note; one that cannot travel, as a RuntimeError."""
    note = "".join(traceback.format_exception(error))
    try:
        found: Exception = pickle.loads(pickle.dumps(error))
    except Exception:
        found = RuntimeError(f"{type(error).__name__}: {error}")
    found.add_note(f"in a worker process:\n{note}")
    return found
