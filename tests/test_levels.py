"""Imports point down: ARCHITECTURE.md's levels, read from the source."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "lightconv"
# Each level may import itself and what is to the right of it.
ALLOWED = {
    "lazy": set(),
    "files": set(),
    "config": {"config"},
    "ops": {"ops"},
    "mixers": {"mixers", "ops"},
    "data": {"data", "config"},
    "models": {"models", "mixers", "ops", "config"},
    "interop": {"interop", "models", "mixers", "ops", "data", "config"},
    "train": {"train", "models", "mixers", "ops", "data", "config"},
    "decode": {"decode", "models", "mixers", "ops", "data", "config"},
    "evaluate": {"evaluate", "decode", "models", "mixers", "ops", "data", "config", "printing"},
    "recipe": {"recipe", "decode", "train", "models", "data", "config"},
    # Its tables are printed, scored and run: by commands.
    "paper": {
        "paper",
        "cli",
        "printing",
        "recipe",
        "evaluate",
        "decode",
        "train",
        "models",
        "data",
        "config",
    },
    # It shows everything: by commands too.
    "demo": {
        "demo",
        "paper",
        "cli",
        "printing",
        "recipe",
        "evaluate",
        "decode",
        "train",
        "models",
        "mixers",
        "ops",
        "data",
        "config",
    },
    "printing": {"printing"},
    # It starts the command itself.
    "selftest": {
        "selftest",
        "cli",
        "recipe",
        "train",
        "interop",
        "models",
        "ops",
        "data",
        "config",
    },
}
TOP = {"__init__", "__main__", "catalogue", "cli", "doctor"}  # may import anything


def imported(path: Path) -> set[str]:
    """The lightconv parts a file imports, wherever in the file it does."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("lightconv.")}


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE))
)
def test_imports_point_down(path: Path) -> None:
    part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    # A command, and the options that several share, stand above their part.
    if part in TOP or path.name in {"command.py", "arguments.py"}:
        return
    assert imported(path) <= ALLOWED[part] | {"__version__", "lazy", "files"}


def test_every_part_has_a_level() -> None:
    parts = {p.name.removesuffix(".py") for p in SOURCE.iterdir() if not p.name.startswith("_")}
    assert parts - {"py.typed"} <= set(ALLOWED) | TOP


def test_no_attics() -> None:
    attics = {"utils", "helpers", "common", "misc"}
    assert not [p for p in SOURCE.rglob("*") if p.stem in attics]
