"""Batches for training, read ahead from a store."""

import itertools
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager

from lightconv.data.batches import Batch, Batches, Epoch, Position

# Batches made before they are wanted, and at least one update.
AHEAD = 16


class Loader(Iterator[list[Batch]], AbstractContextManager["Loader"]):
    """Endless updates of a run: lists of the batches of one rank, perhaps empty; a context manager.

    position           where to begin; `loader.position` is where to resume after the lists handed
                       out so far, regardless of those made ahead
    tokens_per_update  or batches_per_update: see `Epoch.updates`
    """

    def __init__(
        self,
        batches: Batches,
        position: Position,
        *,
        tokens_per_update: int = 0,
        batches_per_update: int = 0,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        if not 0 <= rank < ranks:
            raise ValueError(f"{rank=} must be from 0 to {ranks=} - 1")
        if min(position) < 0 or position.batch > batches.plan.batches:
            raise ValueError(
                f"{position} must be from 0 to the {batches.plan.batches} batches of an epoch. "
                "The data or the size of batches is not that of the run"
            )
        self.position = position
        self._batches = batches
        self._update = {"tokens": tokens_per_update, "batches": batches_per_update}
        self._rank, self._ranks = rank, ranks
        self._pending: deque[tuple[Position, list[Future[Batch]]]] = deque()
        # One thread can plan the next epoch while another makes batches.
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="batches")
        self._closed = False
        self._stream = self._submit(position)

    def __next__(self) -> list[Batch]:
        if self._closed:
            raise ValueError("the loader is closed")
        try:
            self._fill()
            position, futures = self._pending.popleft()
            self._fill()
            found = [future.result() for future in futures]
        except BaseException:
            self.close()
            raise
        self.position = position
        return found

    def close(self) -> None:
        self._closed = True
        self._pending.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fill(self) -> None:
        # Updates are counted too: some may have no batch for this rank.
        while len(self._pending) < 2 or (
            len(self._pending) < AHEAD and sum(len(made) for _, made in self._pending) < AHEAD
        ):
            self._pending.append(next(self._stream))

    def _submit(self, position: Position) -> Iterator[tuple[Position, list[Future[Batch]]]]:
        """For each update the position after it, and this rank's batches in the making."""
        seed, number, start = position
        epoch, updates = self._plan(seed, number)
        while True:
            following: Future[tuple[Epoch, list[int]]] | None = None
            for begin, end in itertools.pairwise(updates):
                if end <= start:
                    continue
                # Early enough for the next epoch to be ready in time.
                if following is None and 2 * end > len(epoch):
                    following = self._pool.submit(self._plan, seed, number + 1)
                last = end == len(epoch)
                after = Position(seed, number + 1) if last else Position(seed, number, end)
                mine = (i for i in range(begin + self._rank, end, self._ranks) if i >= start)
                make = self._batches.examples.make
                yield after, [self._pool.submit(make, epoch[i]) for i in mine]
            number, start = number + 1, 0
            epoch, updates = following.result() if following else self._plan(seed, number)

    def _plan(self, seed: int, number: int) -> tuple[Epoch, list[int]]:
        epoch = self._batches.plan.epoch(seed, number)
        return epoch, epoch.updates(**self._update)
