"""Pages of the repository's root, added to the site under names in lower case."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent


def on_files(files: Files, config: Any) -> Files:
    for name in ("ARCHITECTURE", "CONTRIBUTING", "CHANGELOG"):
        text = (ROOT / f"{name}.md").read_text(encoding="utf-8").replace("](docs/", "](")
        for other in ("ARCHITECTURE", "CONTRIBUTING", "CHANGELOG"):
            text = text.replace(f"]({other}.md", f"]({other.lower()}.md")
        # Files that are not pages are named, not linked.
        text = re.sub(r"\[([^]]+)\]\((?!https?:|#|[\w/-]+\.(?:md|svg|png))[^)]*\)", r"\1", text)
        files.append(File.generated(config, f"{name.lower()}.md", content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    markdown = markdown.replace("](../ARCHITECTURE.md", "](architecture.md")
    return re.sub(r"\[([^]]+)\]\(\.\./(?:\.\./)?(?:examples|src|tests)[^)]*\)", r"\1", markdown)
