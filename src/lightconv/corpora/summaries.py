"""Articles with summaries of several sentences, as examples of one line each.

Sentences of a summary have a pilcrow between them, ` ¶ `: one word for every tokeniser, which
measures and readers of summaries turn into the end of a line.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from lightconv.data.corpus import SENTENCE_BREAK, Example

# What the two texts are called, by whoever made the file.
FIELDS = (("article", "highlights"), ("document", "summary"), ("text", "summary"))
_CALLED = " or ".join(f'{{"{source}": ..., "{target}": ...}}' for source, target in FIELDS)


def summary_text(sentences: Iterable[str]) -> str:
    """Sentences -> one line."""
    lines = (_line(sentence.replace(SENTENCE_BREAK, " ")) for sentence in sentences)
    return f" {SENTENCE_BREAK} ".join(filter(None, lines))


def article_text(paragraphs: Iterable[str]) -> str:
    """Paragraphs -> one line."""
    return " ".join(filter(None, map(_line, paragraphs)))


def _line(text: str) -> str:
    return " ".join(text.split())


def parse_records(lines: Iterable[str], name: str) -> Iterator[Example]:
    """JSON lines -> (article, summary); a line with nothing in it is passed over.

    A text is a string, with newlines between its sentences, or a list of strings.
    """
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _example(line, f"{name}, line {number}")


def _example(line: str, where: str) -> Example:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: no JSON ({error}), expected {_CALLED} in each line") from None
    if not isinstance(record, dict):
        raise ValueError(f"{where}: {line[:60]!r}, expected {_CALLED}")
    for article, summary in FIELDS:
        if article in record and summary in record:
            return (
                article_text(_parts(record[article], f"{where}, {article}")),
                summary_text(_parts(record[summary], f"{where}, {summary}")),
            )
    fields = ", ".join(sorted(record)[:8])
    raise ValueError(f"{where}: fields {fields or '(none)'}, expected {_CALLED}")


def _parts(value: Any, where: str) -> list[str]:
    """The sentences of a text, whatever way they were marked; half a surrogate is no text."""
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"{where}: {str(value)[:60]!r}, expected text or a list of texts")
    if any("\ud800" <= character <= "\udfff" for part in parts for character in part):
        raise ValueError(f"{where}: a lone surrogate, which is no character. Write the file anew")
    return [line for part in parts for line in _sentences(part)]


def _sentences(text: str) -> list[str]:
    for mark in ("<s>", "</s>", "\r\n"):  # the first two in files of See et al. (2017)
        text = text.replace(mark, "\n")
    return text.split("\n")
