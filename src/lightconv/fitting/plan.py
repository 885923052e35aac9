"""Choices of `fit`: model, schedule and search for the text, the time and the machine's speed.

A model of a size beats the smaller ones once it has read 1.5 target tokens for each of its
parameters: the largest such size is taken. Settings for little text: norms before the layers, a
high rate that falls to zero along a cosine, dropout only once the text is read again and again, the
last checkpoints averaged.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lightconv.corpora.own import METRICS
from lightconv.data.config import TaskConfig, TaskKind
from lightconv.decode import DecodeConfig
from lightconv.models.config import (
    DynamicConvConfig,
    LanguageModelConfig,
    LightConvConfig,
    ModelConfig,
    Seq2SeqConfig,
)
from lightconv.recipe import Recipe
from lightconv.train.config import CosineConfig, Precision, TrainConfig

# The letter of a mixer; the width of its kernel follows it.
_KINDS: dict[str, type[LightConvConfig] | type[DynamicConvConfig]] = {
    "L": LightConvConfig,
    "D": DynamicConvConfig,
}


@dataclass(frozen=True)
class Size:
    """Width, learning rate, heads, and mixers: L7 is a LightConv of width 7, D15 a DynamicConv."""

    dim: int
    peak: float
    heads: int
    encoder: str
    decoder: str
    layers: str


SIZES = {
    "nano": Size(64, 6e-3, 4, "D7", "D7", "D15"),
    "tiny": Size(128, 4e-3, 4, "L7 D15", "L7 D7", "L7 D15"),
    "small": Size(192, 3e-3, 8, "L3 L7 D15", "L3 L7 D15", "L7 D15 D31"),
    "medium": Size(256, 2.5e-3, 8, "L3 D7 D15 D15", "L3 D7 D15 D15", "L7 D15 D31 D31"),
    "large": Size(512, 1.2e-3, 8, "L3 D7 D15 D31 D31 D31", "L3 D7 D15 D31 D31", "L7" + " D31" * 7),
}
# Target tokens that a model reads for each of its parameters, at least.
TOKENS_PER_PARAMETER = 1.5
# Updates of a run, and the target tokens of one, as the time allows.
UPDATES, TOKENS = 3000, (900, 4096)
# Positions of a batch over the target tokens of an update: two batches, whose lengths differ,
# teach more than one; the sources of summaries are long.
POSITIONS: dict[TaskKind, float] = {"translation": 0.6, "language_model": 1, "summarization": 1.7}
# Dropout once the text is read so many times.
DROPOUT = ((4, 0.0), (12, 0.1), (40, 0.2))
SAVES, LOGS, AVERAGED = 20, 40, 3

SEARCH: dict[TaskKind, DecodeConfig] = {
    "translation": DecodeConfig(
        beam=4, alpha=1.0, max_len_ratio=1.5, max_len_plus=20, block_ngrams=4
    ),
    "language_model": DecodeConfig(),
    "summarization": DecodeConfig(beam=4, alpha=0.9, max_len_plus=30, block_ngrams=3),
}


def make_model(
    size: str, kind: TaskKind, vocab: tuple[int, int], *, shared: bool = True, dropout: float = 0.0
) -> ModelConfig:
    """The model of this size; `shared` if source and target have one vocabulary."""
    found = SIZES[size]

    def mixers(names: str) -> Any:
        each = [(_KINDS[name[0]], int(name[1:])) for name in names.split()]
        return tuple(mixer(kernel=kernel, heads=found.heads, glu=True) for mixer, kernel in each)

    sizes: dict[str, Any] = {"dim": found.dim, "ffn_dim": 4 * found.dim, "dropout": dropout}
    if kind == "language_model":
        layers = mixers(found.layers)
        return LanguageModelConfig(**sizes, layers=layers, vocab=vocab[-1], final_norm=True)
    return Seq2SeqConfig(
        **sizes,
        source_heads=found.heads,
        encoder=mixers(found.encoder),
        decoder=mixers(found.decoder),
        source_vocab=vocab[0],
        target_vocab=vocab[1],
        share_embeddings="all" if shared else "decoder",
        pre_norm=True,
    )


def make_training(
    size: str,
    kind: TaskKind,
    *,
    steps: int = UPDATES,
    tokens: int = 2000,
    precision: Precision = "fp32",
) -> TrainConfig:
    """Training of so many updates of about so many target tokens."""
    every = max(1, steps // SAVES)
    train = TrainConfig(
        max_steps=steps,
        tokens_per_update=tokens,
        # A line may have a thousand tokens.
        max_tokens=max(1024 if kind != "translation" else 512, round(tokens * POSITIONS[kind])),
        schedule=CosineConfig(peak=SIZES[size].peak, warmup=1, period=1),
        clip_norm=1.0,
        label_smoothing=0.1 if kind == "translation" else 0.0,
        precision=precision,
        validate_every=max(1, steps // 5),
        save_every=every,
        log_every=10,
        keep_last=AVERAGED + 1,
        average_last=AVERAGED,
    )
    return set_steps(train, steps)


def set_steps(train: TrainConfig, steps: int) -> TrainConfig:
    """The same training with another number of updates, at whose end the rate is zero."""
    warmup = max(1, steps // 16)
    schedule = CosineConfig(peak=train.schedule.peak, warmup=warmup, period=max(1, steps - warmup))
    return replace(train, max_steps=steps, schedule=schedule)


def choose_dropout(epochs: float) -> float:
    return next((dropout for most, dropout in DROPOUT if epochs < most), 0.3)


def choose_tokens(whole: float) -> int:
    """Target tokens of an update, if training reads so many in all."""
    return int(min(max(TOKENS[0], whole / UPDATES), TOKENS[1])) // 100 * 100


def named_recipe(size: str, kind: TaskKind) -> Recipe:
    """A recipe of fixed length for text of one's own; vocabulary and languages come from data."""
    steps, warmup, vocab = 4000, 400, 6000
    train = make_training(size, kind, steps=steps, tokens=2048)
    peak = min(2e-3, train.schedule.peak)
    schedule = CosineConfig(peak=peak, warmup=warmup, period=steps - warmup)
    return Recipe(
        about=f"{size} model of your own text, width {SIZES[size].dim}",
        task=TaskConfig(kind=kind, corpus="own", metric=METRICS[kind]),
        model=make_model(size, kind, (vocab, vocab), dropout=0.2),
        train=replace(train, schedule=schedule),
        decode=SEARCH[kind],
        sources=dict.fromkeys(("model", "train", "decode"), "ours, for little text"),
    )


_KIND_OF: dict[str, TaskKind] = {
    "translation": "translation",
    "text": "language_model",
    "summary": "summarization",
}
OWN: Mapping[str, Recipe] = {
    f"own-{name}{end}": named_recipe(size, kind)
    for name, kind in _KIND_OF.items()
    for end, size in (("", "medium"), ("-small", "small"))
}
