"""The Billion Word benchmark: sentences of news in 99 + 50 files, in an archive or unpacked.

The owners shuffled the sentences and tokenised them; words stay as they are. Of the held-out files
the first is the test set, as everywhere; the second is validation.

The vocabulary of 793,471 is the owners': all words that occur three times or more in training, with
their <S>, </S> and <UNK>. Ours has <pad> besides, and makes room for it with the rarest word.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from lightconv.corpora import Progress
from lightconv.corpora.archives import Source
from lightconv.data.config import PipelineConfig, SideConfig, TaskConfig, WordsConfig
from lightconv.data.corpus import Corpus, Example
from lightconv.data.text import lines_of
from lightconv.data.vocabulary import SPECIALS

NEEDS = (
    "1-billion-word-language-modeling-benchmark-r13output.tar.gz, the One Billion Word benchmark "
    "of Chelba et al. (2013), or the folder it unpacks to"
)
TYPES = 793_471
# About so many there are to learn from.
SENTENCES = 30_300_000
SHARDS = frozenset(f"news.en-{number:05}-of-00100" for number in range(1, 100))
HELD_OUT = {
    "valid": "news.en.heldout-00001-of-00050",
    "test": "news.en.heldout-00000-of-00050",
}


def sentences(path: Path | None, cache: Path, progress: Progress) -> Corpus:
    """Sentences of news, whole words."""
    if path is None:
        raise ValueError(f"billion-word needs --from PATH: {NEEDS}")
    source = Source(path, progress)
    splits = {"train": SHARDS, **{split: frozenset([name]) for split, name in HELD_OUT.items()}}
    missing = sorted(name for names in splits.values() for name in names if not source.find(name))
    if missing:
        more = f" and {len(missing) - 1} more files" if len(missing) > 1 else ""
        raise ValueError(f"{path} lacks {missing[0]}{more}, expected {NEEDS}")
    found = (source.find(name) for names in splits.values() for name in sorted(names))
    source.record(member for member in found if member)
    return Corpus(
        task=TaskConfig(kind="language_model", corpus="billion-word", metric="perplexity"),
        splits={split: partial(_sentences, source, names) for split, names in splits.items()},
        pipeline=PipelineConfig(
            sides=(SideConfig(lang="en"),), subword=WordsConfig(min_count=3, most=TYPES - SPECIALS)
        ),
        examples={"train": SENTENCES},
        digests=source.digests,
    )


def _sentences(source: Source, names: frozenset[str]) -> Iterator[Example]:
    """The lines of these files in one pass over the archive."""
    for member, stream in source.walk(names.__contains__):
        for line in lines_of(stream, str(member)):
            yield (line.removesuffix("\r"),)
