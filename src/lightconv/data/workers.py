"""Work spread over processes: results in order, and never more waiting than is needed."""

import itertools
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

# A process that has ended one piece of work finds the next one waiting.
AHEAD = 2


def chunked(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items, the last one perhaps shorter."""
    source = iter(items)
    while chunk := list(itertools.islice(source, size)):
        yield chunk


def spread(function: Callable[[T], R], items: Iterable[T], processes: int = 1) -> Iterator[R]:
    """`map(function, items)`, computed by several processes; one means this one.

    `function` and `items` must be picklable, and a script that asks for more than one process needs
    `if __name__ == "__main__":` around what it does. Items are read as they are needed.
    """
    if processes < 1:
        raise ValueError(f"processes={processes} must be at least 1")
    if processes == 1:
        yield from map(function, items)
        return
    # Not forked: a copy of a process with threads may hang.
    with ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), initializer=_begin, initargs=(os.getpid(),)
    ) as pool:
        waiting: deque[Future[R]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= AHEAD * processes:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _begin(parent: int) -> None:
    """The first thing a process does: it leaves Ctrl-C to its parent, and does not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
