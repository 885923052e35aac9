"""RECIPES: every row of the paper's tables by name, and small twins.

A name is TASK-MODEL or TASK-TABLE-ROW, as in `wmt-en-de-dynamicconv`, `wmt-en-de-ablation-sharing`.
A small twin, TASK-MODEL-small, trains on two processor cores within hours: a quarter to half of the
width, half the layers, and the paper's proportions between the mixers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lightconv.data.config import TaskConfig
from lightconv.decode import DecodeConfig
from lightconv.models.config import ModelConfig
from lightconv.paper.models import MODELS, SMALL_MODELS, WIDTH, shrink, stacks
from lightconv.paper.tables import NO_INPUT_DROPOUT, TABLES
from lightconv.paper.tasks import FITTED, TASKS, PaperTask, ours, translation
from lightconv.recipe import Recipe
from lightconv.train.config import CosineConfig, TrainConfig

NAMES = {"selfattention": "self-attention", "lightconv": "LightConv", "dynamicconv": "DynamicConv"}

# --- Small twins

_TRAIN = TrainConfig(
    max_steps=3000,
    tokens_per_update=4096,
    max_tokens=2048,
    schedule=CosineConfig(peak=1e-3, warmup=500, period=2500),
    label_smoothing=0.1,
    validate_every=500,
    save_every=500,
    keep_last=3,
)
_TRAINING = {
    "translation": _TRAIN,
    "language_model": replace(_TRAIN, label_smoothing=0.0),
    # Sources are several times as long as summaries.
    "summarization": replace(_TRAIN, tokens_per_update=1024, max_tokens=4096, label_smoothing=0.0),
}
_SOURCES = {
    "model": ours(f"a small twin: width {WIDTH}, few layers, the paper's proportions"),
    "train": ours("a short run on a processor: Adam and one cosine for every task"),
}


def _twin(full: PaperTask) -> PaperTask:
    """A task with a short training and the same search."""
    searched = {path: source for path, source in full.sources.items() if path.startswith("decode")}
    return replace(full, train=_TRAINING[full.task.kind], sources={**_SOURCES, **searched})


def _debian(title: str, task: TaskConfig, decode: DecodeConfig) -> PaperTask:
    sources = {"decode": ours("no task of the paper")}
    return _twin(PaperTask(title=title, task=task, train=_TRAIN, decode=decode, sources=sources))


SMALL_TASKS: dict[str, PaperTask] = {
    **{name: _twin(task) for name, task in TASKS.items()},
    "debian-en-de": _debian(
        "Debian texts: English-German translation",
        translation("debian-en-de", "sacrebleu"),
        DecodeConfig(beam=5, alpha=1.0),
    ),
    "debian-lm": _debian(
        "Debian texts: language modelling",
        TaskConfig(kind="language_model", corpus="debian-lm", metric="perplexity"),
        DecodeConfig(),
    ),
    "debian-summary": _debian(
        "Debian texts: summarisation",
        TaskConfig(kind="summarization", corpus="debian-summary", metric="rouge"),
        DecodeConfig(beam=5, length_penalty="stepwise", alpha=0.9, max_len_plus=50, block_ngrams=3),
    ),
}

# --- All recipes

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


def _recipe(about: str, task: PaperTask, model: ModelConfig, sources: Mapping[str, str]) -> Recipe:
    """`sources` come before those of the task; sources of absent fields are left out."""
    bare = Recipe(about=about, task=task.task, model=model, train=task.train, decode=task.decode)
    found = {**task.sources, **sources}
    return replace(bare, sources={p: found[p] for p in found if _has_field(bare, p.split("."))})


def _has_field(config: Any, path: Sequence[str]) -> bool:
    """True if a configuration has the field of this path; `*` is one of the layers."""
    if not path:
        return True
    if path[0] == "*":
        return any(_has_field(layer, path[1:]) for layer in set(config))
    return hasattr(config, path[0]) and _has_field(getattr(config, path[0]), path[1:])


def _layers(model: ModelConfig) -> str:
    return "+".join(str(len(layers)) for layers in stacks(model).values()) + " layers"


def _all() -> Iterator[tuple[str, Recipe]]:
    for task, models in MODELS.items():
        for mixer, model in models.items():
            name, sources = f"{task}-{mixer}", dict[str, str]()
            if mixer == "selfattention":
                sources = NO_INPUT_DROPOUT
            elif name == "billion-word-lightconv":
                sources = _AS_DYNAMICCONV
            elif mixer == "lightconv" and "model.encoder.*.glu" not in TASKS[task].sources:
                sources = _ENCODER_GLU
            about = f"{NAMES[mixer]}, {_layers(model)}{_UNREPORTED.get(name, '')}"
            yield name, _recipe(about, TASKS[task], model, sources)
    every = [(table, row) for table in TABLES.values() for row in table.rows]
    own = [(table, row, row.model) for table, row in every if row.model is not None]
    full, small = TASKS["wmt-en-de"], SMALL_TASKS["wmt-en-de"]
    greedy = replace(full.decode, beam=1)
    for table, row, model in own:
        changed = replace(full, decode=greedy if table.one_by_one else full.decode)
        yield row.recipe, _recipe(row.about, changed, model, row.sources)
    for task, models in SMALL_MODELS.items():
        for mixer, model in models.items():
            about = f"small {NAMES[mixer]}, {_layers(model)}, width {model.dim}"
            yield f"{task}-{mixer}-small", _recipe(about, SMALL_TASKS[task], model, {})
    for table, row, model in own:
        # Rows of table 7 differ in the depth of their decoders, so all of their layers stay.
        twin = shrink(model, 6 if table.one_by_one else 3)
        about = f"small twin of {row.recipe}, {_layers(twin)}, width {twin.dim}"
        changed = replace(small, decode=greedy if table.one_by_one else small.decode)
        yield f"{row.recipe}-small", _recipe(about, changed, twin, {})


RECIPES: dict[str, Recipe] = dict(_all())
TITLES: dict[str, str] = {name: task.title for name, task in (TASKS | SMALL_TASKS).items()}


def task_of(name: str) -> str:
    """The task that a recipe's name begins with."""
    return next(task for task in TITLES if name.startswith(f"{task}-"))
