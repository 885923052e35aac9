"""Small twins of the paper's models, which two processor cores train within hours.

A quarter to half of the width, half the layers, and the paper's proportions between the mixers:
self-attention has 3 + 3 layers, convolutions one encoder layer more.
"""

from dataclasses import replace

from lightconv.data.config import TaskConfig
from lightconv.decode import DecodeConfig
from lightconv.models.config import MixerConfig, ModelConfig, Seq2SeqConfig
from lightconv.paper import models
from lightconv.paper.models import (
    ABLATION,
    DECODERS,
    NORMALIZATIONS,
    Models,
    change,
    change_both,
    family,
    lm_family,
    resize,
)
from lightconv.paper.setups import SETUPS, Setup
from lightconv.paper.sources import ours
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


def narrow(model: ModelConfig, decoder: int = 3) -> Seq2SeqConfig:
    """The twin of any model for WMT En-De: the first layers of each stack, a quarter of the width.

    decoder  how many of its decoder's layers stay; of an encoder half, rounded up
    """
    assert isinstance(model, Seq2SeqConfig)
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
    models.LM_SELFATTENTION,
    dim=WIDTH,
    ffn_dim=4 * WIDTH,
    layers=change(models.LM_SELFATTENTION.layers[:4], heads=4),
)
# The corpora that anyone can fetch: one vocabulary of 8000 byte pairs each.
_DEBIAN = replace(models.SELFATTENTION, source_vocab=8000, target_vocab=8000)

SMALL_MODELS: dict[str, Models] = {
    "iwslt-de-en": _shrink(models.IWSLT_SELFATTENTION, glu=False),
    "wmt-en-de": _shrink(models.SELFATTENTION, glu=True),
    "wmt-en-fr": _shrink(models.EN_FR_SELFATTENTION, glu=True),
    "wmt-zh-en": _shrink(models.ZH_EN_SELFATTENTION, glu=True),
    "billion-word": lm_family(_SMALL_LM, _LM_KERNELS),
    "cnn-dailymail": _shrink(models.SUMMARY_SELFATTENTION, glu=False),
    "debian-en-de": _shrink(_DEBIAN, glu=True),
    "debian-lm": lm_family(replace(_SMALL_LM, vocab=8000, adaptive=None), _LM_KERNELS),
    "debian-summary": _shrink(_DEBIAN, glu=False),
}

# The rows of tables 3, 6 and 7, by the middle of their names.
SMALL_ROWS: dict[str, Models] = {
    "ablation": {row: narrow(model) for row, model in ABLATION.items()},
    "normalize": {row: narrow(model) for row, model in NORMALIZATIONS.items()},
    # These differ in the depth of their decoders, which stays what it is.
    "decoder": {row: narrow(model, decoder=6) for row, model in DECODERS.items()},
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
# Sources are several times as long as what is learned to be written.
_SUMMARY_TRAIN = replace(_TRAIN, tokens_per_update=1024, max_tokens=4096, label_smoothing=0.0)
_SOURCES = {
    "model": ours(f"a small twin: width {WIDTH}, few layers, the paper's proportions"),
    "train": ours("a short run on a processor: Adam and one cosine for every task"),
}


def _twin(task: str, train: TrainConfig) -> Setup:
    """A task of the paper, trained briefly; the search stays as it is."""
    full = SETUPS[task]
    searched = {path: source for path, source in full.sources.items() if path.startswith("decode")}
    return replace(full, train=train, sources={**_SOURCES, **searched})


def _debian(title: str, task: TaskConfig, train: TrainConfig, decode: DecodeConfig) -> Setup:
    return Setup(
        title=title,
        task=task,
        train=train,
        decode=decode,
        sources={**_SOURCES, "decode": ours("no task of the paper")},
    )


SMALL_SETUPS: dict[str, Setup] = {
    **{task: _twin(task, _TRAIN) for task in SETUPS if SETUPS[task].task.kind == "translation"},
    "billion-word": _twin("billion-word", _LM_TRAIN),
    "cnn-dailymail": _twin("cnn-dailymail", _SUMMARY_TRAIN),
    "debian-en-de": _debian(
        "Debian texts: English-German translation",
        TaskConfig(
            kind="translation",
            corpus="debian-en-de",
            source_lang="en",
            target_lang="de",
            metric="sacrebleu",
        ),
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
