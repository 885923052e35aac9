"""Pairs of texts that were found side by side: which are translations, and the corpus they make."""

from collections.abc import Iterable, Mapping
from hashlib import file_digest
from pathlib import Path

from lightconv.corpora.splits import Item, divide, letters_and_digits
from lightconv.data.config import BytesConfig, FilterConfig, PipelineConfig, SideConfig, TaskConfig
from lightconv.data.corpus import Corpus

# The longer text over the shorter, in UTF-8 bytes: Chinese needs about as many as English.
_MAX_RATIO = 3.0
# Short ones may differ more: a word by its explanation.
_SHORT = 60
# Fewer are ambiguous out of context: "Line".
_MIN_WORDS = 3

BYTES = BytesConfig(vocab=8000, joint=True)


def is_translation(source: str, target: str) -> bool:
    """Whether English and what stands beside it can be learned from: words, and not the same."""
    if letters_and_digits(source) == letters_and_digits(target):
        return False
    words = [word for word in source.split() if any(map(str.isalpha, word))]
    if len(words) < _MIN_WORDS or not any(map(str.isalpha, target)):
        return False
    shorter, longer = sorted((len(source.encode()), len(target.encode())))
    return longer <= max(_SHORT, _MAX_RATIO * shorter)


def translation_corpus(
    name: str,
    languages: tuple[str, str],
    items: Iterable[Item],
    held_out: float,
    digests: Mapping[str, str],
) -> Corpus:
    """A corpus for translation; one byte-level vocabulary for both languages."""
    source, target = languages
    return Corpus(
        task=TaskConfig(
            kind="translation",
            corpus=name,
            source_lang=source,
            target_lang=target,
            metric="sacrebleu",
        ),
        splits=divide(items, held_out),
        pipeline=PipelineConfig(
            sides=(SideConfig(lang=source), SideConfig(lang=target)), subword=BYTES
        ),
        filters=FilterConfig(max_len=256, max_ratio=4.0),
        digests=digests,
    )


def digests_of(files: Iterable[Path]) -> dict[str, str]:
    """The SHA-256 of each file by its name."""
    found = {}
    for path in files:
        with path.open("rb") as file:
            found[path.name] = file_digest(file, "sha256").hexdigest()
    return found
