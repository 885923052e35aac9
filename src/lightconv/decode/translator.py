"""Text in, text out: cut into tokens, sorted into batches, searched, answered in input order.

    translator = Translator(PairSearch(model, Finder(config)), pipeline)
    for answer in translator.answers(open_lines):
        print(answer.text)

What is searched, a target or the end of a text, is the search's business: see `search`.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import repeat
from typing import NamedTuple

from lightconv.data.pipeline import Pipeline
from lightconv.data.vocabulary import EOS
from lightconv.decode.alignment import Alignment
from lightconv.decode.answer import Answer, Output, join_outputs
from lightconv.decode.beam import Hypothesis
from lightconv.decode.options import TextOptions
from lightconv.decode.parts import cut
from lightconv.decode.search import Ids, Search, Searched, search_batches
from lightconv.decode.stream import windows

# Languages without spaces between sentences.
UNSPACED = ("zh", "ja", "th")

# Sources and targets without EOS -> the alignment of each.
Align = Callable[[Sequence[Ids], Sequence[Ids]], list[Alignment]]


class Reading(NamedTuple):
    """A text as the model reads it: the ids of its parts, none for an empty text.

    prefix  the ids its output begins with
    """

    line: int
    text: str
    parts: list[list[int]]
    prefix: Ids = ()


class Translator:
    """A search and the pipeline around it.

    continues  whether an output goes on where its source ends, so that they are one text
    align      finds alignments; None: outputs have none
    warn       called with a line about each text that was too long
    show       called with the number of texts answered so far
    """

    def __init__(
        self,
        search: Search,
        pipeline: Pipeline,
        options: TextOptions | None = None,
        *,
        continues: bool = False,
        align: Align | None = None,
        warn: Callable[[str], None] | None = None,
        show: Callable[[int], None] = lambda done: None,
    ) -> None:
        self.search = search
        self.pipeline = pipeline
        self.options = options or TextOptions()
        self.continues = continues
        self.align = align
        self.warn = warn or _warn
        self.show = show
        self._target = len(pipeline.config.sides) - 1
        self._read_tokens, self._tokens = pipeline.vocabularies()
        language = pipeline.config.sides[self._target].lang
        self._between = "" if language.partition("_")[0] in UNSPACED else " "

    def answers(
        self, texts: Iterable[str], prefixes: Iterable[str] | None = None
    ) -> Iterator[Answer]:
        """The answer of each text, in their order; a window of them is in memory at a time.

        prefixes  for each text the words that its output begins with, or nothing
        """
        if isinstance(texts, Sized) and isinstance(prefixes, Sized) and len(texts) != len(prefixes):
            raise ValueError(
                f"{len(texts)} texts and {len(prefixes)} prefixes, expected as many. Where a text "
                "has none, give an empty one"
            )
        begins = repeat("") if prefixes is None else check_texts(prefixes, "prefixes")
        pairs = zip(check_texts(texts), begins, strict=prefixes is not None)
        return self.answer_windows(windows(pairs, self.options.window, size=_characters))

    def answer_windows(self, stream: Iterable[Sequence[tuple[str, str]]]) -> Iterator[Answer]:
        """The same for windows of (text, prefix), each answered before the next is asked for."""
        done = 0
        for window in stream:
            texts, prefixes = ([pair[side] for pair in window] for side in range(2))
            yield from self.answer(texts, done + 1, prefixes)
            done += len(window)

    def answer(
        self, texts: Sequence[str], first: int = 1, prefixes: Sequence[str] | None = None
    ) -> list[Answer]:
        """The answers of some texts at once; `first` is the number of the first one."""
        begins = [""] * len(texts) if prefixes is None else prefixes
        readings = [
            self.read(text, line, prefix)
            for line, (text, prefix) in enumerate(zip(texts, begins, strict=True), first)
        ]
        places = [
            (place, part) for place, each in enumerate(readings) for part in range(len(each.parts))
        ]
        sources = [readings[place].parts[part] for place, part in places]
        missing = [len(each.parts) for each in readings]
        found: list[list[Searched | None]] = [[None] * count for count in missing]
        # Empty texts have their answers already.
        done = first - 1 + missing.count(0)
        numbers = [readings[place].line for place, _ in places]
        # Only the first part of a text begins as its answer does.
        begins_with = [readings[place].prefix if part == 0 else () for place, part in places]
        for searched in search_batches(
            self.search,
            sources,
            self.options,
            numbers,
            begins_with if any(begins_with) else None,
        ):
            place, part = places[searched.row]
            found[place][part] = searched
            missing[place] -= 1
            if not missing[place]:
                done += 1
                self.show(done)
        complete = [[each for each in parts if each is not None] for parts in found]
        alignments = self._alignments(readings, complete)
        return [
            self._answer(reading, parts, alignments)
            for reading, parts in zip(readings, complete, strict=True)
        ]

    def read(self, text: str, line: int = 1, prefix: str = "") -> Reading:
        """The ids of a text, in parts if it is too long."""
        if not text.strip() and not self.options.answer_empty:
            return Reading(line, text, [])
        ids = self._encode(text, line)
        if not ids and not self.options.answer_empty:
            return Reading(line, text, [])
        begin = self._encode(prefix, line, self._target) if prefix.strip() else []
        most = self.options.max_source
        if len(ids) <= most:
            return Reading(line, text, [ids], begin)
        if self.options.strict:
            raise ValueError(
                f"line {line}: {len(ids)} tokens, expected at most {most}. Cut it, raise "
                "--max-source, or leave --strict away"
            )
        return Reading(line, text, self._shorten(text, ids, line), begin)

    def _shorten(self, text: str, ids: list[int], line: int) -> list[list[int]]:
        most = self.options.max_source
        if self.options.too_long == "parts":
            texts = cut(text, lambda part: len(self._encode(part, line)) <= most)
            # A single character may still have more tokens than that.
            parts = [self._encode(part, line)[:most] for part in texts]
            what = f"answered in {len(parts)} parts"
        else:
            keep_start = self.options.too_long == "start"
            parts = [ids[:most] if keep_start else ids[-most:]]
            what = f"only the {'first' if keep_start else 'last'} {most} are read"
        self.warn(f"line {line}: {len(ids)} tokens, expected at most {most}; {what}")
        return parts

    def _encode(self, text: str, line: int, side: int = 0) -> list[int]:
        try:
            return self.pipeline.encode(side, [text])[0]
        except ValueError as error:
            raise ValueError(f"line {line}: {error}") from None

    def _alignments(
        self, readings: Sequence[Reading], found: Sequence[Sequence[Searched]]
    ) -> Iterator[Alignment | None]:
        """One for each output, in the order in which `_answer` comes to them."""
        if self.align is None:
            return repeat(None)
        pairs = [
            (ids, hypothesis.tokens[:-1])
            for reading, parts in zip(readings, found, strict=True)
            for ids, searched in zip(reading.parts, parts, strict=True)
            for hypothesis in self._kept(searched)
        ]
        return iter(self.align([ids for ids, _ in pairs], [tokens for _, tokens in pairs]))

    def _kept(self, searched: Searched) -> list[Hypothesis]:
        return searched.hypotheses[: self.options.n_best]

    def _answer(
        self,
        reading: Reading,
        found: Sequence[Searched],
        alignments: Iterator[Alignment | None],
    ) -> Answer:
        if not found:
            return Answer(reading.line, reading.text, [], parts=0)
        outputs = [
            [self._output(ids, each, next(alignments)) for each in self._kept(searched)]
            for ids, searched in zip(reading.parts, found, strict=True)
        ]
        lengths = [len(ids) for ids in reading.parts]
        batches = {id(each.batch): each.batch for each in found}.values()
        return Answer(
            reading.line,
            reading.text,
            outputs[0] if len(outputs) == 1 else join_outputs(outputs, self._between, lengths),
            parts=len(found),
            seconds=sum(batch.seconds for batch in batches),
            sentences=max(batch.sentences for batch in batches),
            read=()
            if self.align is None
            else tuple(self._read_tokens.decode(_flat(reading.parts))),
        )

    def _output(self, source: Ids, found: Hypothesis, alignment: Alignment | None) -> Output:
        ids = [*source, *found.tokens] if self.continues else found.tokens
        if self.options.subwords:
            text = " ".join(self._tokens.decode([place for place in ids if place != EOS]))
        else:
            text = self.pipeline.decode(self._target, ids)
        return Output(
            text=one_line(text),
            score=found.score,
            ids=found.tokens,
            tokens=self._tokens.decode(found.tokens),
            logprobs=found.logprobs,
            alignment=alignment,
        )


def one_line(text: str) -> str:
    """The text without what would end its line: a model of bytes can say anything."""
    return text.replace("\n", " ").replace("\r", " ")


def check_texts(texts: Iterable[str], name: str = "texts") -> Iterator[str]:
    """Each text, once it is known to be one, without the end of its line: files can be given."""
    if isinstance(texts, str | bytes):
        raise ValueError(f"one text, expected a list of {name}. Put it into brackets")
    return _each_text(texts, name)


def _each_text(texts: Iterable[str], name: str) -> Iterator[str]:
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"{name}[{number}] is {type(text).__name__}, expected a text")
        yield text.removesuffix("\n").removesuffix("\r")


def _flat(parts: Sequence[Ids]) -> list[int]:
    return [place for ids in parts for place in ids]


def _characters(pair: tuple[str, str]) -> int:
    return len(pair[0]) + len(pair[1])


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)
