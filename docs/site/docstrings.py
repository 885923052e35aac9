"""Docstrings as Markdown: lists of arguments, and examples as code."""

import re
from typing import Any

from griffe import Extension, Object

# A name, or several, then a description that begins in the same column in every line.
ARGUMENT = re.compile(r"(\S.*?)\s{2,}(?=\S)")


def paragraph(text: str) -> str:
    """One paragraph of a docstring."""
    lines = text.splitlines()
    if lines[0].startswith(">>> "):
        return "\n".join(["```python", *lines, "```"])
    columns = [match.end() for line in lines if (match := ARGUMENT.match(line))]
    if lines[0].startswith(" ") or not columns:
        return text
    column, parts = columns[0], []
    for line in lines:
        name, rest = line[:column], line[column:]
        if name.endswith(" ") and name.strip() and not name.startswith(" "):
            parts.append(f"- `{name.strip()}`: {rest}")
        elif name.strip():  # a sentence after the list
            parts += ["", line]
        else:
            parts.append(f"    {rest}")
    return "\n".join(parts)


def markdown(docstring: str) -> str:
    return "\n\n".join(map(paragraph, re.split(r"\n\n+", docstring)))


class Arguments(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)
