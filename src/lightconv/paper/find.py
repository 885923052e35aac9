"""From what a user types to a recipe: a name of RECIPES or a file, with settings laid over it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from lightconv.config import ConfigError, override, read
from lightconv.paper.recipes import RECIPES
from lightconv.paper.sources import covers
from lightconv.recipe import Recipe

CHANGED = "set by the user"


def find_recipe(name_or_file: str, settings: Sequence[str] = ()) -> Recipe:
    """The recipe of this name or in this .toml or .json file, with each `path=value` set."""
    recipe = _find(name_or_file)
    if not settings:
        return recipe
    changed = override(recipe, settings)
    paths = [setting.partition("=")[0].strip() for setting in settings]
    return replace(changed, sources=_forget(changed.sources, paths))


def _find(name_or_file: str) -> Recipe:
    if name_or_file in RECIPES:
        return RECIPES[name_or_file]
    path = Path(name_or_file)
    if path.suffix.lower() in (".toml", ".json") or len(path.parts) > 1 or path.is_file():
        return read(path, Recipe)
    hint = suggest(name_or_file)
    raise ConfigError(
        f"unknown recipe '{name_or_file[:60]}': {hint}; a file ends in .toml or .json"
    )


def suggest(name: str) -> str:
    """What to type instead of a recipe's name that does not exist."""
    near = get_close_matches(name, RECIPES, n=1) or [n for n in RECIPES if name and name in n]
    hint = f"did you mean '{near[0]}'? " if near else ""
    return f"{hint}`lightconv list` shows all names"


def _forget(sources: dict[str, str], paths: Iterable[str]) -> dict[str, str]:
    """A value that was set does not come from where it came from before."""
    for path in paths:
        if path.split(".")[0] not in ("about", "sources"):
            sources = {p: s for p, s in sources.items() if not covers(path, p)} | {path: CHANGED}
    return sources
