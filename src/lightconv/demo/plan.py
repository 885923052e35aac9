"""What the demo runs for each task: corpora, a small model and a few minutes of training."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lightconv.data.config import TaskConfig
from lightconv.decode import DecodeConfig
from lightconv.models.config import (
    DynamicConvConfig,
    LanguageModelConfig,
    LightConvConfig,
    MixerConfig,
    ModelConfig,
    Seq2SeqConfig,
)
from lightconv.recipe import Recipe
from lightconv.train.config import CosineConfig, TrainConfig

# One letter for the mixer, then the width of its kernel.
_KINDS: dict[str, type[LightConvConfig] | type[DynamicConvConfig]] = {
    "L": LightConvConfig,
    "D": DynamicConvConfig,
}


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large everything is.

    encoder, decoder  one mixer per layer: L3 is a LightConv of width 3, D7 a DynamicConv
    steps, tokens     updates, and target tokens of each
    limit             lines of the test set that are scored; None is all of them
    lengths           at which the operator meets attention, with so many tokens at least
    """

    dim: int = 128
    ffn_dim: int = 512
    heads: int = 4
    encoder: tuple[str, ...] = ()
    decoder: tuple[str, ...]
    steps: int
    tokens: int
    max_tokens: int
    peak: float = 4e-3
    label_smoothing: float = 0.0
    limit: int | None = None
    lengths: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096, 8192)
    length_tokens: int = 2048


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A task: what is shown, on which text, and how large.

    corpora  the real one, and the invented one for machines that cannot fetch it
    vocab    how many byte pairs are learned: few, as so little is read
    max_len  longer examples are left out of training, in tokens
    lead     how many first words of a source of the real corpus are read; None: all
    about    a few words for people
    minutes  what training takes on two cores, roughly
    """

    name: str
    about: str
    corpora: tuple[str, str]
    size: Size
    vocab: int = 4000
    max_len: int = 250
    lead: int | None = None
    minutes: float
    decode: DecodeConfig


PLANS: dict[str, Plan] = {
    "translation": Plan(
        name="translation",
        about="a small translator",
        corpora=("debian-en-de", "synthetic-translation"),
        size=Size(
            # A third layer made every update slower and taught it no more.
            encoder=("L7", "D15"),
            decoder=("L7", "D7"),
            steps=2400,
            # Two batches: one, of sentences about as long as each other, taught it less.
            tokens=900,
            max_tokens=512,
            label_smoothing=0.1,
        ),
        minutes=5,
        # So small a model stops too early and says things twice, as validation data showed.
        decode=DecodeConfig(beam=4, alpha=2.0, max_len_ratio=1.5, max_len_plus=20, block_ngrams=4),
    ),
    "lm": Plan(
        name="lm",
        about="a small language model",
        corpora=("debian-lm", "synthetic-lm"),
        size=Size(dim=192, decoder=("L7", "D15", "D31"), steps=2000, tokens=900, max_tokens=1024),
        minutes=4,
        decode=DecodeConfig(),
    ),
    "summary": Plan(
        name="summary",
        about="a small summariser",
        corpora=("debian-summary", "synthetic-summary"),
        size=Size(
            # With a third layer it begins to look at its source after 1,000 updates, not 400.
            encoder=("L7", "D15"),
            decoder=("L7", "D7"),
            steps=2000,
            tokens=600,
            max_tokens=1000,
        ),
        max_len=500,
        # What it is about stands at the beginning. With all of it, a model did not learn in this
        # time to look at the source at all.
        lead=24,
        minutes=4,
        decode=DecodeConfig(beam=4, alpha=0.9, max_len_plus=30, block_ngrams=3),
    ),
}


def quick(plan: Plan) -> Plan:
    """The same in seconds: it learns nothing, but everything runs."""
    size = replace(
        plan.size,
        dim=32,
        ffn_dim=32,
        heads=2,
        steps=20,
        tokens=128,
        limit=6,
        lengths=(32, 64),
        length_tokens=128,
    )
    return replace(plan, size=size, minutes=0.1)


def make_recipe(plan: Plan, task: TaskConfig, vocab: tuple[int, int], *, shared: bool) -> Recipe:
    """The recipe for data of this task.

    vocab   how many ids source and target have
    shared  whether they are the same vocabulary
    """
    size = plan.size
    return Recipe(
        about=f"demo: {plan.about}",
        task=task,
        model=_model(size, vocab, shared=shared),
        train=TrainConfig(
            max_steps=size.steps,
            tokens_per_update=size.tokens,
            max_tokens=size.max_tokens,
            schedule=CosineConfig(
                peak=size.peak,
                warmup=max(1, size.steps // 16),
                period=size.steps - max(1, size.steps // 16),
            ),
            clip_norm=1.0,
            label_smoothing=size.label_smoothing,
            validate_every=max(1, size.steps // 5),
            save_every=max(1, size.steps // 5),
            log_every=5,
            keep_last=2,
            keep_best=0,
        ),
        decode=plan.decode,
    )


def _model(size: Size, vocab: tuple[int, int], *, shared: bool) -> ModelConfig:
    if not size.encoder:
        return LanguageModelConfig(
            dim=size.dim,
            ffn_dim=size.ffn_dim,
            layers=_layers(size.decoder, size.heads),
            vocab=vocab[-1],
            final_norm=True,
        )
    return Seq2SeqConfig(
        dim=size.dim,
        ffn_dim=size.ffn_dim,
        source_heads=size.heads,
        encoder=_layers(size.encoder, size.heads),
        decoder=_layers(size.decoder, size.heads),
        source_vocab=vocab[0],
        target_vocab=vocab[1],
        share_embeddings="all" if shared else "decoder",
        # Few passes over the data: it learns faster without dropout, and does not learn by heart.
        pre_norm=True,
    )


def _layers(names: Sequence[str], heads: int) -> tuple[MixerConfig, ...]:
    return tuple(_KINDS[name[0]](kernel=int(name[1:]), heads=heads, glu=True) for name in names)
