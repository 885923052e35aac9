"""Small runs to train: a prepared folder of a synthetic task, a recipe, and what a run leaves."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lightconv.config import to_json
from lightconv.data import EOS, PAD, SPECIALS, Batch, StoreWriter, TaskConfig, Vocabulary
from lightconv.models import (
    DynamicConvConfig,
    LanguageModelConfig,
    LightConvConfig,
    MixerConfig,
    ModelConfig,
    Seq2SeqConfig,
)
from lightconv.recipe import Recipe
from lightconv.train import InverseSqrtConfig, TrainConfig
from lightconv.train.checkpoints import Checkpoints
from lightconv.train.log import read_log


@dataclass(frozen=True)
class Symbols:
    """Endless batches of random symbols and the same reversed; batch i depends on (seed, i)."""

    symbols: int = 16
    min_len: int = 5
    max_len: int = 12
    sentences: int = 64
    seed: int = 0
    step: int = -1  # 1 copies

    @property
    def vocab(self) -> int:
        return SPECIALS + self.symbols

    def batch(self, index: int) -> Batch:
        random = np.random.default_rng([self.seed, index])
        lengths = random.integers(self.min_len, self.max_len, size=self.sentences, endpoint=True)
        sources = [random.integers(SPECIALS, self.vocab, size=n).tolist() for n in lengths]
        targets = [source[:: self.step] for source in sources]
        source, target = (pad([*row, EOS] for row in rows) for rows in (sources, targets))
        return Batch((source, pad([EOS, *row] for row in targets)), target)

    def __iter__(self) -> Iterator[Batch]:
        return map(self.batch, itertools.count())


def pad(rows: Iterable[list[int]]) -> Tensor:
    return pad_sequence(list(map(torch.tensor, rows)), batch_first=True, padding_value=PAD)


DATA = Symbols(symbols=8, min_len=2, max_len=6, sentences=16, seed=5)
# One layer of each convolution, everything random in it switched on.
MIXERS: tuple[MixerConfig, ...] = (
    LightConvConfig(kernel=3, heads=2, dropconnect=0.1),
    DynamicConvConfig(kernel=3, heads=2, dropconnect=0.1),
)


def model_config(**changes: Any) -> Seq2SeqConfig:
    """Two layers on each side, width 16, with every dropout."""
    config = Seq2SeqConfig(
        dim=16,
        ffn_dim=32,
        source_heads=2,
        encoder=MIXERS,
        decoder=MIXERS,
        source_vocab=DATA.vocab,
        target_vocab=DATA.vocab,
        share_embeddings="all",
        dropout=0.1,
        attention_dropout=0.1,
        activation_dropout=0.1,
    )
    return replace(config, **changes)


def small_config() -> Seq2SeqConfig:
    """One layer on each side, width 8, nothing random: an update takes a few milliseconds."""
    layers = (DynamicConvConfig(kernel=3, heads=2),)
    rates = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
    return model_config(dim=8, ffn_dim=8, encoder=layers, decoder=layers, **rates)


def lm_config(**changes: Any) -> LanguageModelConfig:
    """A language model of the same size."""
    config = LanguageModelConfig(dim=16, ffn_dim=32, layers=MIXERS, vocab=DATA.vocab, dropout=0.1)
    return replace(config, **changes)


def train_config(**changes: Any) -> TrainConfig:
    """40 updates of two or three micro-batches each: three of them are about an epoch."""
    fields: dict[str, Any] = {
        **{"max_steps": 40, "tokens_per_update": 120, "max_tokens": 60, "label_smoothing": 0.1},
        **{"validate_every": 10, "save_every": 5, "log_every": 4, "keep_last": 3},
        "schedule": InverseSqrtConfig(peak=3e-3, warmup=10),
    }
    return TrainConfig(**fields | changes)


def recipe(model: ModelConfig | None = None, **changes: Any) -> Recipe:
    """The recipe of `model_config` and `train_config`, whose fields may be changed."""
    return Recipe(
        about="a small run",
        task=TaskConfig(kind="translation", corpus="synthetic", metric="none"),
        model=model or model_config(),
        train=train_config(**changes),
    )


def write_recipe(path: Path, model: ModelConfig | None = None, **changes: Any) -> Path:
    """A file for `lightconv train`."""
    path.write_text(to_json(recipe(model, **changes)))
    return path


def prepare(folder: Path, data: Symbols = DATA, *, batches: int = 5, text: bool = False) -> Path:
    """What `lightconv prepare` leaves: splits and a vocabulary.

    text  one side only, the targets
    """
    sides = {"text": data.vocab} if text else {"source": data.vocab, "target": data.vocab}
    for split, seed, count in (("train", data.seed, batches), ("valid", data.seed + 1, 1)):
        with StoreWriter(folder, split, sides) as writer:
            for batch in islice(replace(data, seed=seed), count):
                parts = (batch.target,) if text else (batch.inputs[0], batch.target)
                writer.append(*([_bare(row) for row in part.tolist()] for part in parts))
    Vocabulary.of(f"s{i}" for i in range(data.symbols)).save(folder / "vocab.txt")
    return folder


def _bare(row: list[int]) -> list[int]:
    """A sentence without padding and without its EOS."""
    return [token for token in row if token != PAD][:-1]


def fingerprint(run: Path) -> dict[str, Any]:
    """All that a run leaves, without times: equal for runs that are equal bit for bit."""
    checkpoints = Checkpoints(run / "checkpoints")
    found: dict[str, Any] = {"steps": checkpoints.steps(), "best": checkpoints.ranking()[:1]}
    for step in checkpoints.steps():
        checkpoint = checkpoints.load(step)
        for part, tensors in checkpoint.tensors.items():
            digest = hashlib.sha256()
            for name in sorted(tensors):
                digest.update(f"{name} {tensors[name].dtype} {list(tensors[name].shape)}".encode())
                digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
            found[f"{step} {part}"] = digest.hexdigest()
        found[f"{step} values"] = _without_times(checkpoint.values)
        found[f"{step} score"] = checkpoint.score
    found["log"] = [_without_times(entry) for entry in read_log(run / "log.jsonl")]
    for path in sorted((run / "model").iterdir()):
        found[f"model {path.name}"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def _without_times(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    times = ("seconds", "tokens_per_second")
    return {key: _without_times(item) for key, item in value.items() if key not in times}
