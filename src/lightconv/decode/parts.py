"""A text that is too long for a model becomes several that are not."""

import re
from collections.abc import Callable, Iterator

# Behind the end of a sentence, in scripts with spaces and without.
_SENTENCE_END = re.compile(r"(?:[.!?…]+[\"'”’»)\]]*(?=\s)|[。！？]+[」』”’）]*)")
_SPACE = re.compile(r"\s+")


def cut(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Parts in order, each of which `fits`: halves of halves, cut at the ends of sentences.

    Where there is no sentence end near the middle, a part ends at white space, and where there is
    none, anywhere. One character is never cut.
    """
    text = text.strip()
    if len(text) < 2 or fits(text):
        return [text] if text else []
    place = _find_cut(text)
    return [*cut(text[:place], fits), *cut(text[place:], fits)]


def _find_cut(text: str) -> int:
    """The place nearest to the middle, among the best kind of places in the middle half."""
    middle, quarter = len(text) / 2, len(text) / 4
    for places in (_places(_SENTENCE_END, text), _places(_SPACE, text)):
        near = [place for place in places if abs(place - middle) <= quarter]
        if near:
            return min(near, key=lambda place: abs(place - middle))
    return len(text) // 2


def _places(kind: re.Pattern[str], text: str) -> Iterator[int]:
    return (found.end() for found in kind.finditer(text) if 0 < found.end() < len(text))
