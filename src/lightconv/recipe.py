"""Recipes: task, model, training and decoding as one value, found by name or read from a file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightconv.config import ConfigError, override, read
from lightconv.data.config import TaskConfig
from lightconv.data.vocabulary import PAIR_FILES
from lightconv.decode import DecodeConfig
from lightconv.models.config import ModelConfig, Seq2SeqConfig
from lightconv.train.config import TrainConfig

if TYPE_CHECKING:
    from lightconv.train.data import PreparedData

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

    def is_set(self, path: str) -> bool:
        """True if the user has set a field, something inside of it, or something around it."""
        given = (f"{p}." for p, source in self.sources.items() if source == CHANGED)
        return any(p.startswith(f"{path}.") or f"{path}.".startswith(p) for p in given)


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


def fit_recipe(recipe: Recipe, data: "PreparedData") -> Recipe:
    """The recipe with the task of the data, its vocabulary, and the sharing that this allows.

    Cut-offs of an adaptive model that do not fit are scaled in proportion. Values that the user has
    set stay; ValueError if one contradicts the data.
    """
    model, task, pairs = recipe.model, recipe.task, isinstance(recipe.model, Seq2SeqConfig)
    kinds = ("texts", "pairs of source and target")
    if pairs != data.pairs:
        raise ValueError(
            f"{data.folder} holds {kinds[data.pairs]}, expected {kinds[pairs]} by the recipe. Give "
            "the data that it was made for"
        )
    names = ("source_vocab", "target_vocab") if pairs else ("vocab",)
    wanted = {name: getattr(model, name) for name in names}
    found: dict[str, Any] = dict(zip(names, data.sizes, strict=False))
    if any(found[name] != wanted[name] and recipe.is_set(f"model.{name}") for name in names):
        remedy = " ".join(f"--set model.{name}={size}" for name, size in found.items())
        raise ValueError(
            f"vocabulary ({data.folder}): {' and '.join(map(str, found.values()))} ids, expected "
            f"{' and '.join(map(str, wanted.values()))} by the recipe. Give the data that it was "
            f"made for, or {remedy}"
        )
    least, adaptive = min(found.values()), model.adaptive
    if adaptive and adaptive.cutoffs[-1] >= least and not recipe.is_set("model.adaptive.cutoffs"):
        scaled = {max(1, cutoff * least // min(wanted.values())) for cutoff in adaptive.cutoffs}
        found["adaptive"] = replace(adaptive, cutoffs=tuple(sorted(scaled)))
    shared = data.sizes[0] == data.sizes[1] and not {*PAIR_FILES} & {*data.files()}
    if getattr(model, "share_embeddings", "") == "all" and not shared:
        found |= {} if recipe.is_set("model.share_embeddings") else {"share_embeddings": "decoder"}
    if data.task is not None:
        own = {name: value for name, value in vars(task).items() if recipe.is_set(f"task.{name}")}
        task = replace(data.task, **own)
    fitted = [f"model.{name}" for name in found if found[name] != getattr(model, name)]
    sources = recipe.sources | dict.fromkeys(fitted, "the data")
    return replace(recipe, task=task, model=replace(model, **found), sources=sources)


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
