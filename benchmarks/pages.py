"""Measured tables inside written pages: what stands between two markers is the benchmark's."""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import machine


def replace(page: Path, command: str, text: str) -> None:
    """Replaces what stands between `command`'s markers in `page`."""
    begin, end = f"<!-- {command}: begin -->", f"<!-- {command}: end -->"
    head, rest = page.read_text().split(begin, 1)
    page.write_text(f"{head}{begin}\n{text.strip()}\n{end}{rest.split(end, 1)[1]}")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown; the first column to the left, the others to the right."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def commit() -> str:
    """The project's short commit, with a mark when anything but written pages differs from it."""
    found = _git("rev-parse", "--short", "HEAD")
    if not found:
        return "unknown"
    changed = _git("status", "--porcelain", "--", ".", ":!docs", ":!README.md")
    return f"{found}-dirty" if changed else found


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def measured() -> str:
    """When and where: the first words under a table of figures."""
    return f"Measured {time.strftime('%Y-%m-%d')} at commit {commit()} on {machine()}"
