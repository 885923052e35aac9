"""Recipes: task, model, training and decoding as one value, found by name or read from a file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from lightconv.config import ConfigError, override, read
from lightconv.data.config import TaskConfig
from lightconv.decode import DecodeConfig
from lightconv.models.config import ModelConfig
from lightconv.train.config import TrainConfig

CHANGED = "set by the user"
PER_UPDATE = ("train.batches_per_update", "train.tokens_per_update")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Task, model, training and decoding of one experiment.

    sources  origin of values that the paper does not print, by dotted path. A source holds for
             everything under its path, unless a longer path has another; `*` is every layer
    """

    about: str
    task: TaskConfig
    model: ModelConfig
    train: TrainConfig
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    sources: dict[str, str] = field(default_factory=dict)


def find_recipe(name: str, settings: Sequence[str], recipes: Mapping[str, Recipe]) -> Recipe:
    """The recipe of this name, or in this .toml or .json file, changed by each `path=value`."""
    path = Path(name)
    if name in recipes:
        recipe = recipes[name]
    elif path.suffix.lower() in (".toml", ".json") or len(path.parts) > 1 or path.is_file():
        recipe = read(path, Recipe)
    else:
        hint = suggest_recipe(name, recipes)
        raise ConfigError(f"unknown recipe '{name[:60]}': {hint}; a file ends in .toml or .json")
    paths = [setting.partition("=")[0].strip() for setting in settings]
    given = [path for path in PER_UPDATE if path in paths]
    # The one that is set wins, two that are set contradict each other.
    unset = [f"{path}=0" for path in PER_UPDATE if len(given) == 1 and path not in given]
    changed = override(recipe, [*settings, *unset]) if settings else recipe
    sources = changed.sources
    for part in paths:
        if part.split(".")[0] not in ("about", "sources"):
            kept = {p: s for p, s in sources.items() if p != part and not p.startswith(f"{part}.")}
            sources = kept | {part: CHANGED}
    return replace(changed, sources=sources)


def suggest_recipe(name: str, recipes: Mapping[str, Recipe]) -> str:
    """The end of an error about an unknown name: the nearest recipe, and the command that lists."""
    near = get_close_matches(name, recipes, n=1) or [n for n in recipes if name and name in n]
    hint = f"did you mean '{near[0]}'? " if near else ""
    return f"{hint}`lightconv list` shows all names"


def count_parts(model: ModelConfig) -> dict[str, int]:
    """Parameters by part of the model, shared ones in the first; nothing is allocated."""
    from lightconv.models.folder import build_empty

    counts = {"embedding": 0, "output": 0}
    for name, parameter in build_empty(model).named_parameters():
        part = _part(name.split("."))
        counts[part] = counts.get(part, 0) + parameter.numel()
    return counts


@cache
def count_parameters(model: ModelConfig) -> int:
    return sum(count_parts(model).values())


def _part(path: Sequence[str]) -> str:
    """The part that a parameter with this dotted name belongs to."""
    stack = path[0].removesuffix("norm").removesuffix("_")
    side = "" if stack in ("layers", "") else f"{stack} "
    if path[0].endswith("norm") or any(name.endswith("_residual") for name in path):
        return f"{side}norms"
    if "mixer" in path:
        return f"{side}mixers"
    if "source" in path:
        return "source attention"
    if "ffn" in path:
        return f"{side}ffn"
    # "source_embedding", "target_embedding" and "output"; anything new is a part of its own.
    return "embedding" if path[0].endswith("embedding") else path[0]
