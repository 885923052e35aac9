"""A side of a comparison in a separate process, with the default memory allocator."""

from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Self

Make = Callable[..., Callable[[], object]]


class Remote:
    """Calls the function that `make(*arguments)` returns in another process, and waits for it.

    A context manager; one process serves any number of named functions.
    """

    def __init__(self, make: dict[str, tuple[Make, tuple[Any, ...]]]) -> None:
        context = get_context("spawn")
        self._connection, self._other = context.Pipe()
        self._process = context.Process(target=_serve, args=(self._other, make), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        self._other.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()

    def call(self, name: str) -> None:
        """Calls the function of that name once."""
        self._ask("call", name)

    def peak_bytes(self, name: str) -> int:
        """Increase of the memory of that process during the call."""
        found = self._ask("peak", name)
        assert isinstance(found, int)
        return found

    def _ask(self, *question: str) -> object:
        try:
            self._connection.send(question)
            return self._connection.recv()
        except (EOFError, OSError):  # the process has ended and closed the pipe
            self._process.join()
            code = self._process.exitcode
            raise RuntimeError(f"the process that measures ended with code {code}") from None


def _serve(connection: Connection, make: dict[str, tuple[Make, tuple[Any, ...]]]) -> None:
    from benchmarks.measure import peak_bytes

    calls = {name: function(*arguments) for name, (function, arguments) in make.items()}
    while True:
        what, name = connection.recv()
        if what == "call":
            calls[name]()
            connection.send(None)
        else:
            connection.send(peak_bytes(calls[name]))
