"""Streams: what is there is taken, what is not is not waited for, what is no text is named."""

import io
import os
import random
import select
import sys
from collections.abc import Iterator
from functools import partial
from itertools import count, islice
from typing import Any

import pytest
import torch

import lightconv
from lightconv.data.text import LONGEST_LINE, Notes
from lightconv.decode import translator
from lightconv.decode.answer import Answer
from lightconv.decode.engine import Engine
from lightconv.decode.text import TextModel
from lightconv.decode.translator import LineReader, read_stream, read_windows, windows
from tests.trained import Trained


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


@pytest.fixture
def pairs(copies: Trained) -> TextModel:
    return lightconv.load(copies.model)


@pytest.mark.parametrize(
    "options", [{"beam": 3, "n_best": 2}, {"sample": True, "n_best": 2}, {"beam": 1}]
)
@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_texts_join_and_leave_a_running_batch(
    pairs: TextModel, options: dict[str, Any], quantize: Any
) -> None:
    """Texts and score bits are those of each text alone, whenever it joined and who was there."""
    draw = random.Random(str((options, quantize)))
    words = [f"w{n}" for n in range(1, 9)]
    texts = [" ".join(draw.choices(words, k=draw.randrange(0, 9))) for _ in range(20)]
    options = options | {"quantize": quantize, "max_len_plus": 12, "max_source": 6}

    def alone(number: int) -> Answer:
        translator = pairs.build_translator(
            pairs.options(
                {k: v for k, v in options.items() if k != "sample"}, sample="sample" in options
            ),
            warn=lambda text: None,
        )
        return translator.answer([(texts[number], "")], number + 1)[0]

    stream = pairs.stream(max_sentences=5, warn=lambda text: None, **options)
    keys, found, waiting = dict[int, int](), dict[int, Answer](), list(range(20))
    while waiting or stream:
        for _ in range(min(len(waiting), draw.choice([0, 0, 1, 3]))):
            number = waiting.pop()
            keys[stream.submit(texts[number], number=number + 1)] = number
        found |= {keys[key]: answer for key, answer in stream.step(draw.choice([0.0, 1e-4]))}
    for number in range(20):
        expected = alone(number)
        assert found[number].outputs == expected.outputs, texts[number]
        assert found[number].parts == expected.parts


def test_a_bad_text_leaves_the_others_alone(pairs: TextModel) -> None:
    stream = pairs.stream(beam=2, max_len_plus=9, strict=True, max_source=8)
    said = list[str]()
    kept = stream.submit("w1 w2 w3", on_token=said.append)
    bad = stream.submit("w1 \ud800")
    long = stream.submit(" ".join(["w1"] * 30))
    gone, never = stream.submit("w4 w5"), stream.submit("w4")
    stream.cancel(never)
    found = dict(stream.step())
    stream.cancel(gone)
    while stream:
        found |= dict(stream.step())
    assert set(found) == {kept, bad, long}
    assert (
        found[kept].outputs
        == next(iter(pairs.answers(["w1 w2 w3"], beam=2, max_len_plus=9))).outputs
    )
    assert not found[bad].outputs and "surrogate" in found[bad].error
    assert "30 tokens, expected at most 8" in found[long].error
    assert said[-1].startswith(found[kept].text) or found[kept].text.startswith(said[-1])
    assert found[bad].plain()["error"] == found[bad].error


@pytest.mark.parametrize("threads", [1, 3])
def test_callers_change_no_answer(pairs: TextModel, threads: int) -> None:
    before = torch.get_num_threads()
    texts = [" ".join(f"w{n % 9 + 1}" for n in range(k % 7)) for k in range(40)]
    expected = [next(iter(pairs.answers([text]))).outputs for text in texts]
    try:
        torch.set_num_threads(threads)
        found = [answer.outputs for answer in pairs.answers(texts, max_sentences=4)]
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert found == expected


def test_callbacks_cancel_and_fail_their_own_texts(pairs: TextModel) -> None:
    texts = ["w1 w2 w3", "w4 w5", "w6 w7 w8", "w2 w9", "w3"]
    stream = pairs.stream(beam=2, min_len=5, max_len_plus=9, max_source=3, warn=lambda text: None)
    keys = [stream.submit(text) for text in texts[:3]]
    gone = stream.submit("w2 w9", on_token=lambda said: stream.cancel(gone))

    def refuse(said: str) -> None:
        raise ConnectionError("the client has gone")

    failed = stream.submit("w3", on_token=refuse)
    said = list[str]()
    parts = stream.submit("w1 w2 w3 w4 w5", on_token=said.append)
    found = dict(stream.step())
    while stream:
        found |= dict(stream.step())
    assert set(found) == {*keys, failed, parts} and found[failed].error == "the client has gone"
    assert found[parts].parts == 2 and len(said) >= 5
    for key, text in zip(keys, texts, strict=False):
        expected = pairs.answers([text], beam=2, min_len=5, max_len_plus=9)
        assert found[key].outputs == next(iter(expected)).outputs


@pytest.mark.parametrize("rows", [0, 1 << 60])
def test_threads_of_a_step_change_no_answer(
    pairs: TextModel, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["w1 w2 w3", "w4 w5"]
    expected = [answer.outputs for answer in pairs.answers(texts)]
    before = torch.get_num_threads()
    monkeypatch.setattr("lightconv.decode.engine._WORK_FOR_THREADS", 0)
    monkeypatch.setattr(Engine, "_shared", lambda self, threads: (rows, rows))
    try:
        torch.set_num_threads(2)
        assert [answer.outputs for answer in pairs.answers(texts)] == expected
    finally:
        torch.set_num_threads(before)


def test_the_fastest_way_to_share_is_chosen(
    pairs: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(pairs.model)
    assert all(0.0 < seconds < 60.0 for seconds in engine._measure(4, 2))
    # With one thread, with all, by callers: all threads pay from 16 rows on, callers even more.
    seconds = {4: [1.0, 2.0, 3.0], 16: [4.0, 2.0, 1.0]}
    monkeypatch.setattr(Engine, "_measure", lambda self, rows, threads: seconds[rows])
    engine._sharing.clear()
    assert engine._shared(1)[0] > 1 << 30 and engine._shared(2) == (4, 16)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert [engine.callers(*each) for each in ((3, 5), (4, 4), (1, 20), (99, 5))] == [
            1,
            2,
            1,
            2,
        ]
    finally:
        torch.set_num_threads(before)
