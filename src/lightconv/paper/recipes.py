"""RECIPES: every row of the paper's tables by name, and small twins.

A name is TASK-MODEL or TASK-TABLE-ROW, as in `wmt-en-de-dynamicconv`, `wmt-en-de-ablation-sharing`.
A small twin, TASK-MODEL-small, trains on two processor cores within hours: a quarter to half of the
width, half the layers, and the paper's proportions between the mixers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from lightconv.data.config import TaskConfig
from lightconv.decode import DecodeConfig
from lightconv.models.config import MixerConfig, ModelConfig, Seq2SeqConfig
from lightconv.paper import rows
from lightconv.paper.rows import MODELS, Models, family, lm_family
from lightconv.paper.tasks import FITTED, TASKS, PaperTask, ours, translation
from lightconv.recipe import Recipe
from lightconv.train.config import CosineConfig, TrainConfig

NAMES = {"selfattention": "self-attention", "lightconv": "LightConv", "dynamicconv": "DynamicConv"}

# --- Small twins

WIDTH = 256
_SIZES = ("heads", "source_heads", "ffn_dim")
_RATES = ("dropout", "attention_dropout", "dropconnect")
# One layer more would be a quarter of the model here, not a sixteenth.
_LM_KERNELS = (15, 31, 63, 63)
Config = TypeVar("Config", MixerConfig, Seq2SeqConfig)


def shrink(model: ModelConfig, decoder: int = 3) -> Seq2SeqConfig:
    """The twin of a model: heads of the same width, half of the layers, dropout of at most 0.1.

    decoder  layers of the decoder that stay; of the encoder, half of them, rounded up
    """
    assert isinstance(model, Seq2SeqConfig)

    def scale(config: Config) -> Config:
        values = vars(config)
        sizes = {n: WIDTH * values[n] // model.dim for n in _SIZES if n in values}
        return replace(config, **sizes, **{n: min(values[n], 0.1) for n in _RATES if n in values})

    layers = tuple(map(scale, model.encoder[: (len(model.encoder) + 1) // 2]))
    last = tuple(map(scale, model.decoder[:decoder]))
    return replace(scale(model), dim=WIDTH, encoder=layers, decoder=last, input_dropout=0.0)


def _shrink_all(models: Models) -> Models:
    return {mixer: shrink(model) for mixer, model in models.items()}


_SMALL_LM = replace(
    rows.BILLION_WORD,
    dim=WIDTH,
    ffn_dim=4 * WIDTH,
    layers=rows.change(rows.BILLION_WORD.layers[:4], heads=4),
)
# The corpora that anyone can fetch: one vocabulary of 8000 byte pairs each.
_DEBIAN = replace(rows.EN_DE, source_vocab=8000, target_vocab=8000)

SMALL_MODELS: dict[str, Models] = {
    **{task: _shrink_all(MODELS[task]) for task in MODELS if task.startswith(("iwslt", "wmt"))},
    "billion-word": lm_family(_SMALL_LM, _LM_KERNELS),
    "cnn-dailymail": _shrink_all(MODELS["cnn-dailymail"]),
    "debian-en-de": _shrink_all(family(_DEBIAN, glu=True)),
    "debian-lm": lm_family(replace(_SMALL_LM, vocab=8000, adaptive=None), _LM_KERNELS),
    "debian-summary": _shrink_all(family(_DEBIAN, glu=False)),
}

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
    present = set(_paths(bare, ""))
    found = {**task.sources, **sources}
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


def _all() -> Iterator[tuple[str, Recipe]]:
    for task, models in MODELS.items():
        for mixer, model in models.items():
            name, sources = f"{task}-{mixer}", dict[str, str]()
            if mixer == "selfattention":
                sources = rows.NO_INPUT_DROPOUT
            elif name == "billion-word-lightconv":
                sources = _AS_DYNAMICCONV
            elif mixer == "lightconv" and "model.encoder.*.glu" not in TASKS[task].sources:
                sources = _ENCODER_GLU
            about = f"{NAMES[mixer]}, {_layers(model)}{_UNREPORTED.get(name, '')}"
            yield name, _recipe(about, TASKS[task], model, sources)
    found = (*rows.ABLATION, *rows.NORMALIZATION, *rows.DECODERS)
    own = [(row, row.model) for row in found if row.model is not None]
    full, small = TASKS["wmt-en-de"], SMALL_TASKS["wmt-en-de"]
    greedy = {row.recipe: replace(full.decode, beam=1) for row in rows.DECODERS}
    for row, model in own:
        decode = greedy.get(row.recipe, full.decode)
        yield row.recipe, _recipe(row.about, replace(full, decode=decode), model, row.sources)
    for task, models in SMALL_MODELS.items():
        for mixer, model in models.items():
            about = f"small {NAMES[mixer]}, {_layers(model)}, width {model.dim}"
            yield f"{task}-{mixer}-small", _recipe(about, SMALL_TASKS[task], model, {})
    for row, model in own:
        # Rows of table 7 differ in the depth of their decoders, so all of their layers stay.
        twin = shrink(model, 6 if row in rows.DECODERS else 3)
        about = f"small twin of {row.recipe}, {_layers(twin)}, width {twin.dim}"
        decode = greedy.get(row.recipe, small.decode)
        yield f"{row.recipe}-small", _recipe(about, replace(small, decode=decode), twin, {})


RECIPES: dict[str, Recipe] = dict(_all())
TITLES: dict[str, str] = {name: task.title for name, task in (TASKS | SMALL_TASKS).items()}


def task_of(name: str) -> str:
    """The task that a recipe's name begins with."""
    return next(task for task in TITLES if name.startswith(f"{task}-"))
