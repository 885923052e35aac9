"""Package descriptions as apt's `Translation-xx` indices hold them.

A record has a package, the digest of the English text, and the text: a synopsis, then paragraphs
of lines that begin with one space, with ` .` between them; a line that begins with more is a list
item or stands for itself.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class Description(NamedTuple):
    """One record; paragraphs are lists of lines without their first space."""

    package: str
    digest: str
    synopsis: str
    paragraphs: tuple[tuple[str, ...], ...]

    @property
    def text(self) -> str:
        """The paragraphs as one running text."""
        return " ".join(tidy(line) for paragraph in self.paragraphs for line in paragraph)


def read_descriptions(files: Iterable[Path], language: str) -> Iterator[Description]:
    """The records of indices; what is damaged is left out."""
    for file in files:
        for record in file.read_bytes().decode("utf-8", "replace").split("\n\n"):
            found = _parse(record, language)
            if found is not None:
                yield found


def _parse(record: str, language: str) -> Description | None:
    """The description that a record is, if it is one."""
    fields: dict[str, str] = {}
    paragraphs: list[list[str]] = [[]]
    wanted = f"Description-{language}"
    field = ""
    for line in record.split("\n"):
        if line[:1] != " ":
            field, _, fields[field] = line.partition(":")
        elif field == wanted:
            if line.strip() == ".":
                paragraphs.append([])
            else:
                paragraphs[-1].append(line[1:])
    package, digest = fields.get("Package", "").strip(), fields.get("Description-md5", "").strip()
    synopsis = tidy(fields.get(wanted, ""))
    if not (package and digest and synopsis) or "\N{REPLACEMENT CHARACTER}" in record:
        return None
    kept = tuple(tuple(paragraph) for paragraph in paragraphs if paragraph)
    return Description(package, digest, synopsis, kept)


def tidy(text: str) -> str:
    """The text with any white space as one space."""
    return " ".join(text.split())


_BULLET = re.compile(r"(?:[*•·‣+o–—-]|\(?\d{1,2}[.)])\s+(?=\S)")


def units(paragraph: Iterable[str]) -> list[str]:
    """What a paragraph consists of: running text, list items without their marks, single lines."""
    found: list[list[str]] = []
    # Running text goes on with lines that are not indented, all else with lines that are more so.
    running, depth = False, 0
    for line in paragraph:
        body = line.lstrip()
        indent = len(line) - len(body)
        bullet = _BULLET.match(body)
        # In running text a line may begin with a dash, but hardly with an asterisk.
        if bullet and (indent > 0 or body[0] in "*•"):
            found.append([body[bullet.end() :]])
            running, depth = False, indent
        elif found and (indent == 0 if running else indent > depth):
            found[-1].append(body)
        else:
            found.append([body])
            running, depth = indent == 0, indent
    return [tidy(" ".join(parts)) for parts in found]


_END = re.compile(r"[.!?][\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9])")
# A full stop after these, or after an initial, does not end a sentence.
_SHORT = re.compile(
    r"(?:^|[\s(\[\"'])(?:e\.g|i\.e|cf|vs|etc|resp|approx|incl|Mr|Mrs|Dr|Prof|St|No|Vol|Fig|[A-Z])$"
)


def sentences(text: str) -> list[str]:
    """The sentences of an English text."""
    found, start = [], 0
    for end in _END.finditer(text):
        if not _SHORT.search(text, start, end.start()):
            found.append(text[start : end.end()].strip())
            start = end.end()
    rest = text[start:].strip()
    return [*found, rest] if rest else found
