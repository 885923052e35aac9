"""Tasks of the demo: corpora, a small model, a few minutes of training, and their words."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lightconv.data.config import TaskConfig
from lightconv.decode import DecodeConfig
from lightconv.fitting.plan import make_mixers
from lightconv.models.config import LanguageModelConfig, ModelConfig, Seq2SeqConfig
from lightconv.recipe import Recipe
from lightconv.train.config import CosineConfig, TrainConfig


@dataclass(frozen=True, kw_only=True)
class DemoPlan:
    """A task, its text and its size.

    corpora           the real corpus, and the synthetic one for machines that cannot fetch it
    encoder, decoder  mixers of the layers: L3 is a LightConv of width 3, D7 a DynamicConv
    tokens            target tokens of an update
    lead              first words of a source of the real corpus that are read; None: all
    minutes           training time on two cores, roughly
    limit             lines of the test set that are scored; None: all
    lengths           of sequences for the operator, with `length_tokens` or more in all
    """

    about: str
    kind: str
    corpora: tuple[str, str]
    dim: int = 128
    ffn_dim: int = 512
    heads: int = 4
    encoder: tuple[str, ...] = ("L7", "D15")
    decoder: tuple[str, ...] = ("L7", "D7")
    steps: int = 2000
    tokens: int
    max_tokens: int
    label_smoothing: float = 0.0
    vocab: int = 4000
    max_len: int = 250
    lead: int | None = None
    minutes: float = 4
    decode: DecodeConfig
    limit: int | None = None
    lengths: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096, 8192)
    length_tokens: int = 2048


# With a third layer a translator learned no more in this time, and a summariser began to attend to
# its source after 1,000 updates, not 400.
PLANS: dict[str, DemoPlan] = {
    "translation": DemoPlan(
        about="a small translator",
        kind="translation",
        corpora=("debian-en-de", "synthetic-translation"),
        steps=2400,
        # Two batches: with one, of sentences of similar length, it learned less.
        tokens=900,
        max_tokens=512,
        label_smoothing=0.1,
        minutes=5,
        # On validation data, so small a model stopped too early and repeated itself.
        decode=DecodeConfig(beam=4, alpha=2.0, max_len_ratio=1.5, max_len_plus=20, block_ngrams=4),
    ),
    "lm": DemoPlan(
        about="a small language model",
        kind="language_model",
        corpora=("debian-lm", "synthetic-lm"),
        dim=192,
        encoder=(),
        decoder=("L7", "D15", "D31"),
        tokens=900,
        max_tokens=1024,
        decode=DecodeConfig(),
    ),
    "summary": DemoPlan(
        about="a small summariser",
        kind="summarization",
        corpora=("debian-summary", "synthetic-summary"),
        tokens=600,
        max_tokens=1000,
        max_len=500,
        # With the whole text, a model did not learn in this time to attend to it at all.
        lead=24,
        decode=DecodeConfig(beam=4, alpha=0.9, max_len_plus=30, block_ngrams=3),
    ),
}

# Names of the first score, of the source, and of baselines.
METRICS = {"translation": "BLEU", "lm": "perplexity per subword", "summary": "ROUGE-L"}
SOURCES = {"translation": "source", "lm": "begin", "summary": "text"}
BASELINES = {
    ("translation", "copy"): "copying the source",
    ("translation", "nearest"): "the translation of the nearest training sentence",
    ("lm", "unigram"): "counting words",
    ("summary", "lead"): "the first words",
    ("summary", "nearest"): "the summary of the nearest training text",
}


def quick(plan: DemoPlan) -> DemoPlan:
    """The plan in seconds: the model learns nothing, but everything runs."""
    small = replace(plan, dim=32, ffn_dim=32, heads=2, steps=20, tokens=128, minutes=0.1)
    return replace(small, limit=6, lengths=(32, 64), length_tokens=128)


def make_recipe(plan: DemoPlan, task: TaskConfig, vocab: tuple[int, ...], shared: bool) -> Recipe:
    """The recipe for data with these vocabulary sizes, `shared` or not."""
    warmup, fifth = max(1, plan.steps // 16), max(1, plan.steps // 5)
    train = TrainConfig(
        max_steps=plan.steps,
        tokens_per_update=plan.tokens,
        max_tokens=plan.max_tokens,
        schedule=CosineConfig(peak=4e-3, warmup=warmup, period=plan.steps - warmup),
        clip_norm=1.0,
        label_smoothing=plan.label_smoothing,
        validate_every=fifth,
        save_every=fifth,
        log_every=5,
        keep_last=2,
        keep_best=0,
    )
    encoder, decoder = (make_mixers(names, plan.heads) for names in (plan.encoder, plan.decoder))
    sizes: dict[str, Any] = {"dim": plan.dim, "ffn_dim": plan.ffn_dim}
    # Few passes over the data: it learns faster without dropout, and does not overfit.
    model: ModelConfig = (
        Seq2SeqConfig(
            **sizes,
            source_heads=plan.heads,
            encoder=encoder,
            decoder=decoder,
            source_vocab=vocab[0],
            target_vocab=vocab[1],
            share_embeddings="all" if shared else "decoder",
            pre_norm=True,
        )
        if encoder
        else LanguageModelConfig(**sizes, layers=decoder, vocab=vocab[-1], final_norm=True)
    )
    return Recipe(
        about=f"demo: {plan.about}", task=task, model=model, train=train, decode=plan.decode
    )


def headline(task: str, results: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Systems and their first score, the model first; perplexity is that of a subword."""
    found = []
    for system, (score, *_) in results["scores"].items():
        value = score["parts"].get("per_subword", score["value"])
        found.append((BASELINES.get((task, system), "the model"), float(value)))
    return found
