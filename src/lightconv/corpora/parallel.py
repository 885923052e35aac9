"""Two texts line by line, and the marks that the owners of corpora put around sentences."""

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest

from lightconv.data.text import first_gap

_SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.IGNORECASE | re.DOTALL)
_OPEN_SEGMENT = re.compile(r"<seg\b", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:(amp|lt|gt|quot|apos)|#([0-9]{1,7})|#x([0-9a-fA-F]{1,6}));")
_MAX_LINES = 1000
_NAMED = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}


def side_by_side(
    readers: Sequence[Callable[[], Iterator[str]]], names: Sequence[object]
) -> Iterator[tuple[str, ...]]:
    """Line 1 of each text, line 2 of each, ...; texts of different length are a ValueError."""
    for lines in zip_longest(*(read() for read in readers)):
        if None in lines:
            raise ValueError(_uneven(readers, names))
        yield lines


def _uneven(readers: Sequence[Callable[[], Iterator[str]]], names: Sequence[object]) -> str:
    lengths = [array("L", map(len, read())) for read in readers]
    counts = " and ".join(
        f"{name} has {len(length)} lines" for name, length in zip(names, lengths, strict=True)
    )
    gap = first_gap(lengths[0], lengths[1])
    return f"{counts}, expected as many. They seem to part at line {gap}. Fetch the corpus again"


def segments(lines: Iterable[str], name: str) -> Iterator[str]:
    """The texts between <seg> and </seg> of an .sgm or .xml file, as plain text."""
    found = False
    pending: list[str] = []  # a segment that began on an earlier line, and goes on
    for number, line in enumerate(lines, 1):
        pending.append(line)
        if len(pending) > _MAX_LINES:
            raise ValueError(f"{name}, line {number}: a <seg> without its </seg>")
        if len(pending) > 1 and "</seg>" not in line.lower():
            continue
        buffer = " ".join(pending)
        for match in _SEGMENT.finditer(buffer):
            found = True
            yield unescape(match[1]).strip()
        opened = _OPEN_SEGMENT.search(_SEGMENT.sub("", buffer))
        pending = [opened.string[opened.start() :]] if opened else []
    if pending or not found:
        problem = "ends within a <seg>" if pending else "has no <seg>"
        raise ValueError(f"{name} {problem}, expected a test set in the WMT or IWSLT format")


def unescape(text: str) -> str:
    """Undoes the five entities of XML and those by number, once, and nothing that looks similar."""
    if "&" not in text:
        return text
    return _ENTITY.sub(_character, text)


def _character(match: re.Match[str]) -> str:
    name, decimal, hexadecimal = match.groups()
    if name:
        return _NAMED[name]
    code = int(decimal) if decimal else int(hexadecimal, 16)
    # Neither half a character nor an end of text.
    valid = 0 < code <= 0x10FFFF and not 0xD800 <= code < 0xE000
    return chr(code) if valid else match[0]
