"""Imports point down: the levels of ARCHITECTURE.md, read from the source."""

import ast
import json
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "lightconv"
# From the top down; a part imports itself and what is in the lines below it.
LEVELS = (
    {"__main__"},
    {"cli"},
    {"commands"},
    {"auto", "compat", "demo", "ray", "selftest", "serve"},
    {"fitting"},
    {"paper"},
    {"recipe"},
    {"evaluate"},
    {"decode"},
    {"train"},
    {"interop"},
    {"models"},
    {"corpora"},
    {"data"},
    {"mixers"},
    {"ops"},
    {"config"},
    {"device"},
    {"console", "files", "lazy", "processes"},
)
# The public names of the package, which it loads when they are first used.
ROOT = "__init__"


def imported(path: Path) -> set[str]:
    """Parts of lightconv that a file imports, also inside functions."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("lightconv.")} - {"__version__"}


def test_imports_point_down() -> None:
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if part == ROOT:
            continue
        level = next(i for i, parts in enumerate(LEVELS) if part in parts)
        below = {part}.union(*LEVELS[level + 1 :])
        wrong += [f"{path.relative_to(SOURCE)} -> {name}" for name in imported(path) - below]
    assert not wrong


def test_every_part_has_a_level() -> None:
    parts = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert parts - {ROOT, "__pycache__"} == set().union(*LEVELS)


def test_no_attics() -> None:
    attics = {"utils", "helpers", "common", "misc", "command"}
    assert not [path for path in SOURCE.rglob("*") if path.stem in attics]


VISITS = """
import inspect, json, lightconv, sys
visited, sentence, depth = set(), set(), 0
def look(frame, event, _):
    global depth
    code = frame.f_code
    ours = code.co_filename.startswith(lightconv.__path__[0])
    if ours and code.co_flags & inspect.CO_OPTIMIZED:  # no body of a class
        answers = code.co_name == "answer" and code.co_filename.endswith("translator.py")
        if event == "call":
            visited.add(code.co_filename)
            depth += answers
            sentence.update([code.co_filename] * bool(depth))
        elif event == "return":
            depth -= answers
from lightconv.cli import main
sys.setprofile(look)
main(["translate", sys.argv[1]])
sys.setprofile(None)
print(json.dumps([len(visited), len(sentence)]))
"""


def test_a_translation_visits_few_files() -> None:
    """In the engine: the whole command, and one sentence once all is loaded."""
    model = Path(__file__).parent / "golden" / "end" / "pairs"
    command = [sys.executable, "-c", VISITS, str(model)]
    done = subprocess.run(command, input="Un domu\n", capture_output=True, text=True, check=True)
    whole, sentence = json.loads(done.stdout.splitlines()[-1])
    assert (whole <= 45, sentence <= 15) == (True, True), (whole, sentence)
