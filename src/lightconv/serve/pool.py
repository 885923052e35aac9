"""Worker processes that decode, and the queue in front of them.

A worker has one thread and every model; texts join its running batch and leave it one by one. The
front runs in one event loop: a reader and a writer thread for each worker pass messages on. When a
worker dies, another takes its place and its texts are tried again.
"""

import asyncio
import os
import signal
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, NamedTuple

from lightconv.processes import watch_parent

# Texts that a worker has at once: its running batch and a few that wait for room in it.
AT_ONCE = 80
# Times that a worker may die with a text before it is tried alone, and then given up.
DEATHS = 2
# Streams of different options that a worker keeps.
STREAMS = 8
START_LIMIT = 300.0


class FullError(Exception):
    """The queue has no room."""


class Order(NamedTuple):
    """A text for a model; options are (name, value) pairs of `TextModel.stream`.

    kind   "answer"; "words": also the alignment; "kernels": the kernels made for the text
    watch  whether beginnings of the output are sent too
    """

    model: str
    text: str
    options: tuple[tuple[str, Any], ...] = ()
    kind: str = "answer"
    watch: bool = False


@dataclass(eq=False)
class Ticket:
    """Order on its way: what arrived so far, and the worker that has it."""

    work: Order
    key: int
    events: "asyncio.Queue[tuple[str, Any]]" = field(default_factory=asyncio.Queue)
    worker: "_Worker | None" = None
    deaths: int = 0
    cancelled: bool = False


class Team:
    """Workers for models by name: {name: folder}."""

    def __init__(
        self, models: dict[str, str], workers: int, *, most: int, options: dict[str, Any]
    ) -> None:
        self.most = most
        self.restarts = 0
        self._start = (models, options)
        self._count = workers
        self._workers: list[_Worker] = []
        # What waits, by request: they take turns, so that a long one does not stop the others.
        self._queue: deque[deque[Ticket]] = deque()
        self._keys = 0
        self._started = self._closed = False

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queue))

    @property
    def running(self) -> int:
        return sum(len(worker.jobs) for worker in self._workers)

    async def start(self) -> None:
        """Returns when every worker has loaded its models; ValueError if one cannot."""
        self._loop = asyncio.get_running_loop()
        self._workers = [_Worker(self, *self._start) for _ in range(self._count)]
        ready = [worker.ready for worker in self._workers]
        try:
            await asyncio.wait_for(asyncio.gather(*ready), START_LIMIT)
        except BaseException:
            self.close()
            raise
        self._started = True

    def close(self) -> None:
        self._closed = True
        for worker in self._workers:
            worker.kill()

    def put(self, works: Sequence[Order]) -> list[Ticket]:
        """Queues all of the works, or raises FullError."""
        if self.waiting + len(works) > self.most:
            raise FullError
        jobs = []
        for work in works:
            self._keys += 1
            jobs.append(Ticket(work, self._keys))
        self._queue.append(deque(jobs))
        self._deal()
        return jobs

    async def events(self, job: Ticket) -> AsyncIterator[tuple[str, Any]]:
        """("text", beginning) any number of times, then ("done", result) or ("error", text)."""
        while True:
            event = await job.events.get()
            yield event
            if event[0] != "text":
                return

    async def result(self, job: Ticket) -> Any:
        """The result; ValueError with the worker's words if it has none."""
        async for kind, value in self.events(job):
            if kind == "error":
                raise ValueError(value)
            if kind == "done":
                return value
        raise AssertionError("events end with a result")

    def cancel(self, jobs: Sequence[Ticket]) -> None:
        """Jobs that nobody waits for leave."""
        for job in jobs:
            job.cancelled = True
            if job.worker is not None and job.worker.jobs.pop(job.key, None) is not None:
                job.worker.send(("cancel", job.key))
        self._queue = deque(
            group
            for each in self._queue
            if (group := deque(job for job in each if not job.cancelled))
        )
        self._deal()

    def _deal(self) -> None:
        """Gives what waits to the workers that have the least."""
        while self._queue and not self._closed:
            job = self._queue[0][0]
            open_ = [each for each in self._workers if each.open]
            if job.deaths >= DEATHS:  # it may be the reason: alone
                open_ = [each for each in open_ if not each.jobs]
            if not open_:
                return
            worker = min(open_, key=lambda each: len(each.jobs))
            worker.take(self._queue[0].popleft())
            self._queue.rotate(-1)
            if not self._queue[-1]:
                self._queue.pop()

    def heard(self, worker: "_Worker", messages: list[tuple[int, str, Any]]) -> None:
        for key, kind, value in messages:
            if key == 0:
                worker.started(kind, value)
            elif key in worker.jobs:
                job = worker.jobs[key] if kind == "text" else worker.jobs.pop(key)
                job.events.put_nowait((kind, value))
        self._deal()

    def died(self, worker: "_Worker") -> None:
        """Replaces a worker; its texts go back to the front of the queue."""
        if self._closed or worker not in self._workers:
            return
        if not self._started:
            worker.started("error", "a worker process ended while it loaded the models")
            return
        self.restarts += 1
        lost = sorted(worker.jobs.values(), key=lambda job: job.key, reverse=True)
        self._workers[self._workers.index(worker)] = _Worker(self, *self._start)
        for job in lost:
            job.worker, job.deaths = None, job.deaths + 1
            if job.deaths > DEATHS:
                job.events.put_nowait(("error", "the decoder ended three times with this text"))
            else:
                self._queue.appendleft(deque((job,)))
        self._deal()


class _Worker:
    """The front's side of a worker process."""

    def __init__(self, pool: Team, models: dict[str, str], options: dict[str, Any]) -> None:
        # A fork of a process without threads that has loaded torch: a start takes 0.05 s.
        context = get_context("forkserver")
        context.set_forkserver_preload(["lightconv.decode.text", "lightconv.serve.texts"])
        self.pool, self.loop = pool, asyncio.get_running_loop()
        self.jobs: dict[int, Ticket] = {}
        self.ready: asyncio.Future[None] = self.loop.create_future()
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(theirs, models, options), daemon=True)
        self._outbox: SimpleQueue[Any] = SimpleQueue()
        self._process.start()
        theirs.close()
        for target in (self._read, self._write):
            threading.Thread(target=target, daemon=True).start()

    @property
    def open(self) -> bool:
        alone = any(job.deaths >= DEATHS for job in self.jobs.values())
        return self.ready.done() and len(self.jobs) < AT_ONCE and not alone

    def started(self, kind: str, value: Any) -> None:
        if not self.ready.done():
            self.ready.set_exception(ValueError(value)) if kind == "error" else (
                self.ready.set_result(None)
            )

    def take(self, job: Ticket) -> None:
        job.worker = self
        self.jobs[job.key] = job
        self.send(("work", job.key, job.work))

    def send(self, message: Any) -> None:
        self._outbox.put(message)

    def kill(self) -> None:
        self._outbox.put(None)
        with suppress(ValueError):
            self._process.kill()

    def _write(self) -> None:
        with suppress(OSError, ValueError):
            while (message := self._outbox.get()) is not None:
                self._pipe.send(message)

    def _read(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                messages = self._pipe.recv()
                self.loop.call_soon_threadsafe(self.pool.heard, self, messages)
        self._outbox.put(None)
        self._process.join(10.0)
        with suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self.pool.died, self)


# --- in the worker --------------------------------------------------------------------------------


def work(pipe: Connection, models: dict[str, str], options: dict[str, Any]) -> None:
    """Answers messages until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the front drains
    watch_parent(os.getppid())
    import torch

    torch.set_num_threads(1)
    try:
        desk = Desk(models, options)
    except (ValueError, OSError) as error:
        pipe.send([(0, "error", str(error))])
        return
    pipe.send([(0, "ready", None)])
    with suppress(EOFError, OSError):
        while True:
            while not desk.busy or pipe.poll():
                desk.read(pipe.recv())
                if desk.news:
                    break
            if news := desk.advance():
                pipe.send(news)


class Desk:
    """Models by name and their running batches, by options."""

    def __init__(self, models: dict[str, str], options: dict[str, Any]) -> None:
        from lightconv.decode.text import load

        self.models = {name: load(folder) for name, folder in models.items()}
        self.options = options
        self.news: list[tuple[int, str, Any]] = []
        self._streams: dict[Any, Any] = {}
        self._jobs: dict[int, tuple[Any, int]] = {}  # key of the front -> stream's name, its key
        self._works: dict[tuple[Any, int], tuple[int, Order]] = {}
        for name in self.models:  # engines are built now, not for the first request
            self._stream(Order(name, ""))

    @property
    def busy(self) -> bool:
        return bool(self._jobs or self.news)

    def read(self, message: Any) -> None:
        if message[0] == "cancel":
            if found := self._jobs.pop(message[1], None):
                name, key = found
                self._streams[name].cancel(key)
                self._works.pop(found, None)
            return
        from lightconv.serve.texts import completion, kernels

        _, key, work = message
        try:
            if work.kind == "kernels":
                self.news.append((key, "done", kernels(self.models[work.model], work.text)))
                return
            name, stream = self._stream(work)
            told: Callable[[str], None] | None = None
            if work.watch:

                def told(text: str) -> None:
                    text = completion(self.models[work.model], work.text, text)
                    self.news.append((key, "text", text))

            found = name, stream.submit(work.text, on_token=told)
        except ValueError as error:
            self.news.append((key, "error", str(error)))
            return
        self._jobs[key], self._works[found] = found, (key, work)

    def _stream(self, work: Order) -> tuple[Any, Any]:
        name = work.model, work.options, work.kind
        if name not in self._streams:
            for other in [each for each in self._streams if not len(self._streams[each])]:
                if len(self._streams) >= STREAMS:
                    del self._streams[other]
            model = self.models[work.model]
            chosen = self.options | dict(work.options)
            if not model.pairs:
                chosen["answer_empty"] = True
            if work.kind == "words":
                chosen["alignments"] = True
            self._streams[name] = model.stream(**chosen)
        return name, self._streams[name]

    def advance(self) -> list[tuple[int, str, Any]]:
        """One step of every stream that has texts; what there is to tell."""
        from lightconv.serve.texts import result

        for name, stream in self._streams.items():
            if len(stream):
                for key, answer in stream.step():
                    place, work = self._works.pop((name, key))
                    del self._jobs[place]
                    kind = "error" if answer.error else "done"
                    value = answer.error or result(self.models[work.model], work, answer)
                    self.news.append((place, kind, value))
        news, self.news = self.news, []
        return news
