"""Small twins of the paper's models, which two processor cores train within hours.

A quarter to half of the width, half the layers, and the paper's proportions between the mixers:
self-attention has 3 + 3 layers, convolutions one encoder layer more.
"""

from dataclasses import replace

from lightconv.data.config import TaskConfig
from lightconv.decode.config import DecodeConfig
from lightconv.models.config import MixerConfig, Seq2SeqConfig
from lightconv.paper import models
from lightconv.paper.models import Models, change, change_both, family, lm_family, resize
from lightconv.paper.tasks import TASKS, Task, ours, translation
from lightconv.train.config import CosineConfig, TrainConfig

WIDTH = 256
_ENCODER_KERNELS = (3, 7, 15, 31)
_DECODER_KERNELS = (3, 7, 15)
# One layer more would be a quarter of the model here, not a sixteenth.
_LM_KERNELS = (15, 31, 63, 63)


def _shrink(attention: Seq2SeqConfig, *, glu: bool) -> Models:
    """The three twins of a self-attention model; a head keeps its width."""
    small = resize(
        attention,
        dim=WIDTH,
        ffn_dim=WIDTH * attention.ffn_dim // attention.dim,
        source_heads=WIDTH * attention.source_heads // attention.dim,
        encoder=attention.encoder[:3],
        decoder=attention.decoder[:3],
        dropout=0.1,
        attention_dropout=0.1,
    )
    return family(
        change_both(small, dropout=0.1),
        glu=glu,
        input_dropout=0.0,
        encoder=_ENCODER_KERNELS,
        decoder=_DECODER_KERNELS,
    )


def narrow(model: Seq2SeqConfig, decoder: int) -> Seq2SeqConfig:
    """The twin of a model for WMT En-De: a quarter of the width, the first layers of each stack.

    decoder  layers of the decoder that stay; of the encoder, half of them stay, rounded up
    """
    return replace(
        model,
        dim=model.dim // 4,
        ffn_dim=model.ffn_dim // 4,
        source_heads=model.source_heads // 4,
        encoder=tuple(map(_narrow_layer, model.encoder[: (len(model.encoder) + 1) // 2])),
        decoder=tuple(map(_narrow_layer, model.decoder[:decoder])),
        dropout=0.1,
        input_dropout=0.0,
    )


def _narrow_layer(layer: MixerConfig) -> MixerConfig:
    """A quarter of the heads, so that each keeps its width, and of an inner layer."""
    found = {name: getattr(layer, name, None) for name in ("heads", "ffn_dim")}
    return replace(layer, **{name: size // 4 for name, size in found.items() if size is not None})


_SMALL_LM = replace(
    models.BILLION_WORD,
    dim=WIDTH,
    ffn_dim=4 * WIDTH,
    layers=change(models.BILLION_WORD.layers[:4], heads=4),
)
# The corpora that anyone can fetch: one vocabulary of 8000 byte pairs each.
_DEBIAN = replace(models.EN_DE, source_vocab=8000, target_vocab=8000)

SMALL_MODELS: dict[str, Models] = {
    "iwslt-de-en": _shrink(models.IWSLT, glu=False),
    "wmt-en-de": _shrink(models.EN_DE, glu=True),
    "wmt-en-fr": _shrink(models.EN_FR, glu=True),
    "wmt-zh-en": _shrink(models.ZH_EN, glu=True),
    "billion-word": lm_family(_SMALL_LM, _LM_KERNELS),
    "cnn-dailymail": _shrink(models.CNN_DAILYMAIL, glu=False),
    "debian-en-de": _shrink(_DEBIAN, glu=True),
    "debian-lm": lm_family(replace(_SMALL_LM, vocab=8000, adaptive=None), _LM_KERNELS),
    "debian-summary": _shrink(_DEBIAN, glu=False),
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
