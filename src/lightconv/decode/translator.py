"""Text in, text out: tokenised, sorted into batches, searched, answered in input order.

A stream is answered window by window. A window is what has arrived, up to a limit: a pipe of any
length needs the memory of one window, and nobody waits for a line that is not written yet.
"""

import os
import select
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from io import UnsupportedOperation
from itertools import chain, islice, repeat
from pathlib import Path
from typing import NamedTuple, TypeVar

from lightconv.data.pipeline import Pipeline
from lightconv.data.text import Notes, lines_of, read_lines
from lightconv.data.vocabulary import BOS, EOS, PAD
from lightconv.decode.answer import Alignment, Answer, Output, cut, join_outputs
from lightconv.decode.beam import Hypothesis
from lightconv.decode.options import TextOptions
from lightconv.decode.search import Ids, Search, Searched, search_batches

# Languages without spaces between sentences.
UNSPACED = ("zh", "ja", "th")
# Bytes read at a time, and characters in a window.
BLOCK = 1 << 16
MOST_CHARACTERS = 1 << 22
# A model of bytes can produce line ends and commands to a terminal: they become spaces.
CONTROLS = {code: " " for code in (*range(32), *range(127, 160)) if chr(code) != "\t"}

T = TypeVar("T", bound=Sized)
# Sources and targets without EOS -> the alignment of each.
Align = Callable[[Sequence[Ids], Sequence[Ids]], list[Alignment]]


class Reading(NamedTuple):
    """The ids of a text, in parts; none for an empty text. `prefix`: first ids of its output."""

    line: int
    text: str
    parts: list[list[int]]
    prefix: Ids = ()


@dataclass(eq=False)
class Translator:
    """A search and the pipeline around it.

    continues  whether an output continues its source, so that they are one text
    align      finds alignments; None: outputs have none
    warn       called with a line about each text that was too long
    show       called with the number of texts answered so far
    """

    search: Search
    pipeline: Pipeline
    options: TextOptions = field(default_factory=TextOptions)
    _: KW_ONLY
    continues: bool = False
    align: Align | None = None
    warn: Callable[[str], None] = warnings.warn
    show: Callable[[int], None] = lambda done: None

    def __post_init__(self) -> None:
        self._encode = partial(encode_line, self.pipeline)
        self._target = len(self.pipeline.config.sides) - 1
        self._read_tokens, self._tokens = self.pipeline.vocabularies()
        language = self.pipeline.config.sides[self._target].lang
        self.between = "" if language.partition("_")[0] in UNSPACED else " "

    def answers(
        self, texts: Iterable[str], prefixes: Iterable[str] | None = None
    ) -> Iterator[Answer]:
        """The answer of each text, in their order; a window of them is in memory at a time.

        prefixes  for each text the words that its output begins with, or nothing
        """
        if isinstance(texts, Sized) and isinstance(prefixes, Sized) and len(texts) != len(prefixes):
            raise ValueError(
                f"{len(texts)} texts and {len(prefixes)} prefixes, expected the same number. Give "
                "an empty prefix to a text that has none"
            )
        begins = repeat("") if prefixes is None else check_texts(prefixes, "prefixes")
        pairs = zip(check_texts(texts), begins, strict=prefixes is not None)
        return self.answer_windows(
            windows(pairs, self.options.window, size=lambda pair: sum(map(len, pair)))
        )

    def answer_windows(self, stream: Iterable[Sequence[tuple[str, str]]]) -> Iterator[Answer]:
        """The same for windows of (text, prefix), each answered before the next is taken."""
        done = 0
        for window in stream:
            yield from self.answer(window, done + 1)
            done += len(window)

    def answer(self, window: Sequence[tuple[str, str]], first: int = 1) -> list[Answer]:
        """The answers of some (text, prefix) at once; `first` is the number of the first one."""
        readings = [
            self.read(text, line, prefix) for line, (text, prefix) in enumerate(window, first)
        ]
        queue = [(reading, part) for reading in readings for part in range(len(reading.parts))]
        sources = [reading.parts[part] for reading, part in queue]
        lines = [reading.line for reading, _ in queue]
        # Only the first part of a text begins as its answer does.
        begins = [reading.prefix if part == 0 else () for reading, part in queue]
        prefixes = begins if any(begins) else None
        found: dict[int, Searched] = {}
        waiting = Counter(lines)
        # Empty texts have their answers already.
        done = first - 1 + len(window) - len(waiting)
        for searched in search_batches(self.search, sources, self.options, lines, prefixes):
            found[searched.row] = searched
            waiting[lines[searched.row]] -= 1
            if waiting[lines[searched.row]] == 0:
                done += 1
                self.show(done)
        return self.finish(readings, [found[row] for row in range(len(queue))])

    def finish(self, readings: Sequence[Reading], parts: Sequence[Searched]) -> list[Answer]:
        """Answers from the results of all parts of all texts."""
        sources = [ids for reading in readings for ids in reading.parts]
        alignments, rest = self._alignments(sources, parts), iter(parts)
        return [
            self._answer(reading, list(islice(rest, len(reading.parts))), alignments)
            for reading in readings
        ]

    def read(self, text: str, line: int = 1, prefix: str = "") -> Reading:
        """The ids of a text, in parts if it is too long."""
        blank = not text.strip() and not self.options.answer_empty
        ids = [] if blank else self._encode(0, text, line)
        if not ids and not self.options.answer_empty:
            return Reading(line, text, [])
        begin = self._encode(self._target, prefix, line) if prefix.strip() else []
        most = self.options.max_source
        if len(ids) <= most:
            return Reading(line, text, [ids], begin)
        if self.options.strict:
            raise ValueError(
                f"line {line}: {len(ids)} tokens, expected at most {most}. Cut it, raise "
                "--max-source, or omit --strict"
            )
        return Reading(line, text, self._shorten(text, ids, line), begin)

    def _shorten(self, text: str, ids: list[int], line: int) -> list[list[int]]:
        most = self.options.max_source
        if self.options.too_long == "parts":
            texts = cut(text, lambda part: len(self._encode(0, part, line)) <= most)
            # A single character may still have more tokens than that.
            parts = [self._encode(0, part, line)[:most] for part in texts]
            what = f"answered in {len(parts)} parts"
        else:
            keep_start = self.options.too_long == "start"
            parts = [ids[:most] if keep_start else ids[-most:]]
            what = f"only the {'first' if keep_start else 'last'} {most} are read"
        self.warn(f"line {line}: {len(ids)} tokens, expected at most {most}; {what}")
        return parts

    def _alignments(
        self, sources: Sequence[Ids], found: Sequence[Searched]
    ) -> Iterator[Alignment | None]:
        """One for each output, in the order in which `_answer` takes them."""
        if self.align is None:
            return repeat(None)
        pairs = [
            (ids, hypothesis.tokens[:-1])
            for ids, searched in zip(sources, found, strict=True)
            for hypothesis in searched.hypotheses[: self.options.n_best]
        ]
        return iter(self.align([ids for ids, _ in pairs], [tokens for _, tokens in pairs]))

    def _answer(
        self, reading: Reading, found: Sequence[Searched], alignments: Iterator[Alignment | None]
    ) -> Answer:
        if not found:
            return Answer(reading.line, reading.text, [], parts=0)
        outputs = [
            [
                self._output(ids, each, next(alignments))
                for each in searched.hypotheses[: self.options.n_best]
            ]
            for ids, searched in zip(reading.parts, found, strict=True)
        ]
        lengths = [len(ids) for ids in reading.parts]
        batches = {each.batch: each for each in found}.values()
        read = [] if self.align is None else list(chain.from_iterable(reading.parts))
        return Answer(
            reading.line,
            reading.text,
            outputs[0] if len(outputs) == 1 else join_outputs(outputs, self.between, lengths),
            parts=len(found),
            seconds=sum(batch.seconds for batch in batches),
            sentences=max(batch.sentences for batch in batches),
            read=tuple(self._read_tokens.decode(read)),
        )

    def text(self, ids: Ids) -> str:
        """The text of an output, or of its beginning."""
        if self.options.subwords:
            kept = [token for token in ids if token not in (BOS, PAD, EOS)]
            return " ".join(self._tokens.decode(kept)).translate(CONTROLS)
        return self.pipeline.decode(self._target, ids).translate(CONTROLS)

    def _output(self, source: Ids, found: Hypothesis, alignment: Alignment | None) -> Output:
        ids = [*source, *found.tokens] if self.continues else found.tokens
        return Output(
            text=self.text(ids),
            score=found.score,
            ids=found.tokens,
            tokens=self._tokens.decode(found.tokens),
            logprobs=found.logprobs,
            alignment=alignment,
        )


def encode_line(pipeline: Pipeline, side: int, text: str, line: int) -> list[int]:
    """The ids of a text; ValueError names its line."""
    try:
        text.encode()  # a surrogate is not a character, whatever the subwords
        return pipeline.encode(side, [text])[0]
    except ValueError as error:
        raise ValueError(f"line {line}: {error}") from None


def check_texts(texts: Iterable[str], name: str = "texts") -> Iterator[str]:
    """Each text, checked and without the end of its line, so that `texts` can be an open file."""
    if isinstance(texts, str | bytes):
        raise ValueError(f"one text, expected a list of {name}. Put it into brackets")
    return _each_text(texts, name)


def _each_text(texts: Iterable[str], name: str) -> Iterator[str]:
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"{name}[{number}] is {type(text).__name__}, expected a text")
        yield text.removesuffix("\n").removesuffix("\r")


class LineReader:
    """Lines of a stream of bytes; `read` may wait for bytes unless `arrived` returns True."""

    def __init__(
        self, read: Callable[[int], bytes], arrived: Callable[[], bool] = lambda: True
    ) -> None:
        self._read, self._arrived = read, arrived
        self._bytes = bytearray()
        self._ended = False

    def is_empty(self) -> bool:
        """Waits for the first bytes or the end; True if nothing follows."""
        if not self._bytes and not self._ended:
            self._fill()
        return not self._bytes

    def readline(self, size: int, /) -> bytes:
        """Waits for a line, or `size` bytes of it; b"" at the end."""
        while b"\n" not in self._bytes and len(self._bytes) < size and not self._ended:
            self._fill()
        end = self._bytes.find(b"\n", 0, size) + 1 or size
        line = bytes(self._bytes[:end])
        del self._bytes[:end]
        return line

    def ready(self) -> bool:
        """True if `readline` need not wait."""
        while b"\n" not in self._bytes and not self._ended:
            if not self._arrived():
                return False
            self._fill()
        return True

    def _fill(self) -> None:
        block = self._read(BLOCK)
        self._ended = not block
        self._bytes += block


def open_stdin() -> LineReader:
    """Standard input, or its replacement."""
    try:
        handle = sys.stdin.fileno()
    except (UnsupportedOperation, AttributeError, ValueError):
        return LineReader(sys.stdin.buffer.read)
    return LineReader(partial(os.read, handle), lambda: bool(select.select([handle], [], [], 0)[0]))


def read_windows(path: Path | None, most: int, notes: Notes) -> Iterator[list[str]]:
    """Windows of the lines of a file, or of standard input as they arrive."""
    if path is not None:
        return windows(read_lines(path, notes), most)
    return read_stream(open_stdin(), "standard input", notes, most)


def read_stream(reader: LineReader, name: str, notes: Notes, most: int) -> Iterator[list[str]]:
    """The windows of a stream: UTF-8 without CR at line ends.

    Bytes that are not text are a ValueError, raised after the lines before them.
    """

    def lines() -> Iterator[str]:
        for line in () if reader.is_empty() else lines_of(reader.readline, name, notes):
            notes.returns += line.endswith("\r")
            yield line.removesuffix("\r")

    return windows(lines(), most, ready=reader.ready)


def windows(
    lines: Iterable[T],
    most: int,
    *,
    ready: Callable[[], bool] = lambda: True,
    size: Callable[[T], int] = len,
) -> Iterator[list[T]]:
    """At most `most` lines at a time, fewer when no other is ready; `size` in characters."""
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
        # The lines before the bad one are answered.
        if window:
            yield window
        raise
    if window:
        yield window
