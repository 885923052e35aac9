"""Texts in pieces that models read well, HTML whose tags stay, words and their alignment."""

import html
import math
import re
from collections.abc import Sequence
from functools import lru_cache
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from lightconv.decode.answer import Answer
    from lightconv.decode.text import TextModel
    from lightconv.serve.pool import Order

# A line of more characters is translated a few sentences at a time.
WHOLE = 300
_END = re.compile(r"(?:[.!?…]+[\"'”’»)\]]*(?=\s)|[。！？]+[」』”’）]*)\s*")
# Contents of these elements are not language.
RAW = frozenset(("script", "style", "code", "pre", "textarea", "kbd", "samp"))


class Piece(NamedTuple):
    """Text to translate, or, if not `translate`, to keep: white space, tags."""

    text: str
    translate: bool


def split_text(text: str) -> list[Piece]:
    """Lines, and sentences of long lines, with the white space between them; joined, the text."""
    found: list[Piece] = []
    for line in text.splitlines(keepends=True):
        for part in _sentences(line):
            body = part.strip()
            start = part.find(body) if body else len(part)
            for piece, translate in (
                (part[:start], False),
                (body, True),
                (part[start + len(body) :], False),
            ):
                if piece:
                    found.append(Piece(piece, translate))
    return found


def _sentences(line: str) -> list[str]:
    """Groups of sentences of at most WHOLE characters, or one sentence."""
    if len(line) <= WHOLE:
        return [line]
    ends = [match.end() for match in _END.finditer(line)]
    found, begin, last = [], 0, 0
    for end in (*ends, len(line)):
        if end - begin > WHOLE and last > begin:
            found.append(line[begin:last])
            begin = last
        last = end
    return [*found, line[begin:]] if begin < len(line) else found


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.pieces: list[Piece] = []
        self._text = ""
        self._raw = 0

    def _flush(self) -> None:
        if self._text:
            self.pieces += split_text(self._text)
            self._text = ""

    def _keep(self, text: str) -> None:
        self._flush()
        self.pieces.append(Piece(text, False))

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._keep(self.get_starttag_text() or "")
        self._raw += tag in RAW

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self._keep(self.get_starttag_text() or "")

    def handle_endtag(self, tag: str) -> None:
        self._keep(f"</{tag}>")
        self._raw = max(0, self._raw - (tag in RAW))

    def handle_data(self, data: str) -> None:
        if self._raw:
            self._keep(data)
        else:
            self._text += data

    def handle_entityref(self, name: str) -> None:
        self._refer(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self._refer(f"&#{name};")

    def _refer(self, text: str) -> None:
        if self._raw:
            self._keep(text)
        else:
            self._text += html.unescape(text)

    def handle_comment(self, data: str) -> None:
        self._keep(f"<!--{data}-->")

    def handle_decl(self, decl: str) -> None:
        self._keep(f"<!{decl}>")

    def handle_pi(self, data: str) -> None:
        self._keep(f"<?{data}>")

    def unknown_decl(self, data: str) -> None:
        self._keep(f"<![{data}]>")


def split_html(text: str) -> list[Piece]:
    """Text between tags; tags, comments and contents of scripts and code are kept."""
    reader = _Reader()
    reader.feed(text)
    rest = reader.rawdata
    reader.close()
    reader._flush()
    if rest and not reader.pieces:
        return split_text(text)
    return reader.pieces


def join(pieces: Sequence[Piece], answers: Sequence[str], *, markup: bool) -> str:
    """The pieces, each that was translated replaced by its answer."""
    rest = iter(answers)
    found = []
    for piece in pieces:
        text = next(rest) if piece.translate else piece.text
        found.append(html.escape(text, quote=False) if markup and piece.translate else text)
    return "".join(found)


@lru_cache(maxsize=64)
def _pipeline(folder: str) -> Any:
    from lightconv.data.pipeline import Pipeline
    from lightconv.models.folder import ModelFolder

    return Pipeline.load(ModelFolder(folder).path)


def guess(text: str, folders: dict[str, str]) -> dict[str, float]:
    """Share of belief in each language: the fewer tokens its model reads a text in, the more."""
    from lightconv.data.vocabulary import UNK

    costs = {}
    for language, folder in folders.items():
        ids = _pipeline(folder).encode(0, [text])[0]
        costs[language] = sum(4.0 if token == UNK else 1.0 for token in ids) / max(1, len(text))
    least = min(costs.values())
    weights = {language: math.exp(-40 * (cost - least)) for language, cost in costs.items()}
    return {language: weight / sum(weights.values()) for language, weight in weights.items()}


# --- in a worker ----------------------------------------------------------------------------------


def result(model: "TextModel", work: "Order", answer: "Answer") -> dict[str, Any]:
    """An answer for the front: texts, scores, tokens; words and alignment if asked."""
    from lightconv.decode.answer import join_sentences

    outputs: list[dict[str, Any]] = [
        {
            "text": join_sentences(each.text),
            "score": each.score,
            "tokens": each.tokens,
            "logprobs": each.logprobs,
        }
        for each in answer.outputs
    ]
    found: dict[str, Any] = {"outputs": outputs}
    if not model.pairs:
        found["read"] = len(model.pipeline.encode(0, [work.text])[0])
        for plain in outputs:
            plain["completion"] = completion(model, work.text, plain["text"])
    if work.kind == "words" and answer.outputs and answer.outputs[0].alignment is not None:
        found |= _words(model, work.text, answer)
    return found


def completion(model: "TextModel", prompt: str, text: str) -> str:
    """An output of a language model without its prompt, as the model reads it."""
    read = model.pipeline.decode(0, model.pipeline.encode(0, [prompt])[0])
    return text.removeprefix(read).lstrip(" ")


def _words(model: "TextModel", text: str, answer: "Answer") -> dict[str, Any]:
    """Words of source and target with their spans, pairs of aligned words, confidence of targets.

    A token belongs to the word in which the text of the tokens up to it ends.
    """
    best = answer.outputs[0]
    pipeline = model.pipeline
    target_ids = [token for token, name in zip(best.ids, best.tokens, strict=True)]
    source_ids = pipeline.encode(0, [text])[0]
    sides = len(pipeline.config.sides)
    source, of_source = _spans(pipeline, 0, source_ids)
    target, of_target = _spans(pipeline, sides - 1, target_ids)
    pairs = {
        (of_source[s], of_target[t])
        for s, t in best.alignment or ()
        if s < len(of_source) and t < len(of_target)
    }
    sure = [0.0] * len(target)
    for place, logprob in zip(of_target, best.logprobs, strict=False):
        sure[place] = min(sure[place], logprob)
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
    from lightconv.data.vocabulary import EOS
    from lightconv.mixers.kernels import dynamic_kernels

    reading = model.pipeline.encode(0, [text])[0][:128]
    source, _ = model.pipeline.vocabularies()
    ids = [*reading, EOS] if model.pairs else [EOS, *reading]
    import torch

    tokens = torch.tensor([ids])
    one: Any = model.model
    found = dynamic_kernels(
        one, lambda: one.encode(tokens) if model.pairs else one.features(tokens)
    )
    return {"tokens": source.decode(ids), "layers": found}
