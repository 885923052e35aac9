"""Learning tests: each mixer learns what cannot be known without it."""

import math
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import lightconv
from lightconv.corpora.synthetic import Settings, make
from lightconv.data import EOS, Batch
from lightconv.data.prepare import prepare as prepare_text
from lightconv.mixers import MIXERS
from lightconv.models import (
    AttentionConfig,
    AverageConfig,
    ConvConfig,
    DynamicConvConfig,
    HyenaConfig,
    LanguageModel,
    LanguageModelConfig,
    LightConvConfig,
    LowRankConvConfig,
    MixerConfig,
    ModelConfig,
    Seq2SeqConfig,
    ShortConvConfig,
)
from lightconv.train import CosineConfig, Outcome, PreparedData, TrainConfig, Trainer, run
from tests.harness.examples import Symbols, prepare
from tests.train.formula import fit

SYMBOLS, LENGTH = 8, 12
LAYERS: dict[str, MixerConfig] = {
    "attention": AttentionConfig(heads=4),
    "windowed": AttentionConfig(heads=4, window=3),
    "conv": ConvConfig(kernel=3),
    "lightconv": LightConvConfig(kernel=3, heads=4),
    "dynamicconv": DynamicConvConfig(kernel=3, heads=4),
    "average": AverageConfig(ffn_dim=32),
    "lowrankconv": LowRankConvConfig(kernel=3),
    "shortconv": ShortConvConfig(kernel=3),
    "hyena": HyenaConfig(kernel=8, heads=4),
}


def refrain(seed: int, sentences: int = 32) -> Batch:
    """Two symbols at random, then the same two again and again: a b a b a b ..."""
    draw = torch.Generator().manual_seed(seed)
    pair = torch.randint(4, 4 + SYMBOLS, (sentences, 2), generator=draw)
    text = pair.repeat(1, LENGTH // 2)
    start = torch.full((sentences, 1), EOS)
    return Batch((torch.cat([start, text[:, :-1]], dim=1),), text)


def learn(layer: MixerConfig, steps: int = 100) -> float:
    """Nats per symbol that could be known, after training; log(8) = 2.1 is what chance gives."""
    torch.manual_seed(0)
    model = LanguageModel(
        LanguageModelConfig(dim=32, ffn_dim=64, layers=(layer, layer), vocab=4 + SYMBOLS)
    )
    schedule = CosineConfig(peak=1e-2, warmup=steps // 5, period=steps - steps // 5)
    config = TrainConfig(max_steps=steps, tokens_per_update=1, schedule=schedule)
    trainer = Trainer(model, config)
    fit(trainer, map(refrain, range(steps)))
    nll = trainer.measure([refrain(10**6, 500)]).nll
    # The first two symbols of each sentence cannot be known.
    return (nll * LENGTH - 2 * math.log(SYMBOLS)) / (LENGTH - 2)


def test_there_is_a_test_for_every_mixer() -> None:
    assert {layer.kind for layer in LAYERS.values()} == set(MIXERS)


@pytest.mark.parametrize("name", LAYERS)
def test_a_mixer_remembers(name: str) -> None:
    assert learn(LAYERS[name]) < 0.15


def test_without_a_memory_it_cannot_be_learned() -> None:
    assert learn(LightConvConfig(kernel=1, heads=4), steps=40) > 1.5


def model_of(name: str, data: PreparedData, dim: int = 64) -> ModelConfig:
    """Two layers of a mixer on each side."""
    layers = (LAYERS[name], LAYERS[name])
    source, target = data.sizes
    if not data.pairs:
        return LanguageModelConfig(dim=dim, ffn_dim=2 * dim, layers=layers, vocab=target)
    return Seq2SeqConfig(
        dim=dim,
        ffn_dim=2 * dim,
        source_heads=4,
        encoder=layers,
        decoder=layers,
        source_vocab=source,
        target_vocab=target,
        share_embeddings="all" if source == target else "decoder",
    )


def whole_run(folder: Path, data: PreparedData, model: ModelConfig, steps: int) -> Outcome:
    """From tokens on the disk to a model folder."""
    config = TrainConfig(
        max_steps=steps,
        tokens_per_update=400,
        max_tokens=1000,
        schedule=CosineConfig(peak=3e-3, warmup=steps // 5, period=steps - steps // 5),
        validate_every=steps,
        save_every=steps,
    )
    return run(folder, data, model, config)


def test_a_whole_run_learns_to_copy(tmp_path: Path) -> None:
    """Perplexity below 1.5 where chance is 9; the others take longer, below."""
    task = Symbols(symbols=8, min_len=3, max_len=6, sentences=400, seed=3, step=1)
    data = PreparedData(prepare(tmp_path / "data", task, batches=10))
    outcome = whole_run(tmp_path / "run", data, model_of("dynamicconv", data, dim=32), steps=150)
    assert outcome.entries[-1]["perplexity"] < 1.5


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_a_whole_run_learns_to_reverse(name: str, tmp_path: Path) -> None:
    """Perplexity below 1.2, where chance is about 14."""
    task = Symbols(sentences=400, seed=3)
    data = PreparedData(prepare(tmp_path / "data", task, batches=20))
    outcome = whole_run(tmp_path / "run", data, model_of(name, data), steps=500)
    last = outcome.entries[-1]
    assert last["kind"] == "valid"
    print(f"reversal, {name}: perplexity {last['perplexity']:.3f}")
    assert last["perplexity"] < 1.2
    # What was exported is what was measured.
    loaded = lightconv.load(tmp_path / "run" / "model")
    held_out = replace(task, seed=task.seed + 1).batch(0)
    config = TrainConfig(
        max_steps=1, tokens_per_update=1, schedule=CosineConfig(peak=1.0, warmup=1, period=1)
    )
    assert Trainer(loaded, config).measure([held_out]).nll == pytest.approx(last["nll"], rel=1e-5)


class Task(NamedTuple):
    """So many examples and updates; the perplexity of validation must then be below this."""

    examples: int
    steps: int
    below: float


# About a minute each, alone on one core. In brackets the number of words or subwords.
TASKS = {
    "synthetic-copy": Task(4000, 400, 1.3),  # [54]
    "synthetic-lm": Task(2000, 300, 3.5),  # sentences of templates [150]
    "synthetic-translation": Task(2000, 300, 8.0),  # other words, order and endings [1,000]
    "synthetic-summary": Task(1000, 150, 4.0),  # what matters of a long document [102]
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("corpus", TASKS)
def test_a_whole_run_learns(corpus: str, name: str, tmp_path: Path) -> None:
    """From made-up text to a model."""
    task = TASKS[corpus]
    settings = Settings(train=task.examples, valid=100, test=100)
    prepare_text(make(corpus, settings), tmp_path / "data", processes=1)
    data = PreparedData(tmp_path / "data")
    outcome = whole_run(tmp_path / "run", data, model_of(name, data), steps=task.steps)
    perplexity = outcome.entries[-1]["perplexity"]
    print(f"{corpus}, {name}: perplexity {perplexity:.3f}")
    assert perplexity < task.below
