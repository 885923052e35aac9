"""The process that decodes: models, the running batches of their texts, words and kernels."""

import gc
import os
import select
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lightconv.processes import watch_parent
from lightconv.serve.pool import Frames, Order

if TYPE_CHECKING:
    from lightconv.decode.answer import Answer
    from lightconv.decode.text import TextModel

# Streams of different options that a worker keeps.
STREAMS = 8
# Seconds after which it looks for messages while it has texts, and more for each of them: texts
# that come meanwhile join together, and answers leave together. That costs less.
TURN, TURN_OF_TEXT = 0.0006, 0.0002


def work(pipe: socket.socket, models: dict[str, str], options: dict[str, Any]) -> None:
    """Answers messages until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the front drains
    watch_parent(os.getppid())
    import torch

    torch.set_num_threads(1)
    frames = Frames()
    with suppress(OSError):
        try:
            desk = Desk(models, options)
        except (ValueError, OSError) as error:
            pipe.sendall(Frames.pack([(0, "error", str(error))]))
            return
        pipe.sendall(Frames.pack([(0, "ready", "")]))
        gc.freeze()  # the models need not be looked through for garbage
        while True:
            if not desk.busy or select.select([pipe], [], [], 0)[0]:
                data = pipe.recv(1 << 20)
                if not data:
                    return
                for messages in frames.read(data):
                    for message in messages:
                        desk.read(*message)
            if news := desk.advance():
                pipe.sendall(Frames.pack(news))


class Desk:
    """Models by name and their running batches, by options."""

    def __init__(self, models: dict[str, str], options: dict[str, Any]) -> None:
        from lightconv.decode.text import load

        self.models = {name: load(folder) for name, folder in models.items()}
        self.options = options
        self._news: list[tuple[int, str, Any]] = []
        self._streams: dict[Any, Any] = {}
        self._orders: dict[int, tuple[Any, Order]] = {}  # and the names of their streams
        for name in self.models:  # engines are built now, not for the first request
            self._stream(Order(name, ""))

    @property
    def busy(self) -> bool:
        return bool(self._orders or self._news)

    def read(self, key: int, fields: tuple[Any, ...] | None) -> None:
        """Begins an order, or cancels one."""
        if fields is None:
            if key in self._orders:
                self._streams[self._orders.pop(key)[0]].cancel(key)
            return
        order = Order(*fields)
        model = self.models[order.model]

        def tell(text: str) -> None:
            self._news.append((key, "text", complete(model, order.text, text)))

        try:
            if order.kind == "kernels":
                self._news.append((key, "done", kernels(model, order.text)))
                return
            name = self._stream(order)
            self._streams[name].submit(order.text, key=key, on_token=tell if order.watch else None)
        except ValueError as error:
            self._news.append((key, "error", str(error)))
            return
        self._orders[key] = name, order

    def _stream(self, order: Order) -> Any:
        name = order.model, order.options, order.kind
        if name not in self._streams:
            idle = [each for each, stream in self._streams.items() if not len(stream)]
            for each in idle[: max(0, len(self._streams) + 1 - STREAMS)]:
                del self._streams[each]
            model = self.models[order.model]
            chosen = self.options | dict(order.options)
            chosen |= {} if model.pairs else {"answer_empty": True}
            chosen |= {"alignments": True} if order.kind == "words" else {}
            self._streams[name] = model.stream(**chosen)
        return name

    def advance(self) -> list[tuple[int, str, Any]]:
        """Some steps of every stream that has texts; what there is to tell."""
        for stream in self._streams.values():
            seconds = TURN + TURN_OF_TEXT * len(stream)
            for key, answer in stream.step(seconds) if len(stream) else ():
                _, order = self._orders.pop(key)
                kind = "error" if answer.error else "done"
                value = answer.error or _result(self.models[order.model], order, answer)
                self._news.append((key, kind, value))
        news, self._news = self._news, []
        return news


def _result(model: "TextModel", order: Order, answer: "Answer") -> Any:
    """An answer for the front: its texts; of a completion, tokens too; or words."""
    from lightconv.decode.answer import join_sentences

    if not model.pairs:
        return {
            "read": len(model.pipeline.encode(0, [order.text])[0]),
            "texts": [complete(model, order.text, each.text) for each in answer.outputs],
            "made": [len(each.tokens) for each in answer.outputs],
        }
    if order.kind == "words":
        return _words(model, order.text, answer)
    return [join_sentences(each.text) for each in answer.outputs]


def complete(model: "TextModel", prompt: str, text: str) -> str:
    """An output of a language model without its prompt, as the model reads it."""
    read = model.pipeline.decode(0, model.pipeline.encode(0, [prompt])[0])
    return text.removeprefix(read).lstrip(" ")


def _words(model: "TextModel", text: str, answer: "Answer") -> dict[str, Any]:
    """Words of source and target, pairs of aligned words, log-probabilities of target words.

    A token belongs to the word in which the text of the tokens up to it ends.
    """
    if not answer.outputs:
        return {"source": text.split(), "target": [], "pairs": [], "logprobs": []}
    best, pipeline = answer.outputs[0], model.pipeline
    source, of_source = _spans(pipeline, 0, pipeline.encode(0, [text])[0])
    target, of_target = _spans(pipeline, len(pipeline.config.sides) - 1, best.ids)
    pairs = {
        (of_source[s], of_target[t])
        for s, t in best.alignment or ()
        if s < len(of_source) and t < len(of_target)
    }
    sure = [0.0] * len(target)
    for place, logprob in zip(of_target, best.logprobs, strict=False):
        sure[place : place + 1] = [min(sure[place], logprob)] if target else []
    return {"source": source, "target": target, "pairs": sorted(pairs), "logprobs": sure}


def _spans(pipeline: Any, side: int, ids: Sequence[int]) -> tuple[list[str], list[int]]:
    """Words of the text of ids, and the word of each id."""
    words = pipeline.decode(side, ids).split()
    owner, ends = [], 0
    for k in range(1, len(ids) + 1):
        ends = max(ends, len(pipeline.decode(side, ids[:k]).split()))
        owner.append(min(max(ends - 1, 0), max(len(words) - 1, 0)))
    return words, owner


def kernels(model: "TextModel", text: str) -> dict[str, Any]:
    """Tokens of a text and the kernels each DynamicConv layer makes for them, [H][T][K]."""
    import torch

    from lightconv.data.vocabulary import EOS
    from lightconv.mixers.kernels import dynamic_kernels

    reading = model.pipeline.encode(0, [text])[0][:128]
    ids = [*reading, EOS] if model.pairs else [EOS, *reading]
    one: Any = model.model
    read: Callable[[Any], object] = one.encode if model.pairs else one.features
    layers = dynamic_kernels(one, lambda: read(torch.tensor([ids])))
    tokens = [model.pipeline.decode(0, [token]).strip() for token in ids]
    return {"tokens": [each or "·" for each in tokens], "layers": layers}
