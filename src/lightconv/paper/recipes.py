"""RECIPES: every row of the paper's tables by name, and a small twin for each task.

A name is TASK-MODEL, TASK-TABLE-ROW or TASK-MODEL-small, as in `wmt-en-de-dynamicconv`,
`wmt-en-de-ablation-sharing`, `iwslt-de-en-lightconv-small`; small twins of the rows of tables 3, 6
and 7 are called TASK-TABLE-ROW-small.
"""

from collections.abc import Mapping
from dataclasses import replace

from lightconv.models.config import ModelConfig, Seq2SeqConfig
from lightconv.paper.models import ABLATION, DECODERS, MODELS, NORMALIZATIONS
from lightconv.paper.setups import SETUPS, Setup
from lightconv.paper.small import SMALL_MODELS, SMALL_ROWS, SMALL_SETUPS
from lightconv.paper.sources import ARCHITECTURE, FITTED, each_layer, ours, select
from lightconv.recipe import Recipe

_NAMES = {
    "selfattention": "self-attention",
    "lightconv": "LightConv",
    "dynamicconv": "DynamicConv",
}


def _recipe(
    about: str, setup: Setup, model: ModelConfig, sources: Mapping[str, str] | None = None
) -> Recipe:
    """The recipe of `model` under `setup`; `sources` come before those of the task."""
    bare = Recipe(about=about, task=setup.task, model=model, train=setup.train, decode=setup.decode)
    return replace(bare, sources=select({**setup.sources, **(sources or {})}, bare))


def _layers(model: ModelConfig) -> str:
    if isinstance(model, Seq2SeqConfig):
        return f"{len(model.encoder)}+{len(model.decoder)} layers"
    return f"{len(model.layers)} layers"


# --- The models of tables 1, 2, 4 and 5

_NO_INPUT_DROPOUT = {"model.input_dropout": f"{ARCHITECTURE}: its Transformer has none"}
_ENCODER_GLU = {
    "model.encoder.*.glu": FITTED,
    "model.decoder.*.glu": f"{FITTED}: gating the decoder too would give 208.9M for WMT En-De",
}
_AS_DYNAMICCONV = {
    "model.layers": ours("as for DynamicConv"),
    "model.layers.*.glu": ours("as for DynamicConv"),
}
_UNREPORTED = {
    "wmt-en-fr-selfattention": "the paper compares with Ott et al. (2018) instead",
    "billion-word-lightconv": "not in the paper",
}


def _main(task: str, name: str) -> Recipe:
    setup, model = SETUPS[task], MODELS[task][name]
    note = _UNREPORTED.get(f"{task}-{name}")
    about = f"{_NAMES[name]}, {_layers(model)}" + (f"; {note}" if note else "")
    if name == "selfattention":
        return _recipe(about, setup, model, _NO_INPUT_DROPOUT)
    if f"{task}-{name}" == "billion-word-lightconv":
        return _recipe(about, setup, model, _AS_DYNAMICCONV)
    if name == "lightconv" and "model.encoder.*.glu" not in setup.sources:
        return _recipe(about, setup, model, _ENCODER_GLU)
    return _recipe(about, setup, model)


# --- Table 3: the ablation.  It is trained and searched like WMT En-De

_ABLATION_ABOUT = {
    "windowed": "self-attention in windows of 3, 7, 15, 31x3",
    "cnn": "full convolutions k=3, no projections",
    "depthwise": "CNN depthwise: k=3, H=1024, with projections",
    "increasing-kernel": "+ increasing kernel: k=3, 7, 15, 31x4",
    "dropconnect": "+ DropConnect",
    "sharing": "+ weight sharing: H=16",
    "softmax": "+ softmax-normalised weights: LightConv without GLU",
    "dynamicconv": "+ dynamic weights: DynamicConv without GLU",
    "dynamicconv-nosoftmax": "DynamicConv without softmax (diverged in the paper)",
    "aan-decoder": "averaged attention in the decoder, self-attention in the encoder",
    "aan-both": "averaged attention in encoder and decoder",
}
_AVERAGES = {
    **each_layer("ffn_dim", FITTED),
    "model.decoder.*.dropout": ours("none"),
    "model.input_dropout": ours("none, as for self-attention"),
}
_BEFORE_LIGHTCONV = {"model.input_dropout": ours("as for LightConv")}
_ABLATION_SOURCES = {
    "windowed": _NO_INPUT_DROPOUT,
    **dict.fromkeys(("cnn", "depthwise", "increasing-kernel"), _BEFORE_LIGHTCONV),
    **dict.fromkeys(("dropconnect", "sharing"), _BEFORE_LIGHTCONV),
    "aan-decoder": _AVERAGES,
    "aan-both": {**_AVERAGES, "model.encoder.*.dropout": ours("none")},
}
# --- Table 6, the appendix's normalisations, and table 7, decoders that are fast

_NORMALIZED = {
    "none": "not normalised (diverged in the paper)",
    "softmax": "through a softmax",
    "sigmoid": "through a sigmoid",
    "tanh": "through tanh",
    "l1": "divided by their L1 norm (diverged in the paper)",
    "l2": "divided by their L2 norm",
    "square": "squared (diverged in the paper)",
    "abs": "as absolute values (diverged in the paper)",
    "abs-l1": "as absolute values divided by their L1 norm (diverged in the paper)",
    "abs-l2": "as absolute values divided by their L2 norm",
}
_EN_DE = SETUPS["wmt-en-de"]
_FAST = replace(_EN_DE, decode=replace(_EN_DE.decode, beam=1))
_SMALL = SMALL_SETUPS["wmt-en-de"]

RECIPES: dict[str, Recipe] = {
    **{f"{task}-{name}": _main(task, name) for task in MODELS for name in MODELS[task]},
    **{
        f"wmt-en-de-ablation-{row}": _recipe(
            _ABLATION_ABOUT[row], _EN_DE, model, _ABLATION_SOURCES.get(row)
        )
        for row, model in ABLATION.items()
    },
    **{
        f"wmt-en-de-normalize-{row}": _recipe(
            f"DynamicConv without GLU, kernels {_NORMALIZED[row]}",
            _EN_DE,
            model,
        )
        for row, model in NORMALIZATIONS.items()
    },
    **{
        f"wmt-en-de-decoder-{row}": _recipe(
            f"DynamicConv without GLU, {_layers(model)}, greedy search", _FAST, model
        )
        for row, model in DECODERS.items()
    },
    **{
        f"{task}-{name}-small": _recipe(
            f"small {_NAMES[name]}, {_layers(model)}, width {model.dim}", SMALL_SETUPS[task], model
        )
        for task, models in SMALL_MODELS.items()
        for name, model in models.items()
    },
    **{
        f"wmt-en-de-{table}-{row}-small": _recipe(
            f"small twin of wmt-en-de-{table}-{row}, {_layers(model)}, width {model.dim}",
            replace(_SMALL, decode=_FAST.decode) if table == "decoder" else _SMALL,
            model,
        )
        for table, models in SMALL_ROWS.items()
        for row, model in models.items()
    },
}
TITLES: dict[str, str] = {task: setup.title for task, setup in (SETUPS | SMALL_SETUPS).items()}


def task_of(name: str) -> str:
    """The task a recipe's name begins with."""
    return next(task for task in TITLES if name.startswith(f"{task}-"))
