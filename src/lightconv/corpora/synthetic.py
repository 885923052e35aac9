"""Corpora that are made up: the same on every machine, for tests and for demos without a mirror.

`make("synthetic-reverse", Settings(train=1000))` gives any size and seed.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from lightconv.config import check_counts, check_from_zero
from lightconv.corpora import Progress
from lightconv.corpora.invented import Languages
from lightconv.corpora.splits import split_of
from lightconv.corpora.stories import document, sentence
from lightconv.data.config import BytesConfig, PipelineConfig, SideConfig, TaskConfig, WordsConfig
from lightconv.data.corpus import SPLITS, Corpus, Example, Reader

Make = Callable[[Random], Example]
# Of all possible texts, the share that is for validation alone, and the same for test.
_HELD_OUT = 0.1
# So many in a row that belong to another split mean that there are too few to choose from.
_MAX_MISSES = 10_000
# Codes that are left free for languages without one.
_LANGUAGES = ("qaa", "qab")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How much is made up, and from which seed."""

    train: int = 20_000
    valid: int = 500
    test: int = 500
    seed: int = 0
    # Copy and reversal: how many different words there are, and how many a text has.
    symbols: int = 50
    min_len: int = 3
    max_len: int = 15

    def __post_init__(self) -> None:
        check_counts(self, "train", "valid", "test", "symbols", "min_len", "max_len")
        check_from_zero(self, "seed")
        if self.min_len > self.max_len:
            raise ValueError(f"min_len={self.min_len} must not be above max_len={self.max_len}")


def make(name: str, settings: Settings | None = None) -> Corpus:
    """The corpus of that name; example i of a split depends on the settings and i alone."""
    return _CORPORA[name](settings or _DEFAULTS.get(name, Settings()))


def _open(name: str, source: Path | None, cache: Path, progress: Progress) -> Corpus:
    return make(name)


translation = partial(_open, "synthetic-translation")
copy = partial(_open, "synthetic-copy")
reverse = partial(_open, "synthetic-reverse")
lm = partial(_open, "synthetic-lm")
summary = partial(_open, "synthetic-summary")


def _translation(settings: Settings) -> Corpus:
    return Corpus(
        task=_pair_task("synthetic-translation"),
        splits=_splits(Languages(settings.seed).sentence, settings),
        # Endings are for subwords to find.
        pipeline=PipelineConfig(sides=_pair_sides(), subword=BytesConfig(vocab=1000)),
    )


def _symbols(name: str, step: int, settings: Settings) -> Corpus:
    return Corpus(
        task=_pair_task(name),
        splits=_splits(partial(_random_symbols, settings, step), settings),
        pipeline=PipelineConfig(sides=_pair_sides(), subword=WordsConfig()),
    )


def _lm(settings: Settings) -> Corpus:
    return Corpus(
        task=TaskConfig(kind="language_model", corpus="synthetic-lm", metric="perplexity"),
        splits=_splits(_sentence, settings),
        pipeline=PipelineConfig(sides=(SideConfig(lang="en"),), subword=WordsConfig()),
    )


def _summary(settings: Settings) -> Corpus:
    sides = (SideConfig(lang="en", truncate=400), SideConfig(lang="en"))
    return Corpus(
        task=TaskConfig(kind="summarization", corpus="synthetic-summary", metric="rouge"),
        splits=_splits(document, settings),
        pipeline=PipelineConfig(sides=sides, subword=WordsConfig()),
    )


# A document takes as long as twenty sentences.
_DEFAULTS = {"synthetic-summary": Settings(train=5000)}
_CORPORA: Mapping[str, Callable[[Settings], Corpus]] = {
    "synthetic-translation": _translation,
    "synthetic-copy": partial(_symbols, "synthetic-copy", 1),
    "synthetic-reverse": partial(_symbols, "synthetic-reverse", -1),
    "synthetic-lm": _lm,
    "synthetic-summary": _summary,
}


def _pair_task(name: str) -> TaskConfig:
    source, target = _LANGUAGES
    return TaskConfig(
        kind="translation", corpus=name, source_lang=source, target_lang=target, metric="sacrebleu"
    )


def _pair_sides() -> tuple[SideConfig, ...]:
    return tuple(SideConfig(lang=lang) for lang in _LANGUAGES)


def _sentence(random: Random) -> Example:
    return (sentence(random),)


def _random_symbols(settings: Settings, step: int, random: Random) -> Example:
    """Random words w0, w1, ... and every `step`-th of them: 1 copies, -1 reverses."""
    lengths = settings.max_len - settings.min_len + 1
    length = settings.min_len + int(lengths * random.random())
    words = [f"w{int(settings.symbols * random.random())}" for _ in range(length)]
    return " ".join(words), " ".join(words[::step])


def _splits(make_one: Make, settings: Settings) -> dict[str, Reader]:
    return {split: partial(_examples, make_one, settings, split) for split in SPLITS}


def _examples(make_one: Make, settings: Settings, split: str) -> Iterator[Example]:
    """Examples from a stream of the split's own, as far as their texts belong to it.

    Which split a text belongs to is its hash's affair, so no text is in two.
    """
    random = Random(f"{split} {settings.seed}")
    for _ in range(getattr(settings, split)):
        for _ in range(_MAX_MISSES):
            example = make_one(random)
            if split_of(example[0], _HELD_OUT) == split:
                yield example
                break
        else:
            raise ValueError(
                f"too few different texts for a {split} split of their own: symbols="
                f"{settings.symbols}, max_len={settings.max_len}. Raise one of them"
            )
