"""RECIPES: every row of the paper's tables by name, and small twins.

A name is TASK-MODEL or TASK-TABLE-ROW, as in `wmt-en-de-dynamicconv`, `wmt-en-de-ablation-sharing`.
A small twin, TASK-MODEL-small, trains on two processor cores within hours: a quarter to half of the
width, half the layers, and the paper's proportions between the mixers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lightconv.corpora import translation_task
from lightconv.data.config import TaskConfig
from lightconv.decode import DecodeConfig
from lightconv.models.config import ModelConfig
from lightconv.paper.models import (
    AAN_BASE,
    MODELS,
    NAMES,
    SMALL_MODELS,
    WIDTH,
    count_layers,
    describe,
    shrink,
)
from lightconv.paper.tables import AVERAGES, DECODERS, NO_INPUT_DROPOUT, TABLES
from lightconv.paper.tasks import FITTED, TASKS, PaperTask, all_from, ours
from lightconv.recipe import Recipe, find_recipe
from lightconv.train.config import CosineConfig, TrainConfig

# --- Small twins

_TRAIN = TrainConfig(
    max_steps=3000,
    tokens_per_update=4096,
    max_tokens=2048,
    schedule=CosineConfig(peak=1e-3, warmup=500, period=2500),
    label_smoothing=0.1,
    precision="auto",
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
        translation_task("debian-en-de", "sacrebleu"),
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
_BASE_SIZES = "model.dim model.ffn_dim model.source_heads model.dropout model.encoder.*.heads"
_AAN_BASE = all_from("Vaswani et al. (2017): their base model, which the paper names", _BASE_SIZES)
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
            about = f"{NAMES[mixer]}, {count_layers(model)}{_UNREPORTED.get(name, '')}"
            yield name, _recipe(about, TASKS[task], model, sources)
    own = [(t, row, row.model) for t in TABLES.values() for row in t.rows if row.model is not None]
    full, small = TASKS["wmt-en-de"], SMALL_TASKS["wmt-en-de"]
    greedy = replace(full.decode, beam=1)
    for table, row, model in own:
        changed = replace(full, decode=greedy if table is DECODERS else full.decode)
        yield row.recipe, _recipe(row.about, changed, model, row.sources)
    about = "base Transformer, averaged attention in the decoder; section 6.2: 129 sentences/s"
    yield "wmt-en-de-aan-base", _recipe(about, full, AAN_BASE, {**AVERAGES, **_AAN_BASE})
    for task, models in SMALL_MODELS.items():
        for mixer, model in models.items():
            about = f"small {NAMES[mixer]}, {count_layers(model)}, width {model.dim}"
            yield f"{task}-{mixer}-small", _recipe(about, SMALL_TASKS[task], model, {})
    for table, row, model in own:
        # Rows of table 7 differ in the depth of their decoders, so all of their layers stay.
        twin = shrink(model, 6 if table is DECODERS else 3)
        about = f"small twin of {row.recipe}, {count_layers(twin)}, width {twin.dim}"
        changed = replace(small, decode=greedy if table is DECODERS else small.decode)
        yield f"{row.recipe}-small", _recipe(about, changed, twin, {})


RECIPES: dict[str, Recipe] = dict(_all())
TITLES: dict[str, str] = {name: task.title for name, task in (TASKS | SMALL_TASKS).items()}


def task_of(name: str) -> str:
    """The task that a recipe's name begins with."""
    return next(task for task in TITLES if name.startswith(f"{task}-"))


def set_width(recipe: str, width: int | None) -> list[str]:
    """Settings for another width of the model: heads keep theirs, inner layers the proportion."""
    if width is None:
        return []
    model = RECIPES[recipe].model
    wide = ("dim", "ffn_dim", "source_heads", "heads")
    sizes = {f"model.{name}": vars(model)[name] for name in wide if name in vars(model)}
    for stack, layers in model.stacks.items():
        for place, layer in enumerate(layers):
            found = {name: size for name, size in vars(layer).items() if name in wide}
            sizes |= {f"model.{stack}.{place}.{name}": size for name, size in found.items()}
    head = max(model.dim // size for path, size in sizes.items() if path.endswith("heads"))
    if width % head:
        raise ValueError(f"--width {width}: expected a multiple of {head}, the width of a head")
    return [f"{path}={size * width // model.dim}" for path, size in sizes.items()]


def describe_row(recipe: str, width: int | None, settings: Sequence[str]) -> str:
    """Name of a row of ours: mixers and sizes of its model, as they were trained."""
    sizes = [setting for setting in settings if setting.startswith("model.")]
    return describe(find_recipe(recipe, [*set_width(recipe, width), *sizes], RECIPES).model)
