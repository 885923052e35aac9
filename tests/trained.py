"""Runs that learned something: a few seconds each, made once in a session of tests."""

from dataclasses import dataclass
from pathlib import Path

from lightconv.corpora.synthetic import Settings, make
from lightconv.data.prepare import prepare
from lightconv.data.prepared import Prepared
from lightconv.decode import DecodeConfig
from lightconv.models import (
    DynamicConvConfig,
    LanguageModelConfig,
    LightConvConfig,
    ModelConfig,
    Seq2SeqConfig,
)
from lightconv.recipe import Recipe
from lightconv.train import InverseSqrtConfig, PreparedData, Run, TrainConfig

TRAIN = TrainConfig(
    max_steps=120,
    tokens_per_update=500,
    max_tokens=600,
    schedule=InverseSqrtConfig(peak=1e-2, warmup=50),
    validate_every=120,
    save_every=40,
    log_every=50,
    keep_last=3,
)
DECODE = DecodeConfig(beam=3, alpha=0.7, max_len_ratio=1.0, max_len_plus=5)


@dataclass(frozen=True)
class Trained:
    """What `lightconv prepare` and `lightconv train` left."""

    data: Path
    run: Path

    @property
    def model(self) -> Path:
        return self.run / "model"

    @property
    def prepared(self) -> Prepared:
        return Prepared.open(self.data)


def pair_config(vocab: tuple[int, int]) -> Seq2SeqConfig:
    """One layer on each side; a copy needs no more."""
    layer = (DynamicConvConfig(kernel=3, heads=2),)
    return Seq2SeqConfig(
        dim=32,
        ffn_dim=32,
        source_heads=2,
        encoder=layer,
        decoder=layer,
        source_vocab=vocab[0],
        target_vocab=vocab[1],
    )


def text_config(vocab: int) -> LanguageModelConfig:
    layer = (LightConvConfig(kernel=5, heads=2),)
    return LanguageModelConfig(dim=32, ffn_dim=32, layers=layer, vocab=vocab)


def train_copies(folder: Path) -> Trained:
    """A model that repeats its words, 2 to 6 of 10 different ones."""
    settings = Settings(train=1500, valid=40, test=30, symbols=10, min_len=2, max_len=6)
    return _train(folder, "synthetic-copy", settings)


def train_texts(folder: Path) -> Trained:
    """A language model of made-up sentences."""
    return _train(folder, "synthetic-lm", Settings(train=600, valid=40, test=30))


def _train(folder: Path, corpus: str, settings: Settings) -> Trained:
    found = Trained(folder / "data", folder / "run")
    data = prepare(make(corpus, settings), found.data, processes=1)
    pairs = len(data.sides) == 2
    model: ModelConfig = (
        pair_config(data.vocab_sizes) if pairs else text_config(data.vocab_sizes[0])
    )
    recipe = Recipe(about="a test", task=data.task, model=model, train=TRAIN, decode=DECODE)
    Run.start(found.run, recipe).train(PreparedData(found.data))
    return found
