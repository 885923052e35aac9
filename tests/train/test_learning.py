"""Learning tests: each mixer learns what cannot be known without it."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import lightconv
from lightconv.data import EOS, Batch, Synthetic
from lightconv.mixers import MIXERS
from lightconv.models import (
    AttentionConfig,
    AverageConfig,
    ConvConfig,
    DynamicConvConfig,
    LanguageModel,
    LanguageModelConfig,
    LightConvConfig,
    MixerConfig,
    Seq2SeqConfig,
)
from lightconv.train import CosineConfig, PreparedData, TrainConfig, Trainer, run
from lightconv.train.signals import Stop
from tests.train.examples import prepare

SYMBOLS, LENGTH = 8, 12
LAYERS: dict[str, MixerConfig] = {
    "attention": AttentionConfig(heads=4),
    "conv": ConvConfig(kernel=3),
    "lightconv": LightConvConfig(kernel=3, heads=4),
    "dynamicconv": DynamicConvConfig(kernel=3, heads=4),
    "average": AverageConfig(ffn_dim=32),
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
    trainer.fit(refrain(seed) for seed in range(steps))
    nll = trainer.measure([refrain(10**6, 500)]).nll
    # The first two symbols of each sentence cannot be known.
    return (nll * LENGTH - 2 * math.log(SYMBOLS)) / (LENGTH - 2)


def test_there_is_a_test_for_every_mixer() -> None:
    assert set(LAYERS) == set(MIXERS)


@pytest.mark.parametrize("name", LAYERS)
def test_a_mixer_remembers(name: str) -> None:
    assert learn(LAYERS[name]) < 0.15


def test_without_a_memory_it_cannot_be_learned() -> None:
    assert learn(LightConvConfig(kernel=1, heads=4), steps=40) > 1.5


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_a_whole_run_learns_to_reverse(name: str, tmp_path: Path) -> None:
    """From tokens on the disk to a model folder: perplexity below 1.2, where chance is about 14."""
    task = Synthetic(task="reverse", sentences=400, seed=3)
    data = PreparedData(prepare(tmp_path / "data", task, batches=20))
    layers = (LAYERS[name], LAYERS[name])
    model = Seq2SeqConfig(
        dim=64,
        ffn_dim=128,
        source_heads=4,
        encoder=layers,
        decoder=layers,
        source_vocab=task.vocab,
        target_vocab=task.vocab,
        share_embeddings="all",
    )
    config = TrainConfig(
        max_steps=500,
        tokens_per_update=400,
        max_tokens=500,
        schedule=CosineConfig(peak=3e-3, warmup=100, period=400),
        validate_every=250,
        save_every=250,
    )
    outcome = run(tmp_path / "run", data, model, config, device=torch.device("cpu"), stop=Stop())
    last = outcome.entries[-1]
    assert last["kind"] == "valid"
    assert last["perplexity"] < 1.2
    # What was exported is what was measured.
    loaded = lightconv.load(tmp_path / "run" / "model")
    held_out = replace(task, seed=task.seed + 1).batch(0)
    assert Trainer(loaded, config).measure([held_out]).nll == pytest.approx(last["nll"], rel=1e-5)
