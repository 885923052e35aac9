"""Tables for people: rich on a terminal, aligned text in a pipe, Markdown for a page."""

import sys
from collections.abc import Mapping, Sequence
from typing import Literal

Rows = Sequence[Sequence[str]]


def say_waiting(what: str) -> None:
    """A line for whoever watches a command that is about to be silent for seconds."""
    if sys.stderr.isatty():
        print(f"{what} ...", file=sys.stderr, flush=True)


def print_groups(groups: Mapping[str, Rows], header: Sequence[str], right: Sequence[str]) -> None:
    """One table in parts, each under its title; the columns named in `right` are set to the right.

    An empty title is not printed.
    """
    if sys.stdout.isatty():
        _print_rich(groups, header, right)
    else:
        print(aligned(groups, header, right))


def aligned(groups: Mapping[str, Rows], header: Sequence[str], right: Sequence[str]) -> str:
    """Plain text; every part has the same columns."""
    widths = _widths(groups, header)

    def line(row: Sequence[str]) -> str:
        cells = [
            f"{cell:>{width}}" if name in right else f"{cell:<{width}}"
            for cell, width, name in zip(row, widths, header, strict=True)
        ]
        return "  ".join(cells).rstrip()

    parts = []
    for title, part in groups.items():
        top = [title, ""] if title else []
        parts.append("\n".join([*top, *([line(header)] if any(header) else []), *map(line, part)]))
    return "\n\n".join(parts)


def markdown(groups: Mapping[str, Rows], header: Sequence[str], right: Sequence[str]) -> str:
    """A heading and a table for each part."""
    rule = ["---:" if name in right else "---" for name in header]
    parts = []
    for title, part in groups.items():
        lines = ["| " + " | ".join(row) + " |" for row in (header, rule, *part)]
        parts.append("\n".join([f"### {title}", "", *lines]))
    return "\n\n".join(parts)


def _widths(groups: Mapping[str, Rows], header: Sequence[str]) -> list[int]:
    """The longest cell of each column."""
    rows = [header, *(row for part in groups.values() for row in part)]
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _print_rich(groups: Mapping[str, Rows], header: Sequence[str], right: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    widths = _widths(groups, header)
    # A narrow terminal breaks the lines; rich would cut columns off.
    needed = sum(widths) + 2 * len(widths)
    console = Console(highlight=False)
    console.width = max(console.width, needed)
    for title, part in groups.items():
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=any(header))
        for name, width in zip(header, widths, strict=True):
            side: Literal["right", "left"] = "right" if name in right else "left"
            table.add_column(name, justify=side, width=width, no_wrap=True)
        for row in part:
            table.add_row(*map(Text, row))
        if title:
            console.print(Text(title, style="bold"))
        console.print(table)
        console.print()
