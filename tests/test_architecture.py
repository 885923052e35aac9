"""ARCHITECTURE.md and the tree agree: reading path, levels, files; nothing stands twice."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lightconv.mixers import MIXERS
from lightconv.ops.schema import SCHEMAS
from tests.test_levels import LEVELS

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "lightconv"
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
HEADINGS = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
PACKAGES = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))


def test_no_section_stands_twice() -> None:
    assert sorted(HEADINGS) == sorted(set(HEADINGS))
    assert set(PACKAGES) <= set(HEADINGS)


def test_the_levels_are_those_that_are_tested() -> None:
    """In the order of tests/test_levels.py, each part once."""
    lines = re.findall(r"^    (\S.*?)  +\S", SECTIONS["Levels"], re.MULTILINE)
    named = [set(line.split(", ")) for line in lines]
    assert named == [level - {"__main__"} for level in LEVELS if level != {"__main__"}]


def test_the_reading_path_exists_and_fits_an_afternoon() -> None:
    paths = re.findall(
        r"^\| `([\w/]+\.py)` \|", SECTIONS["Read these, in this order"], re.MULTILINE
    )
    assert len(paths) == len(set(paths))
    assert 25 <= len(paths) <= 40
    lines = sum(len((SOURCE / path).read_text().splitlines()) for path in paths)
    assert lines <= 7350
    said = re.search(r"^About ([\d,]+) lines", SECTIONS["Read these, in this order"].strip())
    assert said and abs(int(said[1].replace(",", "")) - lines) < 100


@pytest.mark.parametrize("package", PACKAGES)
def test_a_section_names_the_files_of_its_package(package: str) -> None:
    """All of them once and no others; a folder with a / behind it stands for all that is in it."""
    folder = SOURCE / package
    files = [
        path
        for path in folder.rglob("*")
        if path.suffix in (".py", ".h", ".cpp", ".j2") and path.name != "__init__.py"
    ]
    named = re.findall(r"`([\w/.]+\.(?:py|h|cpp|j2)|\w+/)`", SECTIONS[package])
    known = {path.name for path in files}
    wrong = [n for n in named if not (folder / n).exists() and Path(n).name not in known]
    assert not wrong, "no such file"
    rows = re.findall(r"^\| (`.*?`) \|", SECTIONS[package], re.MULTILINE)
    first = [name for row in rows for name in re.findall(r"`([\w/.]+)`", row)]
    assert len(first) == len(set(first)), "a file stands in two rows"
    shown = {Path(name).name for name in named if not name.endswith("/")}
    whole = {name[:-1] for name in named if name.endswith("/")} - {"csrc"}
    missing = [path for path in files if path.name not in shown and path.parent.name not in whole]
    assert not missing, "add them to ARCHITECTURE.md"


def test_the_figure_is_well_formed_and_shown() -> None:
    """It names every mixer."""
    figure = ElementTree.parse(ROOT / "docs" / "architecture.svg")
    words = " ".join(text for each in figure.iter() for text in each.itertext())
    assert all(re.search(rf"\b{mixer.__name__}\b", words) for mixer in MIXERS.values())
    assert "](docs/architecture.svg)" in PAGE


def test_the_operators_are_counted() -> None:
    (names,) = re.findall(r"^Eleven operators: (.*?)\. ", SECTIONS["ops"], re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`(\w+)`", names))
    assert len(SCHEMAS) == 11
    stems = {re.sub(r"_(backward|step)$", "", name) for name in SCHEMAS}
    assert named == stems
