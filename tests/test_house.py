"""The house keeps its size: lines per package, files, names used once, plain docstrings."""

import ast
from collections import Counter
from pathlib import Path

from tests.harness.mutants import ROOT, mutants

SOURCE = Path(__file__).parent.parent / "src" / "lightconv"
# Lines of Python, everything counted.
CEILINGS = {
    ("cli", "__init__", "__main__", "lazy"): 324,
    ("console", "files", "processes", "device"): 762,
    ("config",): 480,
    ("ops",): 3823,
    ("mixers",): 1259,
    ("models",): 1501,
    ("auto",): 247,
    ("compat",): 151,
    ("data",): 2647,
    ("corpora",): 2561,
    ("train",): 3392,
    ("decode",): 3955,
    ("evaluate",): 1453,
    ("recipe", "paper"): 2173,
    ("interop",): 1017,
    ("commands",): 2575,
    ("demo",): 417,
    ("fitting",): 1261,
    ("serve", "ray"): 1670,
    ("selftest",): 339,
}
MOST_LINES = 32_007
MOST_FILES = 154
FILES = sorted(SOURCE.rglob("*.py"))
RIDDLES = ("What", "How", "Where", "Which", "Whether", "When", "Who")


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_every_package_stays_below_its_ceiling() -> None:
    sizes: Counter[str] = Counter()
    for path in FILES:
        sizes[path.relative_to(SOURCE).parts[0].removesuffix(".py")] += lines_of(path)
    groups = {names: sum(sizes[name] for name in names) for names in CEILINGS}
    over = {names: size for names, size in groups.items() if size > CEILINGS[names]}
    assert not over
    assert set(sizes) == {name for names in CEILINGS for name in names}


def test_the_whole_stays_small() -> None:
    assert sum(map(lines_of, FILES)) <= MOST_LINES
    assert len(FILES) <= MOST_FILES


def test_a_class_name_is_used_once() -> None:
    names: Counter[str] = Counter()
    for path in FILES:
        body = ast.parse(path.read_text()).body
        classes = [node.name for node in body if isinstance(node, ast.ClassDef)]
        names.update(name for name in classes if not name.startswith("_"))
    assert not [name for name, count in names.items() if count > 1]


def test_no_docstring_is_a_riddle() -> None:
    wrong = []
    for path in FILES:
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                if text.split(" ")[0].strip(":,") in RIDDLES:
                    name = getattr(node, "name", "module")
                    wrong.append(f"{path.relative_to(SOURCE)}: {name}")
    assert not wrong


def test_the_list_of_faults_is_up_to_date() -> None:
    """40 can be made, and one in each package; `make mutants` runs the tests against them."""
    good: Counter[str] = Counter()
    for mutant in mutants():
        assert all((ROOT / test.partition("::")[0]).exists() for test in mutant.tests), mutant
        if (path := ROOT / mutant.file).exists() and path.read_text().count(mutant.old) == 1:
            good[path.relative_to(SOURCE).parts[0]] += 1
    assert good.total() >= 40
    assert {path.parent.name for path in SOURCE.glob("*/__init__.py")} <= good.keys()
