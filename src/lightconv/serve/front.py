"""The HTTP server around the application: limits of connections, and an end that loses nothing."""

import asyncio
import signal
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Seconds for a whole request to arrive, and bytes of its head.
ARRIVAL = 15.0
HEAD = 32 << 10
# Seconds that open connections have to send one more request when the server ends.
LINGER = 1.0
DRAIN = 10
CONNECTIONS = 4096
_REFUSED = b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
_REFUSED += b"connection: close\r\ncontent-length: 0\r\n\r\n"


class _Joined:
    """A transport that sends what is written in one turn of the loop at once: head and body."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():
            self._transport.write(b"".join(parts))

    def close(self) -> None:
        self._flush()
        self._transport.close()


class Protocol(HttpToolsProtocol):
    """uvicorn's protocol with a deadline for each request and a bound of its head."""

    def connection_made(self, transport: Any) -> None:
        joined: Any = _Joined(transport, self.loop)
        super().connection_made(joined)
        self._seen, self._in_head, self._tail = 0, True, b""
        self._deadline: asyncio.TimerHandle | None = None
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        if self.cycle is not None and not self.cycle.response_complete:
            scope: Any = self.cycle.scope
            scope["gone"] = True
            if task := scope.get("task"):
                task.cancel()
        super().connection_lost(exc)

    def _arm(self) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(ARRIVAL, self.transport.close)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            end = (self._tail + data).find(b"\r\n\r\n")
            self._seen += len(data) if end < 0 else end
            self._tail = data[-3:]
            if self._seen > HEAD:
                self.transport.write(_REFUSED)
                self.transport.close()
                return
        super().data_received(data)
        if self._deadline is None and (self._seen or not self._in_head):  # not all of it
            self._arm()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._disarm()
        self._seen, self._in_head, self._tail = 0, True, b""
        super().on_message_complete()


class Server(uvicorn.Server):
    """Ends on SIGINT or SIGTERM: no new connections, what is open is answered, then closed."""

    def __init__(self, app: Any) -> None:
        config = uvicorn.Config(
            app,
            http=Protocol,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=DRAIN,
            limit_concurrency=CONNECTIONS,
            backlog=1024,
        )
        super().__init__(config)
        self.app = app

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Begins the end; the signal is not raised again after it, so that the exit code is 0."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for each in sockets or []:
            each.close()
        self.app.draining = True  # answers close their connections from now on
        for _ in range(round(LINGER / 0.02)):
            if not self.server_state.connections:
                break
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; ValueError if the port is taken or not allowed."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise ValueError(
            f"cannot listen on {host} port {port}: {error.strerror}. Choose another --port"
        ) from None
