"""RECIPES: every row of the paper's tables by name, and small twins.

A name is TASK-MODEL or TASK-TABLE-ROW, as in `wmt-en-de-dynamicconv`, `wmt-en-de-ablation-sharing`;
a small twin has the suffix `-small`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from lightconv.models.config import ModelConfig, Seq2SeqConfig
from lightconv.paper.rows import ABLATION, DECODERS, MODELS, NO_INPUT_DROPOUT, NORMALIZATION, Row
from lightconv.paper.small import SMALL_MODELS, SMALL_TASKS, shrink
from lightconv.paper.tasks import FITTED, TASKS, Task, ours
from lightconv.recipe import Recipe

_NAMES = {
    "selfattention": "self-attention",
    "lightconv": "LightConv",
    "dynamicconv": "DynamicConv",
}
# Recipes that complete the set; no row of the paper has them.
_UNREPORTED = {
    "wmt-en-fr-selfattention": "; the paper compares with Ott et al. (2018) instead",
    "billion-word-lightconv": "; not in the paper",
}
_ENCODER_GLU = {
    "model.encoder.*.glu": FITTED,
    "model.decoder.*.glu": f"{FITTED}: gating the decoder too would give 208.9M for WMT En-De",
}
_AS_DYNAMICCONV = dict.fromkeys(("model.layers", "model.layers.*.glu"), ours("as for DynamicConv"))


def _recipe(
    about: str, task: Task, model: ModelConfig, sources: Mapping[str, str] | None = None
) -> Recipe:
    """`sources` come before those of the task; sources of absent fields are left out."""
    bare = Recipe(about=about, task=task.task, model=model, train=task.train, decode=task.decode)
    present = set(_paths(bare, ""))
    found = {**task.sources, **(sources or {})}
    return replace(bare, sources={path: found[path] for path in found if path in present})


def _paths(config: Any, path: str) -> Iterator[str]:
    """Dotted paths of a configuration's fields and of everything in them; `*` is every layer."""
    for name in (field.name for field in fields(config)):
        value, here = getattr(config, name), f"{path}{name}"
        yield here
        if is_dataclass(value):
            yield from _paths(value, f"{here}.")
        elif isinstance(value, tuple) and any(map(is_dataclass, value)):
            yield f"{here}.*"
            for layer in set(value):
                yield from _paths(layer, f"{here}.*.")


def _layers(model: ModelConfig) -> str:
    if isinstance(model, Seq2SeqConfig):
        return f"{len(model.encoder)}+{len(model.decoder)} layers"
    return f"{len(model.layers)} layers"


def _family(task: str) -> Iterator[tuple[str, Recipe]]:
    """The recipes of tables 1, 2, 4 and 5."""
    for mixer, model in MODELS[task].items():
        name = f"{task}-{mixer}"
        sources = None
        if mixer == "selfattention":
            sources = NO_INPUT_DROPOUT
        elif name == "billion-word-lightconv":
            sources = _AS_DYNAMICCONV
        elif mixer == "lightconv" and "model.encoder.*.glu" not in TASKS[task].sources:
            sources = _ENCODER_GLU
        about = f"{_NAMES[mixer]}, {_layers(model)}{_UNREPORTED.get(name, '')}"
        yield name, _recipe(about, TASKS[task], model, sources)


def _small_family(task: str) -> Iterator[tuple[str, Recipe]]:
    for mixer, model in SMALL_MODELS[task].items():
        about = f"small {_NAMES[mixer]}, {_layers(model)}, width {model.dim}"
        yield f"{task}-{mixer}-small", _recipe(about, SMALL_TASKS[task], model)


def _own(rows: Iterable[Row], task: Task) -> Iterator[tuple[str, Recipe]]:
    """The recipes of rows that have models of their own."""
    for row in rows:
        if row.model is not None:
            yield row.recipe, _recipe(row.about, task, row.model, row.sources)


def _twins(rows: Iterable[Row], task: Task, decoder: int = 3) -> Iterator[tuple[str, Recipe]]:
    for row in rows:
        if row.model is not None:
            model = shrink(row.model, decoder)
            about = f"small twin of {row.recipe}, {_layers(model)}, width {model.dim}"
            yield f"{row.recipe}-small", _recipe(about, task, model)


def _greedy(task: Task) -> Task:
    return replace(task, decode=replace(task.decode, beam=1))


_EN_DE, _SMALL = TASKS["wmt-en-de"], SMALL_TASKS["wmt-en-de"]
RECIPES: dict[str, Recipe] = dict(
    [
        *(each for task in MODELS for each in _family(task)),
        *_own((*ABLATION, *NORMALIZATION), _EN_DE),
        *_own(DECODERS, _greedy(_EN_DE)),
        *(each for task in SMALL_MODELS for each in _small_family(task)),
        *_twins((*ABLATION, *NORMALIZATION), _SMALL),
        # These rows differ in the depth of their decoders, so all of their layers stay.
        *_twins(DECODERS, _greedy(_SMALL), decoder=6),
    ]
)
TITLES: dict[str, str] = {name: task.title for name, task in (TASKS | SMALL_TASKS).items()}


def task_of(name: str) -> str:
    """The task that a recipe's name begins with."""
    return next(task for task in TITLES if name.startswith(f"{task}-"))
