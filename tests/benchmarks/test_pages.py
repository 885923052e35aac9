"""Tables of the benchmarks in pages: found by their marks, shortened for docs/performance.md."""

import json
import re
from pathlib import Path

import pytest
from benchmarks.generate import summary as speeds
from benchmarks.pages import excerpt, replace, table
from benchmarks.report import first_screen
from benchmarks.train import summary as steps

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BENCHMARKS = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
TABLE = table(["step", "T", "ms"], [["a", "32", ""], ["b", "", "7"]])


def block(page: Path, name: str) -> str:
    """The text between the marks of a name."""
    mark = re.escape(name)
    found = re.findall(
        f"<!-- {mark}: begin -->\n(.*?)\n<!-- {mark}: end -->", page.read_text(), re.S
    )
    assert len(found) == 1
    return str(found[0])


def test_a_page_of_a_folder_is_found_by_its_marks(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    page = tmp_path / "raw" / "a.md"
    page.write_text("# A\n<!-- x: begin -->\nold\n<!-- x: end -->\nend\n")
    (tmp_path / "b.md").write_text("<!-- x y: begin -->\n<!-- x y: end -->\n")
    for place, new in ((tmp_path, "new"), (page, "newer")):
        replace(place, "x", f"\n{new}\n")
        assert page.read_text() == f"# A\n<!-- x: begin -->\n{new}\n<!-- x: end -->\nend\n"
    with pytest.raises(ValueError, match="0 pages contain '<!-- z: begin -->', expected one"):
        replace(tmp_path, "z", "")
    (tmp_path / "c.md").write_text(page.read_text())
    with pytest.raises(ValueError, match="2 pages"):
        replace(tmp_path, "x", "")


def test_an_excerpt_by_hand() -> None:
    assert excerpt(TABLE, ["ms", "step"], lambda row: row["T"] == "") == table(
        ["ms", "step"], [["7", "b"]]
    )
    assert excerpt(TABLE, ["T"], lambda row: True) == table(["T"], [["32"], [""]])


def test_every_mark_belongs_to_a_benchmark() -> None:
    """And stands in one page, so that `--write docs` finds it."""
    marks = [
        mark
        for page in DOCS.rglob("*.md")
        for mark in re.findall(r"<!-- (.*): begin -->", page.read_text())
    ]
    assert len(marks) == len(set(marks))
    for mark in marks:
        name = mark.split()[0]
        known = mark == "lightconv list --params" or " of 0.1.0" in mark
        assert known or name.removeprefix("benchmarks.") in BENCHMARKS, mark


def test_the_short_tables_are_made_of_the_long_ones() -> None:
    short = DOCS / "performance.md"
    for name, page, make, begin in (
        ("benchmarks.train", "training.md", steps, "| step |"),
        ("benchmarks.generate", "decoding.md", speeds, "| side |"),
    ):
        whole = name + " speed" * (name == "benchmarks.generate")
        raw = block(DOCS / "performance" / page, whole).split("\n\n")
        (long,) = [part for part in raw if part.startswith(begin)]
        assert block(short, f"{name} summary") == f"{raw[0]}\n\n{make(long)}"
    rows = json.loads((DOCS / "performance-ops.json").read_text())["rows"]
    assert block(ROOT / "README.md", "benchmarks.ops") == first_screen(rows)
    assert block(short, "benchmarks.ops summary").endswith(first_screen(rows))
