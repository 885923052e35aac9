"""CORPORA: names, what each needs, and errors before anything is fetched."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from lightconv.corpora import CORPORA, find_entry, open_corpus
from lightconv.paper.recipes import RECIPES


@pytest.mark.parametrize("name", CORPORA)
def test_every_corpus_can_be_opened(name: str) -> None:
    module, function = CORPORA[name].open.split(":")
    found = import_module(f"lightconv.corpora.{module}")
    assert callable(getattr(found, function))
    assert CORPORA[name].about and CORPORA[name].needs


def test_every_recipe_has_its_corpus() -> None:
    assert {recipe.task.corpus for recipe in RECIPES.values()} <= set(CORPORA)


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'debian-en-dd'; did you mean 'debian-en-"):
        find_entry("debian-en-dd")
    with pytest.raises(ValueError, match=r"unknown corpus 'xyz'; known: .*synthetic-copy"):
        find_entry("xyz")


def test_from_is_for_those_that_take_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="synthetic-copy takes no --from"):
        open_corpus("synthetic-copy", tmp_path, tmp_path)
    for name, entry in CORPORA.items():
        if entry.takes_source:
            with pytest.raises(ValueError, match=f"{name} needs --from PATH"):
                open_corpus(name, None, tmp_path)


def test_names_cost_no_torch() -> None:
    code = (
        "import sys; from importlib import import_module\n"
        "from lightconv.corpora import CORPORA\n"
        "loaded = [m for m in sys.modules if m.startswith('lightconv.corpora.')]\n"
        "assert not loaded, loaded\n"
        "for entry in CORPORA.values():\n"
        "    import_module('lightconv.corpora.' + entry.open.split(':')[0])\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
