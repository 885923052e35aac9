"""The recipes say what the paper says, each step of the ablation changes one thing, twins match."""

import json
import re
import subprocess
import sys
import tomllib
from dataclasses import fields

import pytest
import torch

from lightconv.config import from_dict, to_json, to_toml
from lightconv.models import LanguageModel, Seq2Seq
from lightconv.models.config import LanguageModelConfig, MixerConfig, Seq2SeqConfig
from lightconv.paper.params import PAPER_COUNTS, total
from lightconv.paper.recipes import RECIPES, TITLES, task_of
from lightconv.recipe import Recipe
from lightconv.train.config import (
    AdamConfig,
    CosineConfig,
    InverseSqrtConfig,
    NesterovConfig,
    TrainConfig,
)

PAPER_TASKS = (
    "iwslt-de-en",
    "wmt-en-de",
    "wmt-en-fr",
    "wmt-zh-en",
    "billion-word",
    "cnn-dailymail",
)
DEBIAN = ("debian-en-de", "debian-lm", "debian-summary")
MIXERS = ("selfattention", "lightconv", "dynamicconv")
# A self-attention En-Fr model and a LightConv language model complete the set; no row shows them.
UNREPORTED = {"wmt-en-fr-selfattention", "billion-word-lightconv"}
BIG = [name for name in RECIPES if not name.endswith("-small")]
SMALL = [name for name in RECIPES if name.endswith("-small")]


def seq2seq(name: str) -> Seq2SeqConfig:
    model = RECIPES[name].model
    assert isinstance(model, Seq2SeqConfig)
    return model


def kernels(layers: tuple[MixerConfig, ...]) -> list[int]:
    return [layer.kernel for layer in layers]  # type: ignore[union-attr]


def test_names() -> None:
    assert len(RECIPES) == 93
    for name, recipe in RECIPES.items():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
        assert task_of(name) in TITLES
        assert recipe.about and "\n" not in recipe.about
    assert set(TITLES) == {*PAPER_TASKS, *DEBIAN}


def test_every_row_has_a_recipe_and_every_big_recipe_a_row() -> None:
    assert {row.recipe for row in PAPER_COUNTS} == set(BIG) - UNREPORTED


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_survive_their_files(name: str) -> None:
    recipe = RECIPES[name]
    assert from_dict(Recipe, tomllib.loads(to_toml(recipe))) == recipe
    assert from_dict(Recipe, json.loads(to_json(recipe))) == recipe


def test_reading_recipes_does_not_import_torch() -> None:
    code = "import sys, lightconv.paper.recipes; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- What the paper prints, task by task


@pytest.mark.parametrize(
    "task, dim, ffn_dim, heads, dropout, steps, tokens, beam",
    [
        ("iwslt-de-en", 512, 1024, 4, 0.3, 50_000, 4_000, 4),
        ("wmt-en-de", 1024, 4096, 16, 0.3, 30_000, 458_752, 5),
        ("wmt-en-fr", 1024, 4096, 16, 0.1, 80_000, 655_360, 5),
        ("wmt-zh-en", 1024, 4096, 16, 0.25, 40_000, 458_752, 8),
    ],
)
@pytest.mark.parametrize("mixer", MIXERS)
def test_translation(
    task: str,
    dim: int,
    ffn_dim: int,
    heads: int,
    dropout: float,
    steps: int,
    tokens: int,
    beam: int,
    mixer: str,
) -> None:
    recipe, model = RECIPES[f"{task}-{mixer}"], seq2seq(f"{task}-{mixer}")
    sizes = (model.dim, model.ffn_dim, model.source_heads, model.dropout)
    assert sizes == (dim, ffn_dim, heads, dropout)
    assert {layer.heads for layer in model.encoder + model.decoder} == {heads}  # type: ignore[union-attr]
    if mixer == "selfattention":
        assert (len(model.encoder), len(model.decoder)) == (6, 6)
    else:
        assert kernels(model.encoder) == [3, 7, 15, 31, 31, 31, 31]
        assert kernels(model.decoder) == [3, 7, 15, 31, 31, 31]
    train = recipe.train
    assert (train.max_steps, train.tokens_per_update) == (steps, tokens)
    assert train.label_smoothing == 0.1
    assert recipe.decode.beam == beam


def gates(name: str) -> tuple[set[bool], set[bool]]:
    model = seq2seq(name)
    return (
        {layer.glu for layer in model.encoder},  # type: ignore[union-attr]
        {layer.glu for layer in model.decoder},  # type: ignore[union-attr]
    )


@pytest.mark.parametrize("task", ["wmt-en-de", "wmt-en-fr", "wmt-zh-en"])
def test_gates_of_wmt(task: str) -> None:
    assert gates(f"{task}-dynamicconv") == ({True}, {True})
    assert gates(f"{task}-lightconv") == ({True}, {False})


@pytest.mark.parametrize("task", ["iwslt-de-en", "cnn-dailymail"])
def test_no_gates_elsewhere(task: str) -> None:
    assert gates(f"{task}-dynamicconv") == gates(f"{task}-lightconv") == ({False}, {False})


@pytest.mark.parametrize(
    "task, mixer_dropout, input_dropout",
    [
        ("iwslt-de-en", 0.1, 0.0),
        ("wmt-en-de", 0.1, 0.1),
        ("wmt-en-fr", 0.1, 0.1),
        ("wmt-zh-en", 0.2, 0.1),
        ("cnn-dailymail", 0.1, 0.1),
    ],
)
def test_dropouts(task: str, mixer_dropout: float, input_dropout: float) -> None:
    for mixer in MIXERS:
        model = seq2seq(f"{task}-{mixer}")
        field = "dropout" if mixer == "selfattention" else "dropconnect"
        assert {getattr(layer, field) for layer in model.encoder + model.decoder} == {mixer_dropout}
        assert model.attention_dropout == mixer_dropout
        assert model.input_dropout == (0.0 if mixer == "selfattention" else input_dropout)


def cosine(recipe: Recipe) -> tuple[float, int, int, float, float]:
    schedule = recipe.train.schedule
    assert isinstance(schedule, CosineConfig)
    return (schedule.peak, schedule.warmup, schedule.period, schedule.start, schedule.floor)


def test_training_of_wmt() -> None:
    for task, period in (("wmt-en-de", 20_000), ("wmt-en-fr", 70_000), ("wmt-zh-en", 30_000)):
        recipe = RECIPES[f"{task}-dynamicconv"]
        assert cosine(recipe) == (1e-3, 10_000, period, 1e-7, 1e-7)
        assert recipe.train.optimizer == AdamConfig(betas=(0.9, 0.98), eps=1e-8, weight_decay=0.0)
        assert recipe.train.precision == "fp16"
        assert recipe.train.tokens_per_update == 16 * 8 * recipe.train.max_tokens
    alphas = [RECIPES[f"wmt-{pair}-dynamicconv"].decode.alpha for pair in ("en-de", "en-fr")]
    assert alphas == [0.5, 0.9]


def test_training_of_iwslt() -> None:
    recipe = RECIPES["iwslt-de-en-dynamicconv"]
    assert recipe.train == TrainConfig(
        max_steps=50_000,
        tokens_per_update=4000,
        max_tokens=4000,
        optimizer=AdamConfig(betas=(0.9, 0.98), eps=1e-8, weight_decay=1e-4),
        schedule=InverseSqrtConfig(peak=5e-4, warmup=4000, start=1e-7),
        label_smoothing=0.1,
        average_last=10,
    )
    assert recipe.train.precision == "fp32"
    assert recipe.decode.alpha == 1.0


@pytest.mark.parametrize("mixer, layers", [("selfattention", 16), ("dynamicconv", 17)])
def test_billion_word(mixer: str, layers: int) -> None:
    recipe = RECIPES[f"billion-word-{mixer}"]
    model = recipe.model
    assert isinstance(model, LanguageModelConfig)
    assert model.adaptive is not None
    assert (model.dim, model.ffn_dim, len(model.layers)) == (1024, 4096, layers)
    assert (model.vocab, model.adaptive.cutoffs, model.adaptive.factor) == (
        793_471,
        (60_000, 160_000),
        4,
    )
    assert model.pre_norm and not model.final_norm
    if mixer == "dynamicconv":
        assert kernels(model.layers) == [15] * 2 + [31] * 4 + [63] * 11
        assert all(layer.glu for layer in model.layers)  # type: ignore[union-attr]
    train = recipe.train
    assert (train.max_steps, train.tokens_per_update) == (975_000, 65_536)
    assert train.optimizer == NesterovConfig(momentum=0.99)
    assert train.clip_norm == 0.1
    assert cosine(recipe) == (1.0, 16_000, 975_000 - 16_000, 1e-7, 1e-7)
    assert train.label_smoothing == 0.0


@pytest.mark.parametrize("mixer", MIXERS)
def test_cnn_dailymail(mixer: str) -> None:
    recipe, model = RECIPES[f"cnn-dailymail-{mixer}"], seq2seq(f"cnn-dailymail-{mixer}")
    assert (model.dim, model.ffn_dim, model.source_heads) == (512, 2048, 8)
    assert (model.source_vocab, model.target_vocab) == (30_000, 30_000)
    assert model.dropout == 0.3
    assert cosine(recipe) == (1e-3, 10_000, 20_000, 1e-7, 1e-7)
    assert recipe.train.optimizer == AdamConfig(weight_decay=1e-3)
    assert recipe.train.label_smoothing == 0.0
    assert (recipe.decode.length_penalty, recipe.decode.block_ngrams) == ("stepwise", 3)


def test_metrics() -> None:
    assert {task: RECIPES[f"{task}-dynamicconv"].task.metric for task in PAPER_TASKS} == {
        "iwslt-de-en": "tokenized_bleu_lowercase",
        "wmt-en-de": "tokenized_bleu_compounds",
        "wmt-en-fr": "tokenized_bleu",
        "wmt-zh-en": "sacrebleu",
        "billion-word": "perplexity",
        "cnn-dailymail": "rouge",
    }


# --- The ablation


def changed(before: str, after: str) -> set[str]:
    """The names of what differs between two models of the same numbers of layers."""
    a, b = seq2seq(before), seq2seq(after)
    names = {
        field.name
        for field in fields(a)
        if field.name not in ("encoder", "decoder")
        and getattr(a, field.name) != getattr(b, field.name)
    }
    for old, new in zip(a.encoder + a.decoder, b.encoder + b.decoder, strict=True):
        names |= {"kind"} if old.kind != new.kind else set()
        names |= {
            field.name
            for field in fields(old)
            if getattr(old, field.name) != getattr(new, field.name, None)
        }
    return names


@pytest.mark.parametrize(
    "before, after, difference",
    [
        ("selfattention", "ablation-windowed", {"window"}),
        ("ablation-cnn", "ablation-depthwise", {"kind"}),
        ("ablation-depthwise", "ablation-increasing-kernel", {"kernel"}),
        ("ablation-increasing-kernel", "ablation-dropconnect", {"dropconnect"}),
        ("ablation-dropconnect", "ablation-sharing", {"heads"}),
        ("ablation-sharing", "ablation-softmax", {"normalize"}),
        ("ablation-softmax", "ablation-dynamicconv", {"kind"}),
        ("ablation-dynamicconv", "ablation-dynamicconv-nosoftmax", {"normalize"}),
        ("ablation-softmax", "lightconv", {"glu"}),
        ("ablation-dynamicconv", "dynamicconv", {"glu"}),
        ("ablation-dynamicconv", "decoder-6", set()),
    ],
)
def test_each_step_changes_one_thing(before: str, after: str, difference: set[str]) -> None:
    assert changed(f"wmt-en-de-{before}", f"wmt-en-de-{after}") == difference


def test_layers_of_the_ablation() -> None:
    windowed = seq2seq("wmt-en-de-ablation-windowed")
    windows = [layer.window for layer in windowed.encoder]  # type: ignore[union-attr]
    assert windows == [3, 7, 15, 31, 31, 31]
    assert windowed.decoder == windowed.encoder
    cnn = seq2seq("wmt-en-de-ablation-cnn")
    assert (kernels(cnn.encoder), kernels(cnn.decoder)) == ([3] * 7, [3] * 6)
    first = seq2seq("wmt-en-de-ablation-depthwise").encoder[0]
    assert (first.heads, first.normalize, first.dropconnect) == (1024, "none", 0.0)  # type: ignore[union-attr]
    half, both = seq2seq("wmt-en-de-ablation-aan-decoder"), seq2seq("wmt-en-de-ablation-aan-both")
    kinds = [[layer.kind for layer in side] for side in (half.encoder, half.decoder, both.encoder)]
    assert kinds == [["attention"] * 6, ["average"] * 6, ["average"] * 6]


def test_the_appendix() -> None:
    names = ["none", "softmax", "sigmoid", "tanh", "l1", "l2", "square", "abs", "abs_l1", "abs_l2"]
    for name in names:
        model = seq2seq(f"wmt-en-de-normalize-{name.replace('_', '-')}")
        assert {layer.normalize for layer in model.encoder + model.decoder} == {name}  # type: ignore[union-attr]
    sizes = {1: [31], 3: [3, 7, 15], 6: [3, 7, 15, 31, 31, 31]}
    for layers, widths in sizes.items():
        name = f"wmt-en-de-decoder-{layers}"
        assert kernels(seq2seq(name).decoder) == widths
        assert len(seq2seq(name).encoder) == 7
        assert RECIPES[name].decode.beam == 1


# --- Small twins


def test_every_task_has_three_twins() -> None:
    expected = {f"{task}-{mixer}-small" for task in (*PAPER_TASKS, *DEBIAN) for mixer in MIXERS}
    assert {name for name in SMALL if name not in ROWS} == expected


ROWS = [
    f"{name}-small" for name in BIG if re.match("wmt-en-de-(ablation|normalize|decoder)-", name)
]


@pytest.mark.parametrize("name", ROWS)
def test_rows_have_twins_of_a_quarter_of_the_width(name: str) -> None:
    small, big = seq2seq(name), seq2seq(name.removesuffix("-small"))
    assert RECIPES[name].decode == RECIPES[name.removesuffix("-small")].decode
    assert (small.dim, small.ffn_dim, small.source_heads) == (256, 1024, 4)
    assert len(small.encoder) == {6: 3, 7: 4}[len(big.encoder)]
    assert len(small.decoder) == (len(big.decoder) if "en-de-decoder-" in name else 3)
    pairs = [*zip(small.encoder, big.encoder, strict=False)]
    for ours, theirs in [*pairs, *zip(small.decoder, big.decoder, strict=False)]:
        assert ours.kind == theirs.kind
        for field in fields(ours):
            value, full = getattr(ours, field.name), getattr(theirs, field.name)
            assert value == (full // 4 if field.name in ("heads", "ffn_dim") else full)


def test_twins_of_rows_are_trained_like_the_others() -> None:
    assert len(ROWS) == 24
    ablated, whole = (f"wmt-en-de-{each}-small" for each in ("ablation-softmax", "lightconv"))
    assert changed(ablated, whole) == {"glu"}
    assert {RECIPES[name].train for name in ROWS} == {RECIPES[whole].train}


@pytest.mark.parametrize("task", PAPER_TASKS)
def test_twins_keep_the_task_and_the_proportions(task: str) -> None:
    for mixer in MIXERS:
        big, small = RECIPES[f"{task}-{mixer}"], RECIPES[f"{task}-{mixer}-small"]
        assert small.task == big.task
        assert small.decode == big.decode
        assert small.model.dim * big.model.ffn_dim == small.model.ffn_dim * big.model.dim
        if isinstance(big.model, Seq2SeqConfig):
            assert isinstance(small.model, Seq2SeqConfig)
            assert small.model.source_vocab == big.model.source_vocab
            assert small.model.dim // small.model.source_heads == (
                big.model.dim // big.model.source_heads
            )


@pytest.mark.parametrize("task", [*PAPER_TASKS, *DEBIAN])
def test_twins_match_each_other(task: str) -> None:
    recipes = [RECIPES[f"{task}-{mixer}-small"] for mixer in MIXERS]
    sizes = [total(recipe.model) for recipe in recipes]
    assert max(sizes) / min(sizes) < 1.1
    for recipe in recipes:
        assert recipe.model.dim == 256
        assert recipe.train == recipes[0].train
        assert recipe.train.max_steps <= 5000
        assert recipe.train.tokens_per_update <= 4096
        assert recipe.train.precision == "fp32"


def test_debian_twins_name_their_corpora() -> None:
    for task in DEBIAN:
        assert RECIPES[f"{task}-dynamicconv-small"].task.corpus == task


@pytest.mark.parametrize("name", [name for name in SMALL if name.startswith("debian")])
def test_twins_run(name: str) -> None:
    model = RECIPES[name].model
    tokens = torch.randint(2, 8000, (1, 3))
    if isinstance(model, Seq2SeqConfig):
        out = Seq2Seq(model).eval()(tokens, tokens)
    else:
        out = LanguageModel(model).eval()(tokens)
    assert out.shape == (1, 3, 8000)
    assert out.isfinite().all()
