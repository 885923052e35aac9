"""Worker processes that decode, and the queue in front of them.

Each worker is one thread with every model; texts join its running batch and leave it one by one.
The front is one event loop. When a worker dies, another takes its place and its texts are tried
again.
"""

import asyncio
import gc
import pickle
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from multiprocessing import get_context
from typing import Any, NamedTuple

# Texts that a worker has at once: its running batch and a few that wait for room in it.
AT_ONCE = 80
# Texts that take less time fill one worker up to so many before the next: a batch costs less than
# its texts alone. Slower ones go to the worker that has the least.
FAST, TOGETHER = 0.05, 8
# Texts in workers from which on the front rests, seconds for each, and at most.
MANY, REST, MOST_REST = 4, 0.00005, 0.002
# Times that a worker may die with a text before it is tried alone, and then given up.
DEATHS = 2
START_LIMIT = 300.0


class FullError(Exception):
    """The queue has no room."""


class Order(NamedTuple):
    """A text for a model; options are (name, value) pairs of `TextModel.stream`.

    kind   "answer"; "words": also the alignment; "kernels": the kernels made for the text
    watch  tells beginnings of the output too
    """

    model: str
    text: str
    options: tuple[tuple[str, Any], ...] = ()
    kind: str = "answer"
    watch: bool = False


class Frames:
    """Messages between processes: each is its size, then its pickle."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    @staticmethod
    def pack(message: Any) -> bytes:
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        return len(data).to_bytes(4, "big") + data

    def read(self, data: bytes) -> Iterator[Any]:
        self._bytes += data
        while (end := 4 + int.from_bytes(self._bytes[:4], "big")) <= len(self._bytes) >= 4:
            message = pickle.loads(self._bytes[4:end])
            del self._bytes[:end]
            yield message


class Answers:
    """News of the tickets of a request. `await` gives the next: (ticket, kind, value).

    kind is "done", "error", "late", or "text" with a beginning of the output. One coroutine waits;
    `wake`, of whoever runs it, is called when there is something for it.
    """

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []
        self.wake: Callable[[], None] | None = None
        self._news = deque[tuple[Ticket, str, Any]]()

    def __await__(self) -> "Generator[Answers, None, tuple[Ticket, str, Any]]":
        while not self._news:
            yield self
        return self._news.popleft()

    def hear(self, *news: Any) -> None:
        self._news.append(news)
        wake, self.wake = self.wake, None
        if wake is not None:
            wake()


@dataclass(eq=False, slots=True)
class Ticket:
    """Order on its way."""

    order: Order
    key: int
    answers: Answers
    asked: float
    worker: "_Worker | None" = None
    begin: float = 0.0
    deaths: int = 0
    cancelled: bool = False


class Patient(selectors.DefaultSelector):
    """Looks for news of an event loop after `pause`, and after the rest it returns."""

    pause: Callable[[], float] = staticmethod(lambda: 0.0)

    def select(self, timeout: float | None = None) -> Any:
        if (rest := self.pause()) and timeout != 0:
            time.sleep(rest)
        return super().select(timeout)


def run(main: Coroutine[Any, Any, None]) -> None:
    """As asyncio.run, for a team."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(Patient())) as runner:
        runner.run(main)


class Team:
    """Workers for models by name: {name: folder}."""

    def __init__(
        self,
        models: dict[str, str],
        workers: int,
        *,
        most: int,
        options: dict[str, Any],
        seconds: float = 30.0,
    ) -> None:
        self.most, self.seconds = most, seconds
        self.restarts = 0
        self._start = (models, options)
        self._count = workers
        self._workers: list[_Worker] = []
        # What waits, by request: they take turns, so that a long one does not stop the others.
        self._queue: deque[deque[Ticket]] = deque()
        self._keys = 0
        self._pace = 0.0  # seconds of a text in a worker, lately
        self._started = self._closed = False

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queue))

    @property
    def running(self) -> int:
        return sum(len(worker.tickets) for worker in self._workers)

    def pause(self) -> float:
        """Sends the workers what there is for them; seconds to rest, as news cost less together."""
        for worker in self._workers:
            worker.flush()
        running = self.running
        return min(REST * running, MOST_REST) if running >= MANY else 0.0

    async def start(self) -> None:
        """Returns when every worker has loaded its models; ValueError if one cannot."""
        self._workers = [_Worker(self, *self._start) for _ in range(self._count)]
        try:
            ready = asyncio.gather(*(worker.ready for worker in self._workers))
            for error in filter(None, await asyncio.wait_for(ready, START_LIMIT)):
                raise ValueError(error)
        except BaseException:
            self.close()
            raise
        self._started, Patient.pause = True, self.pause
        gc.freeze()  # what is there stays
        self._sweep()

    def _sweep(self) -> None:
        """Ends texts that are late, and workers that have some and have not been heard of."""
        loop = asyncio.get_running_loop()
        loop.call_later(0.5, self._sweep)
        begin = loop.time() - self.seconds
        running = [ticket for worker in self._workers for ticket in worker.tickets.values()]
        for ticket in [*chain.from_iterable(self._queue), *running]:
            if ticket.asked < begin:
                ticket.answers.hear(ticket, "late", "")
        for worker in self._workers:
            if worker.tickets and worker.heard < begin:
                worker.kill()

    def close(self) -> None:
        self._closed = True
        for worker in self._workers:
            worker.kill()

    def put(self, orders: Sequence[Order]) -> Answers:
        """Queues all of the orders, or raises FullError."""
        if self.waiting + len(orders) > self.most:
            raise FullError
        answers, now = Answers(), asyncio.get_running_loop().time()
        for order in orders:
            self._keys += 1
            answers.tickets.append(Ticket(order, self._keys, answers, now))
        if orders:
            self._queue.append(deque(answers.tickets))
            self._deal()
        return answers

    async def results(self, answers: Answers) -> list[Any]:
        """Results in order; ValueError with the worker's words. Those not done by then leave."""
        found: dict[Ticket, Any] = {}
        try:
            while len(found) < len(answers.tickets):
                ticket, kind, found[ticket] = await answers
                if kind == "late":
                    raise TimeoutError
                if kind == "error":
                    raise ValueError(found[ticket])
        except BaseException:
            self.cancel(answers)
            raise
        tickets, answers.tickets = answers.tickets, []  # no cycle of references is left
        return [found[ticket] for ticket in tickets]

    def cancel(self, answers: Answers) -> None:
        """Tickets that nobody waits for leave."""
        for ticket in answers.tickets:
            ticket.cancelled = True
            if ticket.worker is not None and ticket.key in ticket.worker.tickets:
                del ticket.worker.tickets[ticket.key]
                ticket.worker.send((ticket.key, None))
        left = (deque(each for each in group if not each.cancelled) for group in self._queue)
        self._queue = deque(group for group in left if group)
        self._deal()

    def _choose(self, free: "list[_Worker]") -> "_Worker":
        fast = self._pace < FAST
        fill = [each for each in free if fast and 0 < len(each.tickets) < TOGETHER]
        return min(fill or free, key=lambda each: len(each.tickets))

    def _deal(self) -> None:
        """Gives what waits to workers."""
        while self._queue and not self._closed:
            ticket = self._queue[0][0]
            free = [each for each in self._workers if each.has_room]
            if ticket.deaths >= DEATHS:  # it may be the reason: alone
                free = [each for each in free if not each.tickets]
            if not free:
                return
            self._choose(free).take(self._queue[0].popleft())
            self._queue.rotate(-1)
            if not self._queue[-1]:
                self._queue.pop()

    def read(self, worker: "_Worker", news: list[tuple[int, str, Any]]) -> None:
        for key, kind, value in news:
            if key == 0:
                worker.begin(value)
            elif ticket := worker.tickets.get(key):
                if kind != "text":
                    del worker.tickets[key]
                    self._pace += 0.1 * (worker.heard - ticket.begin - self._pace)
                ticket.answers.hear(ticket, kind, value)
        self._deal()

    def replace(self, worker: "_Worker") -> None:
        """Starts another worker for one that died; its texts go back to the front of the queue."""
        if self._closed:
            return
        if not self._started:
            worker.begin("a worker process ended while it loaded the models")
            return
        self.restarts += 1
        self._workers[self._workers.index(worker)] = _Worker(self, *self._start)
        lost = []
        for ticket in sorted(worker.tickets.values(), key=lambda each: -each.key):
            ticket.worker, ticket.deaths = None, ticket.deaths + 1
            if ticket.deaths > DEATHS:
                lost.append(ticket)
            else:
                self._queue.appendleft(deque((ticket,)))
        for ticket in lost:
            ticket.answers.hear(ticket, "error", "the decoder ended three times with this text")
        self._deal()


class _Worker(asyncio.Protocol):
    """The front's side of a worker process."""

    def __init__(self, team: Team, models: dict[str, str], options: dict[str, Any]) -> None:
        from lightconv.serve.worker import work

        # A fork of a process without threads that has loaded torch: a start takes 0.05 s.
        context = get_context("forkserver")
        context.set_forkserver_preload(["lightconv.decode.text", "lightconv.serve.worker"])
        self.tickets: dict[int, Ticket] = {}
        self._team, self._loop = team, asyncio.get_running_loop()
        self.ready: asyncio.Future[str] = self._loop.create_future()
        self.heard = self._loop.time()
        self._frames, self._outbox = Frames(), list[Any]()
        ours, theirs = socket.socketpair()
        self._process = context.Process(target=work, args=(theirs, models, options), daemon=True)
        self._process.start()
        theirs.close()
        self._opened = self._loop.create_task(self._loop.create_connection(lambda: self, sock=ours))

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard = self._loop.time()
        for news in self._frames.read(data):
            self._team.read(self, news)

    def connection_lost(self, exc: Exception | None) -> None:
        self._team.replace(self)

    @property
    def has_room(self) -> bool:
        alone = any(each.deaths >= DEATHS for each in self.tickets.values())
        return self.ready.done() and len(self.tickets) < AT_ONCE and not alone

    def begin(self, error: str) -> None:
        """Ends the start, with an error or without."""
        if not self.ready.done():
            self.ready.set_result(error)

    def take(self, ticket: Ticket) -> None:
        ticket.worker, ticket.begin = self, self._loop.time()
        self.heard = self.heard if self.tickets else ticket.begin
        self.tickets[ticket.key] = ticket
        self.send((ticket.key, tuple(ticket.order)))

    def send(self, message: tuple[int, tuple[Any, ...] | None]) -> None:
        """Sends the message with others of this turn of the loop."""
        self._outbox.append(message)

    def flush(self) -> None:
        if self._outbox:
            self._transport.write(Frames.pack(self._outbox))
            self._outbox.clear()

    def kill(self) -> None:
        with suppress(ValueError):
            self._process.kill()
