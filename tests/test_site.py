"""The site: its pages, their length, its navigation; it builds without a warning, opens from disk.

The pages of `docs` have at most 18,000 words; tables that a command writes between its marks and
the API reference, docs/api.md, are not counted.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

from lightconv import cli

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
GENERATED = {"architecture.md", "contributing.md", "changelog.md", "commands.md"}
WRITTEN = {
    str(path.relative_to(DOCS)): path.read_text()
    for pattern in ("*.md", "performance/*.md", "results/README.md")
    for path in sorted(DOCS.glob(pattern))
}
MOST_WORDS = 18_000
MOST_README = 1_000
# A reader's question, the page that the index names for it, and what the answer contains there.
QUESTIONS = {
    "Where is equation 3": ("equations.md", "`ops/reference.py`: `convolve` with `softmax`"),
    "train on my files": ("fit.md", "lightconv fit train.en train.fr --out my-model --time 10m"),
    "How fast is it": ("performance.md", "lightconv bench"),
    "What was run, and what was not": ("tested.md", "| not run |"),
}


def words(text: str) -> int:
    """Words of a page, without tables between marks; a word has a letter or a digit."""
    text = re.sub(r"<!-- ([^>]*): begin -->.*?<!-- \1: end -->", "", text, flags=re.DOTALL)
    return len([word for word in text.split() if re.search(r"\w", word)])


def test_words_are_counted() -> None:
    assert words("# One\n\n| two | `three four` |\n| --- | ---: |\n\n    five --six\n") == 6
    assert words("a\n<!-- x y: begin -->\n| b |\n<!-- x y: end -->\nc") == 2


def test_the_pages_stay_short() -> None:
    counts = {name: words(text) for name, text in WRITTEN.items() if name != "api.md"}
    assert sum(counts.values()) <= MOST_WORDS, sorted(counts.items(), key=lambda item: -item[1])
    assert words((ROOT / "README.md").read_text()) <= MOST_README


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    found = re.findall(r"([\w/-]+\.md)$", navigation, re.MULTILINE)
    assert len(found) == len(set(found))
    assert set(found) == {*WRITTEN, *GENERATED}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_from_the_index(question: str) -> None:
    """One link from the first page, in the first screen of the page it leads to."""
    page, answer = QUESTIONS[question]
    (row,) = [line for line in WRITTEN["index.md"].splitlines() if question in line]
    assert f"]({page})" in row
    assert answer in "\n".join(WRITTEN[page].splitlines()[:40])


def test_the_page_of_commands_has_all_of_them() -> None:
    pytest.importorskip("mkdocs", reason="pip install '.[docs]'")
    spec = util.spec_from_file_location("hooks", DOCS / "site" / "hooks.py")
    assert spec is not None and spec.loader is not None
    hooks = util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    page = hooks.commands()
    for name in cli.COMMANDS:
        assert f"\n## {name}\n" in page and f"usage: lightconv {name} " in page


# --- built


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="pip install '.[docs]'")
    pytest.importorskip("mkdocstrings", reason="pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING  -" not in done.stderr
    return folder


@pytest.mark.slow
def test_the_site_is_complete_and_needs_no_network(site: Path) -> None:
    api = (site / "api.html").read_text()
    for name in ("DynamicConv", "LightConv", "from_attention", "causal_conv1d_fn", "dropconnect"):
        assert name in api
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert not re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="?https?://[^">]+', text), (
            page
        )
        assert not re.findall(r"<p>:::", text), page  # a name that was not rendered


@pytest.mark.slow
def test_the_site_in_chromium(site: Path, tmp_path: Path) -> None:
    """Each page from disk, offline, at two widths, dark and light; and the search."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None or shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Chromium, node and npm")
    subprocess.run(
        ["npm", "install", "--silent", "--prefix", str(tmp_path), "playwright-core", "axe-core"],
        check=True,
    )
    done = subprocess.run(
        ["node", str(ROOT / "tests" / "site.mjs"), str(tmp_path / "node_modules"), str(site)],
        env={**os.environ, "CHROMIUM": chromium},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    views = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(views) == 4
    for view in views:
        assert not (view["foreign"] or view["errors"] or view["violations"] or view["wide"]), view
        assert view["pages"] > 40
        assert "equations.html" in view["found"]
