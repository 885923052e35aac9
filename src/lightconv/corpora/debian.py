"""Corpora of package descriptions: four for translation, one of summaries, one of sentences."""

import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from lightconv.corpora import Progress
from lightconv.corpora.apt import fetch_indices
from lightconv.corpora.descriptions import Description, read_descriptions, sentences, units
from lightconv.corpora.pairs import BYTES, digests_of, is_translation, translation_corpus
from lightconv.corpora.splits import Item, divide, package_stem
from lightconv.data.config import FilterConfig, PipelineConfig, SideConfig, TaskConfig
from lightconv.data.corpus import Corpus, Example

# The share of the stems in validation and in test: one to two thousand lines each.
_HELD_OUT = {"de": 0.05, "fr": 0.03, "it": 0.0125, "da": 0.0125}
_SUMMARY_HELD_OUT = 0.025
_SENTENCES_HELD_OUT = 0.0125


def _translation(language: str, source: Path | None, cache: Path, progress: Progress) -> Corpus:
    """Synopses and paragraphs, English to `language`."""
    files = fetch_indices(cache, ["en", language], progress)
    english = {d.digest: d for d in read_descriptions(files["en"], "en")}
    items = _aligned(english, read_descriptions(files[language], language))
    return translation_corpus(
        f"debian-en-{language}",
        ("en", language),
        items,
        _HELD_OUT[language],
        digests_of([*files["en"], *files[language]]),
    )


en_de = partial(_translation, "de")
en_fr = partial(_translation, "fr")
en_it = partial(_translation, "it")
en_da = partial(_translation, "da")


def _aligned(
    english: dict[str, Description], translations: Iterable[Description]
) -> Iterator[Item]:
    """Synopsis to synopsis, then part by part wherever both texts have the same number of them."""
    for other in translations:
        if (original := english.get(other.digest)) is None:
            continue
        pairs = [(original.synopsis, other.synopsis)]
        if len(original.paragraphs) == len(other.paragraphs):
            for ours, theirs in zip(original.paragraphs, other.paragraphs, strict=True):
                parts, their_parts = units(ours), units(theirs)
                if len(parts) == len(their_parts):
                    pairs += zip(parts, their_parts, strict=True)
        yield from _items(other.package, (pair for pair in pairs if is_translation(*pair)))


def _items(package: str, examples: Iterable[Example]) -> Iterator[Item]:
    """Examples of one package: its family stays together, its name is no part of a template."""
    group = package_stem(package)
    names = tuple(word for word in re.split(r"[^a-z0-9]+", package.lower()) if len(word) > 2)
    for example in examples:
        yield Item(example, group, (group, *names))


def summary(source: Path | None, cache: Path, progress: Progress) -> Corpus:
    """Long descriptions to synopses."""
    files = fetch_indices(cache, ["en"], progress)["en"]
    items = (
        item
        for description in read_descriptions(files, "en")
        if len(description.text.split()) >= 10 and len(description.synopsis.split()) >= 2
        for item in _items(description.package, [(description.text, description.synopsis)])
    )
    english = SideConfig(lang="en")
    return Corpus(
        task=TaskConfig(kind="summarization", corpus="debian-summary", metric="rouge"),
        splits=divide(items, _SUMMARY_HELD_OUT),
        pipeline=PipelineConfig(
            sides=(SideConfig(lang="en", truncate=400), english), subword=BYTES
        ),
        digests=digests_of(files),
    )


def lm(source: Path | None, cache: Path, progress: Progress) -> Corpus:
    """Sentences of long descriptions, for language modelling."""
    files = fetch_indices(cache, ["en"], progress)["en"]
    items = (
        item
        for description in read_descriptions(files, "en")
        for item in _items(description.package, _sentences(description))
    )
    return Corpus(
        task=TaskConfig(kind="language_model", corpus="debian-lm", metric="perplexity"),
        splits=divide(items, _SENTENCES_HELD_OUT),
        pipeline=PipelineConfig(sides=(SideConfig(lang="en"),), subword=BYTES),
        filters=FilterConfig(max_len=256),
        digests=digests_of(files),
    )


def _sentences(description: Description) -> Iterator[Example]:
    """What has at least four words and is mostly letters: no tables, no lists of names."""
    for paragraph in description.paragraphs:
        for unit in units(paragraph):
            for sentence in sentences(unit):
                letters = sum(map(str.isalpha, sentence))
                if len(sentence.split()) >= 4 and letters >= 0.6 * len(sentence):
                    yield (sentence,)
