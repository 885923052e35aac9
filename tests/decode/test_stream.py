"""Streams: what is there is taken, what is not is not waited for, what is no text is named."""

import io
import os
import select
import sys
from collections.abc import Iterator
from functools import partial
from itertools import count, islice

import pytest

from lightconv.data.text import LONGEST_LINE, Notes
from lightconv.decode import translator
from lightconv.decode.translator import LineReader, read_stream, read_windows, windows


class Ends:
    """Both ends of a pipe."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()
        arrived = partial(select.select, [self.read], [], [], 0)
        self.pipe = LineReader(partial(os.read, self.read), lambda: bool(arrived()[0]))
        self.send = partial(os.write, self.write)
        self.end = partial(os.close, self.write)


@pytest.fixture
def ends() -> Iterator[Ends]:
    found = Ends()
    yield found
    os.close(found.read)


def test_a_line_is_ready_when_its_newline_is_there(ends: Ends) -> None:
    assert not ends.pipe.ready()
    ends.send(b"half a li")
    assert not ends.pipe.ready()
    ends.send(b"ne\nand")
    assert ends.pipe.ready()
    assert ends.pipe.readline(4) == b"half"
    assert ends.pipe.readline(100) == b" a line\n"
    assert not ends.pipe.ready()
    ends.end()
    assert ends.pipe.ready(), "the end is worth reading too"
    assert ends.pipe.readline(100) == b"and"
    assert ends.pipe.readline(100) == b""


def test_windows_hold_what_is_there(ends: Ends) -> None:
    """A person who types gets each line answered before the next one is there."""
    found = read_stream(ends.pipe, "stdin", Notes(), 3)
    ends.send(b"one\n")
    assert next(found) == ["one"]
    ends.send(b"two\nthree\n")
    assert next(found) == ["two", "three"]
    ends.send(b"4\n5\n6\n7\n")
    assert next(found) == ["4", "5", "6"]
    assert next(found) == ["7"]
    ends.send(b"no newline")
    ends.end()
    assert list(found) == [["no newline"]]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks shorter than lines."""
    assert LONGEST_LINE > 1 << 20
    monkeypatch.setattr("lightconv.data.text.LONGEST_LINE", 100)
    monkeypatch.setattr(translator, "BLOCK", 7)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "data, lines",
    [
        (b"", []),
        (b"a" * 99 + b"\n\n" + b"b" * 20, ["a" * 99, "", "b" * 20]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"\xef\xbb\xbfa\r\nb\n", ["a", "b"]),
    ],
)
def test_returns_and_marks_are_dropped_and_counted(data: bytes, lines: list[str]) -> None:
    notes = Notes()
    found = list(read_stream(LineReader(io.BytesIO(data).read), "x", notes, 9))
    assert found == ([lines] if lines else [])
    assert notes.returns == data.count(b"\r") and notes.marks == data.startswith(b"\xef")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "data, message",
    [
        (b"good\nb\xe4d\n", r"x, line 2: byte 0xe4 is not UTF-8 \(byte 2 of the line\)"),
        (b"good\n\0\n", r"x, line 2: a NUL character"),
        (b"good\n" + b"x" * 200, "x, line 2: longer than"),
        (b"\xff\xfea\0", "x is UTF-16"),
    ],
)
def test_what_is_no_text_is_named_after_the_lines_before_it(data: bytes, message: str) -> None:
    found = read_stream(LineReader(io.BytesIO(data).read), "x", Notes(), 9)
    if data.startswith(b"good"):
        assert next(found) == ["good"]
    with pytest.raises(ValueError, match=message):
        next(found)


def test_windows_of_an_endless_stream() -> None:
    lines = (str(number) for number in count())
    assert list(islice(windows(lines, 2), 2)) == [["0", "1"], ["2", "3"]]
    assert next(lines) == "4", "nothing is taken before it is needed"


def test_long_lines_make_short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translator, "MOST_CHARACTERS", 10)
    assert list(windows(["a" * 6, "b" * 6, "c"], 9)) == [["a" * 6, "b" * 6], ["c"]]
    pairs = [("a" * 6, "b" * 6), ("c", "d")]
    assert list(windows(pairs, 9, size=lambda pair: sum(map(len, pair)))) == [pairs[:1], pairs[1:]]


def test_stdin_without_and_with_a_descriptor(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))
    assert list(read_windows(None, 9, Notes())) == [["a", "b"]]
    monkeypatch.setattr(sys, "stdin", os.fdopen(os.dup(ends.read)))
    found = read_windows(None, 9, Notes())
    ends.send(b"a\nb\n")
    assert next(found) == ["a", "b"]
    ends.end()
    assert list(found) == []
    sys.stdin.close()
