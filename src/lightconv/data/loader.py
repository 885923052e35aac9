"""Batches made ahead of the loop that uses them."""

import os
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from typing import Any, NamedTuple, Self

from numpy.typing import NDArray

from lightconv.data.batches import Batch, Batches, to_tensors
from lightconv.data.examples import Arrays, Examples
from lightconv.data.plan import Epoch, Position


class _Planned(NamedTuple):
    """An epoch, and where its updates begin and end."""

    epoch: Epoch
    updates: list[int]


class Loader(Iterator[list[Batch]]):
    """The updates of a run without end: for each a list of this rank's batches.

    The lists are empty for some ranks where an update has fewer batches than there are ranks.

    position   where to begin; `loader.position` is where to go on once the lists handed out so far
               have been used, whatever has been made ahead
    tokens_per_update, batches_per_update   one of them: how an epoch is cut; see `Epoch.updates`
    rank, ranks   whose batches: only these are read
    ahead      how many batches are made before they are wanted, and at least one update
    workers    threads, or processes if `processes`, that make them; the order does not depend on it

    A context manager: leaving it ends the workers, and so does an exception in one of them, which
    is raised where the batch is wanted.
    """

    def __init__(
        self,
        batches: Batches,
        position: Position,
        *,
        tokens_per_update: int | None = None,
        batches_per_update: int | None = None,
        rank: int = 0,
        ranks: int = 1,
        ahead: int = 16,
        workers: int = 1,
        processes: bool = False,
    ) -> None:
        if (tokens_per_update is None) == (batches_per_update is None):
            raise ValueError("one of tokens_per_update and batches_per_update must be given")
        if not 0 <= rank < ranks:
            raise ValueError(f"{rank=} must be from 0 to {ranks=} - 1")
        if ahead < 1 or workers < 1:
            raise ValueError(f"{ahead=} and {workers=} must be at least 1")
        if batches_per_update is not None and batches_per_update < ranks:
            raise ValueError(
                f"{batches_per_update=} must be at least {ranks=}, or some have nothing to do"
            )
        if min(position) < 0 or position.batch > batches.plan.batches:
            raise ValueError(
                f"{position} must be from 0 to the {batches.plan.batches} batches of an epoch. "
                "The data or the size of batches is not that of the run"
            )
        self.position = position
        self._batches = batches
        self._tokens_per_update = tokens_per_update
        self._batches_per_update = batches_per_update or 1
        self._rank, self._ranks, self._ahead = rank, ranks, ahead
        self._pending: deque[tuple[Position, list[Future[Arrays]]]] = deque()
        self._made_ahead = 0
        self._planner = ThreadPoolExecutor(1, thread_name_prefix="plan")
        self._pool, self._make = _start(batches.examples, workers, processes)
        self._closed = False
        self._stream = self._submit(position)

    def __next__(self) -> list[Batch]:
        if self._closed:
            raise ValueError("the loader is closed")
        try:
            self._fill()
            position, futures = self._pending.popleft()
            self._made_ahead -= len(futures)
            self._fill()
            found = [to_tensors(future.result()) for future in futures]
        except BaseException:
            self.close()
            raise
        self.position = position
        return found

    def close(self) -> None:
        """Ends the workers and forgets what was made ahead; `position` stays."""
        self._closed = True
        self._pending.clear()
        for pool in (self._planner, self._pool):
            pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fill(self) -> None:
        """Lets workers begin, until enough is under way."""
        # An update may have nothing for this rank: they are counted too.
        while len(self._pending) < 2 or (
            self._made_ahead < self._ahead and len(self._pending) < self._ahead
        ):
            position, futures = next(self._stream)
            self._pending.append((position, futures))
            self._made_ahead += len(futures)

    def _submit(self, position: Position) -> Iterator[tuple[Position, list[Future[Arrays]]]]:
        """Update by update: what comes after it, and this rank's batches, in the making."""
        seed, number, start = position
        current = self._plan(seed, number)
        while True:
            following: Future[_Planned] | None = None
            for begin, end in pairwise(current.updates):
                if end <= start:
                    continue
                # Early enough for the next epoch not to be waited for, if there is one at all.
                if following is None and 2 * end > len(current.epoch):
                    following = self._planner.submit(self._plan, seed, number + 1)
                after = Position(seed, number, end)
                if end == len(current.epoch):
                    after = Position(seed, number + 1)
                mine = range(begin + self._rank, end, self._ranks)
                yield after, [self._make(current.epoch[i]) for i in mine if i >= start]
            number, start = number + 1, 0
            current = self._plan(seed, number) if following is None else following.result()

    def _plan(self, seed: int, number: int) -> _Planned:
        epoch = self._batches.epoch(seed, number)
        return _Planned(
            epoch, epoch.updates(tokens=self._tokens_per_update, batches=self._batches_per_update)
        )


def _start(
    examples: Examples, workers: int, processes: bool
) -> tuple[Executor, Callable[[NDArray[Any]], Future[Arrays]]]:
    """Workers, and how to let one of them make a batch."""
    if not processes:
        threads = ThreadPoolExecutor(workers, thread_name_prefix="batches")
        return threads, lambda rows: threads.submit(examples.make, rows)
    pool = ProcessPoolExecutor(
        workers, get_context("fork"), initializer=_begin, initargs=(examples, os.getpid())
    )
    with warnings.catch_warnings():
        # A process with threads should not fork, for the locks they may hold. What a worker does
        # takes none of theirs: it uses numpy and its own end of a pipe.
        warnings.simplefilter("ignore", DeprecationWarning)
        pool.submit(os.getpid).result()
    return pool, lambda rows: pool.submit(_make, rows)


# In a worker process: what it makes batches of.
_examples: Examples


def _begin(examples: Examples, parent: int) -> None:
    """The first thing a worker process does."""
    global _examples  # noqa: PLW0603
    _examples = examples
    # Ctrl-C is for the parent, which may have to finish something first: the worker leaves its
    # group. The parent's own way to take SIGTERM is not the worker's, whom the pool ends by it.
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    """Ends this process when its parent is gone, however that went."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _make(rows: NDArray[Any]) -> Arrays:
    return _examples.make(rows)
