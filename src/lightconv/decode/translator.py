"""Text in, text out: cut into tokens, sorted into batches, searched, answered in input order.

    translator = Translator(PairSearch(model, Finder(config)), pipeline)
    for answer in translator.answers(open_lines):
        print(answer.text)

What is searched, a target or the end of a text, is the search's business: see `search`.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from lightconv.data.pipeline import Pipeline
from lightconv.decode.answer import Answer, Output, join_outputs
from lightconv.decode.beam import Hypothesis
from lightconv.decode.options import TextOptions
from lightconv.decode.parts import cut
from lightconv.decode.search import Ids, Search, Searched, search_batches
from lightconv.decode.stream import windows

# Languages without spaces between sentences.
UNSPACED = ("zh", "ja", "th")


class Reading(NamedTuple):
    """A text as the model reads it: the ids of its parts, none for an empty text."""

    line: int
    text: str
    parts: list[list[int]]


class Translator:
    """A search and the pipeline around it.

    continues  whether an output goes on where its source ends, so that they are one text
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
        warn: Callable[[str], None] | None = None,
        show: Callable[[int], None] = lambda done: None,
    ) -> None:
        self.search = search
        self.pipeline = pipeline
        self.options = options or TextOptions()
        self.continues = continues
        self.warn = warn or _warn
        self.show = show
        self._target = len(pipeline.config.sides) - 1
        self._tokens = pipeline.vocabularies().target
        language = pipeline.config.sides[self._target].lang
        self._between = "" if language.partition("_")[0] in UNSPACED else " "

    def answers(self, texts: Iterable[str]) -> Iterator[Answer]:
        """The answer of each text, in their order; a window of them is in memory at a time."""
        return self.answer_windows(windows(check_texts(texts), self.options.window))

    def answer_windows(self, stream: Iterable[Sequence[str]]) -> Iterator[Answer]:
        """The same for windows, each of which is answered before the next one is asked for."""
        done = 0
        for window in stream:
            yield from self.answer(window, first=done + 1)
            done += len(window)

    def answer(self, texts: Sequence[str], first: int = 1) -> list[Answer]:
        """The answers of some texts at once; `first` is the number of the first one."""
        readings = [self.read(text, first + place) for place, text in enumerate(texts)]
        places = [
            (place, part) for place, each in enumerate(readings) for part in range(len(each.parts))
        ]
        sources = [readings[place].parts[part] for place, part in places]
        missing = [len(each.parts) for each in readings]
        found: list[list[Searched | None]] = [[None] * count for count in missing]
        # Empty texts have their answers already.
        done = first - 1 + missing.count(0)
        numbers = [readings[place].line for place, _ in places]
        for searched in search_batches(self.search, sources, self.options, numbers):
            place, part = places[searched.row]
            found[place][part] = searched
            missing[place] -= 1
            if not missing[place]:
                done += 1
                self.show(done)
        return [
            self._answer(reading, [each for each in parts if each is not None])
            for reading, parts in zip(readings, found, strict=True)
        ]

    def read(self, text: str, line: int = 1) -> Reading:
        """The ids of a text, in parts if it is too long."""
        if not text.strip() and not self.options.answer_empty:
            return Reading(line, text, [])
        ids = self._encode(text, line)
        if not ids and not self.options.answer_empty:
            return Reading(line, text, [])
        most = self.options.max_source
        if len(ids) <= most:
            return Reading(line, text, [ids])
        if self.options.strict:
            raise ValueError(
                f"line {line}: {len(ids)} tokens, expected at most {most}. Cut it, raise "
                "--max-source, or leave --strict away"
            )
        return Reading(line, text, self._shorten(text, ids, line))

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

    def _encode(self, text: str, line: int) -> list[int]:
        try:
            return self.pipeline.encode(0, [text])[0]
        except ValueError as error:
            raise ValueError(f"line {line}: {error}") from None

    def _answer(self, reading: Reading, found: list[Searched]) -> Answer:
        if not found:
            return Answer(reading.line, reading.text, [], parts=0)
        outputs = [
            [self._output(ids, each) for each in searched.hypotheses[: self.options.n_best]]
            for ids, searched in zip(reading.parts, found, strict=True)
        ]
        batches = {id(each.batch): each.batch for each in found}.values()
        return Answer(
            reading.line,
            reading.text,
            outputs[0] if len(outputs) == 1 else join_outputs(outputs, self._between),
            parts=len(found),
            seconds=sum(batch.seconds for batch in batches),
            sentences=max(batch.sentences for batch in batches),
        )

    def _output(self, source: Ids, found: Hypothesis) -> Output:
        ids = [*source, *found.tokens] if self.continues else found.tokens
        return Output(
            text=one_line(self.pipeline.decode(self._target, ids)),
            score=found.score,
            ids=found.tokens,
            tokens=self._tokens.decode(found.tokens),
            logprobs=found.logprobs,
        )


def one_line(text: str) -> str:
    """The text without what would end its line: a model of bytes can say anything."""
    return text.replace("\n", " ").replace("\r", " ")


def check_texts(texts: Iterable[str]) -> Iterator[str]:
    """Each text, once it is known to be one, without the end of its line: files can be given."""
    if isinstance(texts, str | bytes):
        raise ValueError("one text, expected a list of texts. Put it into brackets")
    return _each_text(texts)


def _each_text(texts: Iterable[str]) -> Iterator[str]:
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"texts[{number}] is {type(text).__name__}, expected a text")
        yield text.removesuffix("\n").removesuffix("\r")


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)
