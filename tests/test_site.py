"""The site: every page is in its navigation, and it builds without a warning."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GENERATED = {"architecture.md", "contributing.md", "changelog.md"}


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    found = re.findall(r"([\w/-]+\.md)$", navigation, re.MULTILINE)
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} | {"results/README.md"}
    assert len(found) == len(set(found))
    assert set(found) == pages | GENERATED


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="pip install '.[docs]'")
    pytest.importorskip("mkdocstrings", reason="pip install '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING  -" not in done.stderr
    api = (tmp_path / "site" / "api.html").read_text()
    for name in ("DynamicConv", "LightConv", "from_attention", "causal_conv1d_fn", "dropconnect"):
        assert name in api
    # Nothing is fetched from elsewhere.
    for page in (tmp_path / "site").rglob("*.html"):
        assert not re.findall(r'(?:src|href)="https?://[^"]+\.(?:js|css|woff2?)"', page.read_text())
