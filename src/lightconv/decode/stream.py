"""Texts that come one by one, for a server: the API above a running search."""

from collections.abc import Callable
from functools import partial

from lightconv.decode.answer import Answer
from lightconv.decode.search import STEPS, Ids, ModelSearch, Searched, Stream
from lightconv.decode.translator import Reading, Translator


class TextStream:
    """Texts answered as they come: each joins the running batch, and leaves it when it is done.

    stream = model.stream(beam=4, quantize="int8")
    key = stream.submit("Guten Morgen.", on_token=print)
    while stream:
        for key, answer in stream.step():
            print(key, answer.error or answer.text)

    A text that cannot be read or answered has an answer with `error`; the others go on. Answers are
    those of each text alone, to the bit. A stream belongs to one thread; backends that step in
    PyTorch let texts join only when the batch is empty.
    """

    def __init__(self, translator: Translator) -> None:
        assert isinstance(translator.search, ModelSearch)
        options = translator.options
        self._translator = translator
        self._stream = Stream(translator.search, options.max_sentences, options.max_tokens)
        self._open: dict[int, tuple[Reading, dict[int, Searched]]] = {}
        self._done: list[tuple[int, Answer]] = []
        self._count = 0

    def __len__(self) -> int:
        """Texts without an answer so far."""
        return len(self._open) + len(self._done)

    def submit(
        self,
        text: str,
        prefix: str = "",
        *,
        key: int | None = None,
        number: int = 1,
        on_token: Callable[[str], None] | None = None,
    ) -> int:
        """Adds a text and returns its key, a number that is new unless it is given.

        number    of the text: random outputs depend on it
        on_token  called after each step with the best output so far; if it raises, the text fails
        """
        key = self._count = self._count + 1 if key is None else key
        self._open[key] = Reading(number, text, []), {}
        said: dict[int, str] = {}
        try:
            reading = self._translator.read(text, number, prefix)
            self._open[key] = reading, {}
            for part, ids in enumerate(reading.parts):
                self._stream.put((key, part), ids, number, reading.prefix if part == 0 else ())
                if on_token is not None:
                    tell = partial(self._tell, key, part, on_token, said)
                    self._stream.on_token[key, part] = tell
        except ValueError as error:
            self._fail(key, error)
        else:
            self._finish(key)
        return key

    def step(self, seconds: float = 0.0) -> list[tuple[int, Answer]]:
        """One token of every text, or several for so long; keys and answers of those done."""
        for searched in self._stream.advance(STEPS if seconds else 1, seconds):
            key, part = searched.row
            self._stream.on_token.pop(searched.row, None)
            if key in self._open:  # a callback or another part may have ended it
                try:
                    searched.check(self._open[key][0].line)
                    self._open[key][1][part] = searched
                    self._finish(key)
                except ValueError as error:
                    self._fail(key, error)
        done, self._done = self._done, []
        return done

    def cancel(self, key: int) -> None:
        """The text leaves at once, without an answer; one that has left already is ignored."""
        self._done = [each for each in self._done if each[0] != key]
        if key in self._open:
            self._drop(key)

    def _drop(self, key: int) -> Reading:
        reading, _ = self._open.pop(key)
        parts = [(key, part) for part in range(len(reading.parts))]
        self._stream.cancel(*parts)
        for part in parts:
            self._stream.on_token.pop(part, None)
        return reading

    def _tell(
        self, key: int, part: int, on_token: Callable[[str], None], said: dict[int, str], ids: Ids
    ) -> None:
        begin = self._open[key][0].parts[part] if self._translator.continues else ()
        said[part] = self._translator.text([*begin, *ids])
        try:
            on_token(self._translator.between.join(said[part] for part in sorted(said)))
        except Exception as error:
            if key in self._open:
                self._fail(key, error)

    def _fail(self, key: int, error: Exception) -> None:
        reading = self._drop(key)
        reason = str(error) or type(error).__name__
        answer = Answer(reading.line, reading.text, [], parts=0, error=reason)
        self._done.append((key, answer))

    def _finish(self, key: int) -> None:
        reading, found = self._open[key]
        if len(found) == len(reading.parts):
            parts = [found[part] for part in range(len(found))]
            self._done.append((key, self._translator.finish([reading], parts)[0]))
            del self._open[key]
