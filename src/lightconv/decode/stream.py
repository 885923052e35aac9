"""Lines as they arrive: many at once from a file, one by one from a person who types.

A window is what is there already, up to a limit. So a pipe of any length costs the memory of one
window, and nobody waits for a line that has not been written yet.
"""

import os
import select
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from io import UnsupportedOperation
from typing import Protocol, TypeVar

from lightconv.data.text import LONGEST_LINE, Notes, lines_of

# Bytes read at a time, and characters in a window.
BLOCK = 1 << 16
MOST_CHARACTERS = 1 << 22

T = TypeVar("T", bound=Sized)


class Source(Protocol):
    """Where lines come from."""

    def readline(self, size: int, /) -> bytes:
        """Up to and with the next newline, or `size` bytes."""

    def ready(self) -> bool:
        """Whether a line, or the end, is here already."""


class Pipe:
    """The lines of a file descriptor, and whether another one is here already."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._lines: deque[bytes] = deque()
        # Of a line that has not ended yet.
        self._rest: list[bytes] = []
        self._size = 0
        self._ended = False

    def readline(self, size: int, /) -> bytes:
        """Waits for a line; b"" at the end."""
        while not self._lines and not self._ended and self._size < size:
            self._fill()
        if not self._lines:
            self._lines.append(self._join())
        line = self._lines.popleft()
        if len(line) > size:
            self._lines.appendleft(line[size:])
            line = line[:size]
        return line

    def ready(self) -> bool:
        """Whether `readline` need not wait."""
        while not self._lines and not self._ended:
            if not select.select([self._handle], [], [], 0)[0]:
                return False
            self._fill()
        return True

    def _fill(self) -> None:
        block = os.read(self._handle, BLOCK)
        if not block:
            self._ended = True
            return
        first, *others = block.split(b"\n")
        self._rest.append(first)
        self._size += len(first)
        for other in others:
            self._lines.append(self._join() + b"\n")
            self._rest, self._size = [other], len(other)

    def _join(self) -> bytes:
        line = b"".join(self._rest)
        self._rest, self._size = [], 0
        return line


class Whole:
    """A file of which nothing is waited for."""

    def __init__(self, readline: Callable[[int], bytes]) -> None:
        self._readline = readline

    def readline(self, size: int, /) -> bytes:
        """As of any file."""
        return self._readline(size)

    def ready(self) -> bool:
        """Always."""
        return True


def open_stdin() -> Source:
    """Standard input, or what stands in its place."""
    try:
        return Pipe(sys.stdin.fileno())
    except (UnsupportedOperation, AttributeError, ValueError):
        return Whole(sys.stdin.buffer.readline)


def read_stream(source: Source, name: str, notes: Notes, most: int) -> Iterator[list[str]]:
    """The windows of a stream: UTF-8 without CR at line ends; nothing at all is no error.

    What cannot be text is a ValueError that names line and byte, once the lines before it have been
    handed out.
    """
    lines = _checked(source, name, notes)
    return windows(lines, most, ready=source.ready)


def windows(
    lines: Iterable[T],
    most: int,
    *,
    ready: Callable[[], bool] = lambda: True,
    size: Callable[[T], int] = len,
) -> Iterator[list[T]]:
    """At most `most` lines at a time, fewer when no other is ready.

    size  how many characters a line, or whatever stands for one, has
    """
    window: list[T] = []
    characters = 0
    try:
        for line in lines:
            window.append(line)
            characters += size(line)
            if len(window) >= most or characters >= MOST_CHARACTERS or not ready():
                yield window
                window, characters = [], 0
    except ValueError:
        # The lines before the bad one have their answers.
        if window:
            yield window
        raise
    if window:
        yield window


def _checked(source: Source, name: str, notes: Notes) -> Iterator[str]:
    begin = source.readline(LONGEST_LINE + 1)
    if not begin:
        return
    for line in lines_of(_Begun(begin, source), name, notes):
        if line.endswith("\r"):
            notes.returns += 1
            yield line[:-1]
        else:
            yield line


class _Begun:
    """A source of which one line was read already, to see whether there is any."""

    def __init__(self, begin: bytes, source: Source) -> None:
        self._begin = begin
        self._source = source

    def readline(self, size: int, /) -> bytes:
        line, self._begin = self._begin, b""
        return line or self._source.readline(size)
