"""The results that the project keeps: tables are of their files, figures of the page of tables."""

import re
import shutil
from pathlib import Path

import pytest

from lightconv.paper.report import write_markdown
from lightconv.paper.results import Results
from lightconv.paper.tables import TABLES

ROOT = Path(__file__).parents[2] / "docs" / "results"
KEPT = sorted(path.parent.relative_to(ROOT) for path in ROOT.glob("*/*/experiment.json"))
# `**Title** ...`, up to the next.
FINDINGS = re.findall(
    r"^\*\*(?P<title>[^*]+)\*\*(?P<text>.*?)(?=^\*\*|\Z)",
    (ROOT / "README.md").read_text().split("\n## ")[1],
    re.MULTILINE | re.DOTALL,
)
LINK = r"\((\w+/[\w.-]+)/table\.md\)"


@pytest.mark.parametrize("kept", KEPT, ids=str)
def test_a_table_is_of_its_files(kept: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / kept, tmp_path / kept)
    results = Results.open(tmp_path / kept)
    path = write_markdown(TABLES[results.experiment.table], results)
    assert path.read_text() == (ROOT / kept / "table.md").read_text()
    for result in (each for seeds in results.all().values() for each in seeds):
        assert result.commit is not None and "+" not in result.commit
        assert f"--name {kept.name} " in f"{result.command} "
        assert not re.search(r"(^|\s)/", result.command)


def test_every_experiment_is_mentioned() -> None:
    assert set(re.findall(LINK, (ROOT / "README.md").read_text())) == set(map(str, KEPT))


@pytest.mark.parametrize(("title", "text"), FINDINGS, ids=[title for title, _ in FINDINGS])
def test_figures_are_those_of_the_tables(title: str, text: str) -> None:
    """Ours and the paper's, rounded: all in cells; of prose decimals, but differences below one."""
    known = [
        float(figure.replace(",", ""))
        for link in re.findall(LINK, text)
        for line in (ROOT / link / "table.md").read_text().splitlines()
        if line.startswith("|")
        for figure in re.findall(r"\d[\d,]*(?:\.\d+)?", line)
    ]
    text = re.sub(r"\([^()]*`[^()]*\)", "", text)  # what another command printed
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = " ".join(line.split("|", 2)[2] for line in lines[2:])
    figures = re.findall(r"\d[\d,]*(?:\.\d+)?", re.sub(r"[,;] ", " ", cells))
    figures += [f for f in re.findall(r"(?<![\w.=])\d+\.\d+", text) if float(f) >= 1]
    for figure in (figure.replace(",", "") for figure in figures):
        digits = len(figure.partition(".")[2])
        assert any(abs(float(figure) - each) <= 0.51 * 10**-digits for each in known), figure
