"""Configurations say what the mixers' constructors say, refuse nonsense, and need no torch."""

import dataclasses
import inspect
from typing import get_args

import pytest

from lightconv.mixers import MIXERS
from lightconv.models import (
    AdaptiveConfig,
    AttentionConfig,
    AverageConfig,
    DynamicConvConfig,
    HyenaConfig,
    MixerConfig,
    Seq2SeqConfig,
    ShortConvConfig,
)
from lightconv.models.layers import PlainLayer

from .examples import pair_config

MIXER_CONFIGS = {config.kind: config for config in get_args(MixerConfig)}
OPTIONS = {"heads": 2, "kernel": 3, "ffn_dim": 12}


def example(kind: str) -> MixerConfig:
    config = MIXER_CONFIGS[kind]
    names = {field.name for field in dataclasses.fields(config)}
    found: MixerConfig = config(**{k: v for k, v in OPTIONS.items() if k in names})
    return found


@pytest.mark.parametrize("kind", MIXERS)
def test_fields_are_the_constructors_keywords(kind: str) -> None:
    parameters = dict(inspect.signature(MIXERS[kind].__init__).parameters)
    for name in ("self", "dim", "causal"):
        parameters.pop(name)
    keywords = {
        name: dataclasses.MISSING if p.default is p.empty else p.default
        for name, p in parameters.items()
    }
    fields = {field.name: field.default for field in dataclasses.fields(MIXER_CONFIGS[kind])}
    assert {name: keywords[name] for name in fields} == fields
    required = {name for name, value in keywords.items() if value is dataclasses.MISSING}
    assert required <= set(fields)
    assert set(MIXER_CONFIGS) == set(MIXERS)


@pytest.mark.parametrize("kind", MIXERS)
@pytest.mark.parametrize("causal", [True, False])
def test_build_mixer(kind: str, causal: bool) -> None:
    config = example(kind)
    mixer = PlainLayer(model(), config, causal=causal).mixer
    assert type(mixer) is MIXERS[kind]
    assert mixer.causal is causal
    for name, value in dataclasses.asdict(config).items():
        assert value is None or getattr(mixer, name) == value


def model(**changes: object) -> Seq2SeqConfig:
    fields = {"source_vocab": 10, "target_vocab": 11} | changes
    return pair_config((DynamicConvConfig(kernel=3, heads=2),), **fields)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"dim": 0}, "dim=0 must be at least 1"),
        ({"adaptive": AdaptiveConfig(cutoffs=(4, 10))}, "adaptive.cutoffs.*vocabulary of 10"),
        ({"adaptive": AdaptiveConfig(cutoffs=(4, 6), factor=3)}, "no width for band 2 of dim=8"),
        ({"dropout": 1.0}, r"^dropout=1.0 must be in \[0, 1\)$"),
        ({"attention_dropout": -0.1}, "attention_dropout=-0.1 must be in"),
        ({"share_embeddings": "some"}, "share_embeddings='some' must be one of none, decoder, all"),
        ({"share_embeddings": "all"}, "source_vocab=10 and target_vocab=11"),
        ({"pad": 10}, "pad=10 must be an id below 10"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model(**changes)


def test_memory_of_a_step_is_bounded() -> None:
    assert ShortConvConfig(kernel=16, dilation=4096).held == 1 << 16
    with pytest.raises(ValueError, match="kernel and dilation reach 69632 positions, at most"):
        ShortConvConfig(kernel=17, dilation=4096)
    layers = (
        AttentionConfig(heads=2),
        AttentionConfig(heads=2, window=5),
        AverageConfig(ffn_dim=4),
    )
    assert [each.held for each in layers] == [0, 5, 1]
    assert HyenaConfig(kernel=10, short=4).held == 22


def test_configs_are_values() -> None:
    assert model() == model()
    assert hash(model()) == hash(model())
    assert dataclasses.replace(model(), dropout=0.3).dropout == 0.3
