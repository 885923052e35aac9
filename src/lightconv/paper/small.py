"""Small twins of the paper's models, which two processor cores train within hours.

A quarter to half of the width, half the layers, and the paper's proportions between the mixers:
self-attention has 3 + 3 layers, convolutions one encoder layer more.
"""

from dataclasses import replace
from typing import TypeVar

from lightconv.data.config import TaskConfig
from lightconv.decode.config import DecodeConfig
from lightconv.models.config import MixerConfig, ModelConfig, Seq2SeqConfig
from lightconv.paper.rows import BILLION_WORD, EN_DE, MODELS, Models, change, family, lm_family
from lightconv.paper.tasks import TASKS, Task, ours, translation
from lightconv.train.config import CosineConfig, TrainConfig

WIDTH = 256
_SIZES = ("heads", "source_heads", "ffn_dim")
_RATES = ("dropout", "attention_dropout", "dropconnect")
# One layer more would be a quarter of the model here, not a sixteenth.
_LM_KERNELS = (15, 31, 63, 63)
Config = TypeVar("Config", MixerConfig, Seq2SeqConfig)


def shrink(model: ModelConfig, decoder: int = 3) -> Seq2SeqConfig:
    """The twin of a model: its heads keep their width, half of the layers stay.

    decoder  layers of the decoder that stay; of the encoder, half of them, rounded up
    """
    assert isinstance(model, Seq2SeqConfig)
    encoder = model.encoder[: (len(model.encoder) + 1) // 2]
    return replace(
        _scale(model, model.dim),
        dim=WIDTH,
        encoder=tuple(_scale(layer, model.dim) for layer in encoder),
        decoder=tuple(_scale(layer, model.dim) for layer in model.decoder[:decoder]),
        input_dropout=0.0,
    )


def _scale(config: Config, dim: int) -> Config:
    """Sizes in proportion to the width, dropout of at most 0.1."""
    values = vars(config)
    sizes = {n: WIDTH * values[n] // dim for n in _SIZES if n in values}
    return replace(config, **sizes, **{n: min(values[n], 0.1) for n in _RATES if n in values})


def _shrink_all(models: Models) -> Models:
    return {mixer: shrink(model) for mixer, model in models.items()}


_SMALL_LM = replace(
    BILLION_WORD,
    dim=WIDTH,
    ffn_dim=4 * WIDTH,
    layers=change(BILLION_WORD.layers[:4], heads=4),
)
# The corpora that anyone can fetch: one vocabulary of 8000 byte pairs each.
_DEBIAN = replace(EN_DE, source_vocab=8000, target_vocab=8000)

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
_LM_TRAIN = replace(_TRAIN, label_smoothing=0.0)
# Sources are several times as long as summaries.
_SUMMARY_TRAIN = replace(_TRAIN, tokens_per_update=1024, max_tokens=4096, label_smoothing=0.0)
_SOURCES = {
    "model": ours(f"a small twin: width {WIDTH}, few layers, the paper's proportions"),
    "train": ours("a short run on a processor: Adam and one cosine for every task"),
}


def _twin(task: str, train: TrainConfig) -> Task:
    """A task of the paper with a short training and the same search."""
    full = TASKS[task]
    searched = {path: source for path, source in full.sources.items() if path.startswith("decode")}
    return replace(full, train=train, sources={**_SOURCES, **searched})


def _debian(title: str, task: TaskConfig, train: TrainConfig, decode: DecodeConfig) -> Task:
    sources = {**_SOURCES, "decode": ours("no task of the paper")}
    return Task(title=title, task=task, train=train, decode=decode, sources=sources)


SMALL_TASKS: dict[str, Task] = {
    **{task: _twin(task, _TRAIN) for task in TASKS if TASKS[task].task.kind == "translation"},
    "billion-word": _twin("billion-word", _LM_TRAIN),
    "cnn-dailymail": _twin("cnn-dailymail", _SUMMARY_TRAIN),
    "debian-en-de": _debian(
        "Debian texts: English-German translation",
        translation("debian-en-de", "sacrebleu"),
        _TRAIN,
        DecodeConfig(beam=5, alpha=1.0),
    ),
    "debian-lm": _debian(
        "Debian texts: language modelling",
        TaskConfig(kind="language_model", corpus="debian-lm", metric="perplexity"),
        _LM_TRAIN,
        DecodeConfig(),
    ),
    "debian-summary": _debian(
        "Debian texts: summarisation",
        TaskConfig(kind="summarization", corpus="debian-summary", metric="rouge"),
        _SUMMARY_TRAIN,
        DecodeConfig(beam=5, length_penalty="stepwise", alpha=0.9, max_len_plus=50, block_ngrams=3),
    ),
}
