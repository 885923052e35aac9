"""Measured tables in Markdown pages: benchmarks replace the text between two markers."""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import machine


def replace(page: Path, command: str, text: str) -> None:
    """Replaces the text between `command`'s markers in `page`."""
    begin, end = f"<!-- {command}: begin -->", f"<!-- {command}: end -->"
    head, rest = page.read_text().split(begin, 1)
    page.write_text(f"{head}{begin}\n{text.strip()}\n{end}{rest.split(end, 1)[1]}")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is left-aligned, the others right-aligned."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


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
