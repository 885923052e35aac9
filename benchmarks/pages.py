"""Measured tables in Markdown pages: benchmarks replace the text between two markers."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.measure import machine


def replace(place: Path, command: str, text: str) -> None:
    """Replaces the text between `command`'s markers in a page, or in the one page of a folder."""
    begin, end = f"<!-- {command}: begin -->", f"<!-- {command}: end -->"
    pages = sorted(place.rglob("*.md")) if place.is_dir() else [place]
    found = [page for page in pages if begin in page.read_text()]
    if len(found) != 1:
        raise ValueError(f"{place}: {len(found)} pages contain {begin!r}, expected one")
    (page,) = found
    head, rest = page.read_text().split(begin, 1)
    page.write_text(f"{head}{begin}\n{text.strip()}\n{end}{rest.split(end, 1)[1]}")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is left-aligned, the others right-aligned."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def excerpt(text: str, columns: Sequence[str], keep: Callable[[Mapping[str, str]], bool]) -> str:
    """Some columns and rows of a table."""
    head, _, *lines = (line.removeprefix("| ").removesuffix(" |") for line in text.splitlines())
    names = head.split(" | ")
    rows = [dict(zip(names, line.split(" | "), strict=True)) for line in lines]
    return table(columns, [[row[name] for name in columns] for row in rows if keep(row)])


def commit() -> str:
    """The short commit hash, with "-dirty" if files other than documents have changed."""
    found = _git("rev-parse", "--short", "HEAD")
    if not found:
        return "unknown"
    changed = _git("status", "--porcelain", "--", ".", ":!docs", ":!README.md")
    return f"{found}-dirty" if changed else found


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def measured() -> str:
    """Date, commit and machine: the first words above a table of figures."""
    return f"Measured {time.strftime('%Y-%m-%d')} at commit {commit()} on {machine()}"
