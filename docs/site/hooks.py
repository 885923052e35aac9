"""Pages that the site has and `docs` has not: those of the repository's root, and all commands."""

import contextlib
import io
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from lightconv import cli

ROOT = Path(__file__).parent.parent.parent
FROM_ROOT = ("ARCHITECTURE", "CONTRIBUTING", "CHANGELOG")


def commands() -> str:
    """The help of every command, as a page."""
    parts = ["# Commands\n\nThe help of every command, as `lightconv COMMAND --help` prints it."]
    os.environ["COLUMNS"] = "80"
    for name, (_, purpose) in cli.COMMANDS.items():
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            if cli.main([name, "--help"]):
                raise RuntimeError(f"lightconv {name} --help failed")
        parts.append(f"## {name}\n\nTo {purpose}.\n\n```text\n{text.getvalue().strip()}\n```")
    return "\n\n".join(parts)


def on_files(files: Files, config: Any) -> Files:
    for name in FROM_ROOT:
        text = (ROOT / f"{name}.md").read_text(encoding="utf-8").replace("](docs/", "](")
        for other in FROM_ROOT:
            text = text.replace(f"]({other}.md", f"]({other.lower()}.md")
        # Files that are not pages are named, not linked.
        text = re.sub(r"\[([^]]+)\]\((?!https?:|#|[\w/-]+\.(?:md|svg|png))[^)]*\)", r"\1", text)
        files.append(File.generated(config, f"{name.lower()}.md", content=text))
    files.append(File.generated(config, "commands.md", content=commands()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if re.match("results/.*/|performance/", page.file.src_uri):  # a search is for text, not tables
        page.meta["search"] = {"exclude": True}
    markdown = markdown.replace("](../ARCHITECTURE.md", "](architecture.md")
    return re.sub(r"\[([^]]+)\]\(\.\./(?:\.\./)?(?:examples|src|tests)[^)]*\)", r"\1", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Cells and headings as screen readers need them: no empty header, no level left out."""
    html = re.sub(r"<th([^>]*)></th>", r"<td\1></td>", html)
    return html if "<h2" in html else re.sub(r"<(/?)h3", r"<\1h2", html)


def on_post_page(output: str, **_: Any) -> str:
    return output.replace('role="dialog">', 'role="dialog" aria-label="Search">')


def on_post_build(config: Any) -> None:
    """The page of a web server's errors cannot be read from disk."""
    (Path(config["site_dir"]) / "404.html").unlink()
