"""The HTTP server around the application: limits of connections, and an end that loses nothing."""

import asyncio
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from email.utils import formatdate
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import httptools

# Seconds for a whole request to arrive, between two of a connection, and bytes of a head.
ARRIVAL, IDLE = 15.0, 30.0
HEAD = 32 << 10
MOST_BYTES = 1 << 20  # of a body
MOST_DROPPED = 16 << 20  # of a body that is read only to be refused
# Seconds that open connections have to send one more request when the server ends.
LINGER = 1.0
DRAIN = 10.0
CONNECTIONS = 4096
_PHRASES = {each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n" for each in HTTPStatus}


class Connection(asyncio.Protocol):
    """HTTP/1.1 with a client, one request after the other.

    The application is a coroutine function; what it awaits has a `wake`, which goes on with it: a
    request needs neither a task nor a turn of the loop.
    """

    def __init__(self, server: "Server") -> None:
        self._server, self._loop = server, asyncio.get_running_loop()
        self._parser: Any = httptools.HttpRequestParser(self)
        # What answers a request, its method, and if the connection stays open.
        self._works = deque[tuple[Coroutine[Any, None, None], bytes, bool]]()
        self._deaf = self._last = False  # nothing more is read, or answered
        self._full = False  # the client does not read
        self._in_head, self._seen = True, 0  # bytes of a head that has no end yet

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.max_size = HEAD  # read at a time
        self.deadline = self._loop.time() + ARRIVAL
        self.peer = (transport.get_extra_info("peername") or ("-",))[0]
        self._server.connections.add(self)
        if len(self._server.connections) > CONNECTIONS:
            self._refuse(503)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        for work, *_ in self._works:
            work.close()
        self._works.clear()
        self._deaf, self._parser = True, None

    def pause_writing(self) -> None:
        self._full = True
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self._full = False
        self._answer()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._seen += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # answered as if it had not asked for that
        except httptools.HttpParserError:
            self._refuse(400)
        if self._in_head and self._seen > HEAD:
            self._refuse(431)

    def _refuse(self, status: int) -> None:
        if not self._works and not self._deaf:
            end = "connection: close\r\ncontent-length: 0\r\n\r\n"
            self.transport.write((_PHRASES[status] + end).encode())
        self._deaf = True
        self.transport.close()

    # --- called by the parser

    def on_message_begin(self) -> None:
        if not self._works:
            self.deadline = self._loop.time() + ARRIVAL
        self._url, self._size = b"", 0
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._in_head = False
        if int(self._headers.get(b"content-length", b"0")) > MOST_DROPPED:
            self._size = MOST_DROPPED + 1
            self._take(stays=False)
        elif self._headers.get(b"expect", b"").lower() == b"100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size <= MOST_BYTES:
            self._body.append(body)
        elif self._size > MOST_DROPPED:
            self._take(stays=False)

    def on_message_complete(self) -> None:
        self._in_head, self._seen = True, 0
        parser = self._parser
        self._take(stays=parser.should_keep_alive() and parser.get_http_version() == "1.1")

    def _take(self, *, stays: bool) -> None:
        """The request that has arrived is answered after those before it."""
        if self._deaf:
            return
        self._deaf = not stays
        path = unquote(httptools.parse_url(self._url).path.decode("ascii"))
        body = b"".join(self._body) if self._size <= MOST_BYTES else None
        method = self._parser.get_method()
        work = self._server.app(self, method.decode(), path, self._headers, body)
        self._works.append((work, method, stays))
        if len(self._works) == 1:
            self._answer()
        else:
            self.transport.pause_reading()

    def _answer(self) -> None:
        """Goes on with the answer to the first request; then those to the next ones."""
        self.deadline = float("inf")
        while self._works and not (self._full or self.transport.is_closing()):
            try:
                self._works[0][0].send(None).wake = self._answer
                return
            except StopIteration:
                self._works.popleft()
            except Exception as error:
                sys.stderr.write(describe_error(error))
                self.transport.abort()
            if self._last:
                self.transport.close()
        if not self._full:
            self.deadline = self._loop.time() + IDLE
            self.transport.resume_reading()

    def send(self, status: int, headers: str, body: bytes | None = None) -> None:
        """Sends an answer, or without a body the begin of one; its parts follow."""
        (_, method, stays), server = self._works[0], self._server
        self._last = not stays or server.draining or status == 413
        length = "transfer-encoding: chunked\r\n"
        if body is not None:
            length = f"content-length: {len(body)}\r\n" if status != 204 else ""
        end = "connection: close\r\n\r\n" if self._last else "\r\n"
        head = f"{_PHRASES[status]}{server.date}{headers}{length}{end}".encode()
        self.transport.write(head + body if body and method != b"HEAD" else head)

    def send_part(self, part: bytes) -> None:
        """Sends a part of a body; the last is empty."""
        self.transport.write(b"%x\r\n%b\r\n" % (len(part), part))


class Server:
    """Serves until SIGINT or SIGTERM: then no new connections, and what is open is answered.

    app  coroutine function of a connection, method, path, headers and body, None if too long
    """

    def __init__(self, app: Callable[..., Coroutine[Any, None, None]]) -> None:
        self.app, self.draining = app, False
        self.connections = set[Connection]()
        self._signals: list[int] = []

    async def serve(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(lambda: Connection(self), sock=sock, backlog=1024)
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, self._signals.append, each)
        while not self._signals:
            self._sweep(loop.time())
            await asyncio.sleep(0.1)
        listener.close()
        self.draining = True  # answers close their connections from now on
        begin = loop.time()
        while self.connections and loop.time() < begin + DRAIN and len(self._signals) < 2:
            await asyncio.sleep(0.02)
            self._sweep(loop.time() + (ARRIVAL + IDLE) * (loop.time() > begin + LINGER))
        for connection in self.connections:
            connection.transport.abort()
        await asyncio.sleep(0)

    def _sweep(self, now: float) -> None:
        """Closes connections that have not sent a request in time."""
        self.date = f"date: {formatdate(usegmt=True)}\r\n"
        for each in self.connections:
            if each.deadline < now:
                each.transport.close()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; ValueError if the port is taken or not allowed."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise ValueError(
            f"cannot listen on {host} port {port}: {error.strerror}. Choose another --port"
        ) from None


def describe_error(error: Exception) -> str:
    """Lines of the error and its kind, without its words: they may be a client's."""
    return "".join(traceback.format_tb(error.__traceback__)) + f"{type(error).__name__}\n"
