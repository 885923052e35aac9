"""Models of the original: whatever layout they come in, every number finds its place."""

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lightconv.interop.architecture import Arguments, frame
from lightconv.interop.fairseq import read_model
from lightconv.models import LanguageModelConfig, Seq2SeqConfig
from tests.interop.writer import BANDS, LAYOUTS, MIXERS, PAIR, TEXT, make, write

Config = Seq2SeqConfig | LanguageModelConfig


def pair(kind: str, **changes: Any) -> Seq2SeqConfig:
    heads = 4 if kind.endswith("plain") else 2
    layers = {"encoder": MIXERS[kind], "decoder": MIXERS[kind]}
    return replace(PAIR, source_heads=heads, **(layers | changes))


def text(kind: str, **changes: Any) -> LanguageModelConfig:
    return replace(TEXT, layers=MIXERS[kind], **changes)


CONFIGS: dict[str, Config] = {
    **{f"pair {kind}": pair(kind) for kind in MIXERS},
    **{f"text {kind}": text(kind) for kind in MIXERS},
    "pre-norm": pair("dynamicconv", pre_norm=True),
    "pre-norm, final norm": pair("lightconv", pre_norm=True, final_norm=True),
    "pre-norm transformer": pair("transformer", pre_norm=True, final_norm=True),
    "share all": pair("lightconv", share_embeddings="all", target_vocab=11),
    "share decoder": pair("transformer", share_embeddings="decoder"),
    "one gated side": pair(
        "dynamicconv", decoder=tuple(replace(m, glu=False) for m in MIXERS["dynamicconv"])
    ),
    "even kernels in the decoder": pair(
        "lightconv", decoder=tuple(replace(m, kernel=4) for m in MIXERS["lightconv"])
    ),
    "shorter decoder": pair("lightconv", decoder=MIXERS["lightconv"][:1]),
    "text, tied": text("dynamicconv", tie_output=True),
    "text, final norm": text("transformer", final_norm=True),
    "text, bands": text("dynamicconv", tie_output=True, adaptive=BANDS),
    "text, tied projections": text(
        "lightconv", tie_output=True, adaptive=replace(BANDS, tie_projections=True)
    ),
    "text, untied bands": text(
        "transformer", tie_output=True, adaptive=replace(BANDS, tie_words=False)
    ),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint.pt"


def run(model: Any) -> Tensor:
    tokens = torch.tensor([[2, 4, 5, 6, 7, 8, 8, 3], [2, 5, 4, 1, 1, 1, 1, 1]])
    inputs = (tokens, tokens) if isinstance(model.config, Seq2SeqConfig) else (tokens,)
    with torch.inference_mode():
        found: Tensor = model(*inputs)
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_comes_back_exactly(name: str, layout: str, path: Path) -> None:
    model = make(CONFIGS[name])
    write(model, layout, path)
    found = read_model(path)
    assert found.model.config == model.config
    ours, theirs = dict(model.named_parameters()), dict(found.model.named_parameters())
    assert ours.keys() == theirs.keys()
    assert [key for key in ours if not torch.equal(ours[key], theirs[key])] == []
    assert torch.equal(run(found.model), run(model))
    assert not found.model.training


def test_the_layout_is_told(path: Path) -> None:
    told = {}
    for layout in LAYOUTS:
        write(make(PAIR), layout, path)
        told[layout] = read_model(path).layout
    assert told == {
        "2019": "2019 (v0.6)",
        "v0.9": "v0.9 to v0.10",
        "v0.12": "v0.12",
        "cuda": "2019 (v0.6), kernels of the CUDA layer",
        "newest": "newest",
    }


def test_the_task_is_told(path: Path) -> None:
    write(make(PAIR), "v0.12", path)
    languages = {"source_lang": "de", "target_lang": "en"}
    assert read_model(path).task == {"kind": "translation", **languages}
    write(make(TEXT), "2019", path)
    assert read_model(path).task == {"kind": "language_model"}


def test_half_precision_is_widened(path: Path) -> None:
    model = make(PAIR).half()
    write(model, "2019", path)
    found = read_model(path).model
    assert {parameter.dtype for parameter in found.parameters()} == {torch.float32}
    assert torch.equal(run(found), run(model.float()))


def test_bands_are_scaled_like_one_matrix(path: Path) -> None:
    """The original multiplies what its embedding gives by sqrt(D), adaptive or not."""
    model = make(CONFIGS["text, bands"])
    write(model, "2019", path)
    embedding = read_model(path).model.embedding
    # Word 6 is the second of the second band.
    by_hand = model.embedding.projections[1].weight @ model.embedding.words[1].weight[1]
    found = embedding(torch.tensor([[6]]))[0, 0]
    torch.testing.assert_close(found, by_hand * math.sqrt(8), rtol=1e-6, atol=1e-6)


OTHER_WORDS: dict[str, tuple[Config, dict[str, Any]]] = {
    "as a shell gave it": (
        PAIR,
        {"weight_softmax": "True", "decoder_kernel_size_list": "[3,7]", "encoder_glu": None},
    ),
    "one kernel for all": (pair("lightconv_plain"), {"decoder_kernel_size_list": [5]}),
    "vocabulary as the last cutoff": (
        CONFIGS["text, bands"],
        {"adaptive_input_cutoff": "5,8,11", "adaptive_softmax_cutoff": "5,8,11"},
    ),
}


@pytest.mark.parametrize("name", OTHER_WORDS)
def test_other_words_for_the_same_arguments(name: str, path: Path) -> None:
    config, changes = OTHER_WORDS[name]
    write(make(config), "2019", path, **changes)
    assert read_model(path).model.config == config


REFUSED: dict[str, Any] = {
    "encoder_learned_pos": True,
    "decoder_learned_pos": True,
    "no_token_positional_embeddings": True,
    "no_scale_embedding": True,
    "layernorm_embedding": True,
    "character_embeddings": True,
    "cross_self_attention": True,
    "decoder_layers_to_keep": "0,1",
    "activation_fn": "gelu",
    "adaptive_softmax_cutoff": "5,8",
    "encoder_embed_dim": 16,
    "decoder_embed_dim": 16,
    "decoder_output_dim": 4,
    "decoder_conv_dim": 16,
    "encoder_layers": 3,
    "decoder_attention_heads": 4,
    "encoder_kernel_size_list": [3, 9],
    "decoder_kernel_size_list": "3,x",
    "encoder_glu": True,
    "decoder_conv_type": "dynamic",
    "weight_softmax": "maybe",
    "encoder_normalize_before": True,
    "decoder_normalize_before": None,
    "encoder_attention_heads": None,
    "dropout": 1.5,
    "attention_dropout": "much",
    "share_all_embeddings": [1],
}


REFUSED_BANDS: list[tuple[dict[str, Any], str]] = [
    ({"adaptive_input": False}, "adaptive_input"),
    ({"adaptive_input_cutoff": "4,8"}, "adaptive_input_cutoff"),
    ({"adaptive_softmax_factor": 4.0}, "adaptive_input_factor"),
    ({"adaptive_input_factor": 2.5, "adaptive_softmax_factor": 2.5}, "factor"),
    ({"tie_adaptive_proj": True}, r"tail\.0\.0\.weight must be the same"),
    ({"adaptive_input_cutoff": "5,7", "adaptive_softmax_cutoff": "5,7"}, "shape"),
]
EVEN = tuple(replace(layer, kernel=4) for layer in MIXERS["lightconv"])
THREE = pair("lightconv", target_vocab=11)  # three matrices
TIED = r"decoder\.embed_tokens\.weight must be the same as encoder\.embed_tokens\.weight"


@pytest.mark.parametrize(
    "config, changes, message",
    [
        *((PAIR, {name: value}, name) for name, value in REFUSED.items()),
        *((CONFIGS["text, bands"], changes, message) for changes, message in REFUSED_BANDS),
        (THREE, {"share_all_embeddings": True}, TIED),
        (replace(PAIR, encoder=EVEN), {}, r"kernels \[4, 4\]: the original cannot run even"),
    ],
    ids=str,
)
def test_an_argument_that_does_not_fit_is_named(
    config: Config, changes: dict[str, Any], message: str, path: Path
) -> None:
    write(make(config), "2019", path, **changes)
    with pytest.raises(ValueError, match=message) as raised:
        read_model(path)
    assert str(path) in str(raised.value)


FC1 = "encoder.layers.0.fc1.weight"
CONV = "encoder.layers.0.conv.weight"


@pytest.mark.parametrize(
    "name, tensor, message",
    [
        ("encoder.layers.1.fc2.bias", None, r"lacks tensor encoder\.layers\.1\.fc2\.bias"),
        ("encoder.embed_tokens.weight", None, r"lacks tensor encoder\.embed_tokens\.weight"),
        ("decoder.layers.0.linear1.weight", None, r"decoder\.layers\.0\.linear1\.weight"),
        # Without it, fairseq took the probability of a band from the place before.
        ("decoder.adaptive_softmax.version", None, r"lacks tensor decoder\.adaptive_softmax\.v"),
        ("decoder.layers.0.attn_ln.weight", torch.ones(8), r"decoder\.layers\.0\.attn_ln"),
        ("encoder.embed_positions.weight", torch.ones(9, 8), r"encoder\.embed_positions"),
        ("models.x", torch.ones(1), r"models\.x"),
        (FC1, torch.ones(12, 7), r"encoder\.0\.ffn.*\[12, 7\]"),
        (CONV, torch.ones(2, 2, 3), r"conv\.weight has shape"),
        (CONV, torch.ones(2, 4), r"kernel"),
        ("encoder.layers.0.layer_norm1.weight", torch.ones(8), r"given twice"),
        ("decoder.layer_norm.weight", torch.ones(8), r"norm after the last layer"),
        (FC1, torch.ones(12, 8).long(), r"type torch\.int64"),
        (FC1, torch.ones(12, 8).double(), r"type torch\.float64"),
        (FC1, 3, r"which is not a tensor"),
        (7, torch.ones(1), r"which is not a tensor"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    name: Any, tensor: Any, message: str, path: Path
) -> None:
    write(make(CONFIGS["text, bands"] if "adaptive" in str(name) else PAIR), "2019", path)
    with torch.serialization.safe_globals([argparse.Namespace]):
        checkpoint = torch.load(path, weights_only=True)
    checkpoint["model"][name] = tensor
    if tensor is None:
        del checkpoint["model"][name]
    torch.save(checkpoint, path)
    with pytest.raises(ValueError, match=message):
        read_model(path)


@pytest.mark.parametrize("content", [[1, 2], {"args": None, "model": {}}, {}, {"model": 3}, 5])
def test_other_things_of_torch_save(content: Any, path: Path) -> None:
    torch.save(content, path)
    with pytest.raises(ValueError, match=r"checkpoint"):
        read_model(path)


@pytest.mark.parametrize("new, old, found", [(0.1, 0.3, 0.1), (0.0, 0.3, 0.3), (None, 0.3, 0.3)])
def test_the_older_name_of_a_dropout_counts_where_the_newer_is_zero(
    new: float | None, old: float, found: float
) -> None:
    args = {"decoder_normalize_before": False, "relu_dropout": old, "activation_dropout": new}
    assert frame(Arguments(args), {}, "decoder")["activation_dropout"] == found
