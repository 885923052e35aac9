"""CORPORA: names, what each needs, and errors before anything is fetched."""

import subprocess
import sys
from pathlib import Path

import pytest

from lightconv.corpora import CORPORA, open_corpus
from lightconv.paper.recipes import RECIPES


def test_every_recipe_has_its_corpus() -> None:
    assert {recipe.task.corpus for recipe in RECIPES.values()} <= set(CORPORA)


def test_from_is_for_those_that_take_it(tmp_path: Path) -> None:
    for name, entry in CORPORA.items():
        words = "needs --from PATH" if entry.takes_source else "takes no --from"
        with pytest.raises(ValueError, match=f"{name} {words}"):
            open_corpus(name, None if entry.takes_source else tmp_path, tmp_path)


def test_names_cost_no_torch() -> None:
    code = (
        "import sys; from importlib import import_module\n"
        "from lightconv.corpora import CORPORA\n"
        "loaded = [m for m in sys.modules if m.startswith('lightconv.corpora.')]\n"
        "assert not loaded, loaded\n"
        "for entry in CORPORA.values():\n"
        "    module, function = entry.open.split(':')\n"
        "    assert callable(getattr(import_module(f'lightconv.corpora.{module}'), function))\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
