"""ARCHITECTURE.md and the tree are the same: levels, packages, files."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "lightconv"
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
PACKAGES = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))


def test_every_part_has_a_level_and_every_package_a_section() -> None:
    parts = re.findall(r"^    (\S.*?)  ", SECTIONS["Levels"], re.MULTILINE)
    named = {name for part in parts for name in part.split(", ")}
    modules = {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__", "printing"}
    assert named == {*PACKAGES, *modules}
    assert set(PACKAGES) <= set(SECTIONS)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_section_names_the_files_of_its_package(package: str) -> None:
    """All of them and no others; a folder with a / behind it stands for all that is in it."""
    folder = SOURCE / package
    files = [
        path
        for path in folder.rglob("*")
        if path.suffix in (".py", ".h", ".cpp") and path.name != "__init__.py"
    ]
    named = re.findall(r"`([\w/]+\.(?:py|h|cpp)|\w+/)`", SECTIONS[package])
    wrong = [
        name
        for name in named
        if not (folder / name).exists() and Path(name).name not in {path.name for path in files}
    ]
    assert not wrong, "no such file"
    shown = {Path(name).name for name in named if not name.endswith("/")}
    whole = {name[:-1] for name in named if name.endswith("/")} - {"csrc"}
    missing = [path for path in files if path.name not in shown and path.parent.name not in whole]
    assert not missing, "add them to ARCHITECTURE.md"


def test_the_figure_is_well_formed_and_shown() -> None:
    from xml.etree import ElementTree

    ElementTree.parse(ROOT / "docs" / "architecture.svg")
    assert "](docs/architecture.svg)" in PAGE
