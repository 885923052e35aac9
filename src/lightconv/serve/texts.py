"""Texts in pieces that models read well, HTML whose tags stay, words and their alignment."""

import html
import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

# A line of more characters is translated a few sentences at a time.
WHOLE = 300
_END = re.compile(r"(?:[.!?…]+[\"'”’»)\]]*(?=\s)|[。！？]+[」』”’）]*)\s*")
# Comments, elements whose contents are not language, and tags; what has no end goes to the text's
# end, so that a search never begins again.
_MARKUP = re.compile(
    r"""<!--.*?(?:-->|\Z)
    | <(script|style|code|pre|textarea|kbd|samp)(?=[\s/>]).*?(?:</\1\s*>|\Z)
    | </?[a-z](?:[^"'>]|"[^"]*(?:"|\Z)|'[^']*(?:'|\Z))*+(?:>|\Z)
    | <[!?][^>]*(?:>|\Z)""",
    re.DOTALL | re.IGNORECASE | re.VERBOSE,
)


class Piece(NamedTuple):
    """Text to translate, or, if not `translate`, to keep: white space, tags."""

    text: str
    translate: bool


def split_text(text: str) -> list[Piece]:
    """Lines, and sentences of long lines, with the white space between them; joined, the text."""
    if len(text) <= WHOLE and [text.strip()] == text.splitlines():
        return [Piece(text, True)]
    found: list[Piece] = []
    for line in text.splitlines(keepends=True):
        for part in _sentences(line):
            body = part.strip()
            start = part.find(body) if body else len(part)
            found += [
                Piece(part[:start], False),
                Piece(body, True),
                Piece(part[start + len(body) :], False),
            ]
    return [piece for piece in found if piece.text]


def _sentences(line: str) -> list[str]:
    """Groups of sentences of at most WHOLE characters, or one sentence."""
    if len(line) <= WHOLE:
        return [line]
    found, begin, last = [], 0, 0
    for end in (*(match.end() for match in _END.finditer(line)), len(line)):
        if end - begin > WHOLE and last > begin:
            found.append(line[begin:last])
            begin = last
        last = end
    return [*found, line[begin:]] if begin < len(line) else found


def split_html(text: str) -> list[Piece]:
    """Text between tags; tags, comments and contents of scripts and code are kept as they are."""
    found, begin = [], 0
    for match in _MARKUP.finditer(text):
        found += [*split_text(html.unescape(text[begin : match.start()])), Piece(match[0], False)]
        begin = match.end()
    return [*found, *split_text(html.unescape(text[begin:]))]


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
