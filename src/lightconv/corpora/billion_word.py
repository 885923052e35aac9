"""One Billion Word benchmark: shuffled, tokenised sentences of news.

As usual, the first of 50 held-out files is the test set; the second is the validation set. The
owners' vocabulary has 793,471 types: every word that occurs at least three times in training, <S>,
</S> and <UNK>. The vocabulary here also has <pad>, so it drops the rarest word.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from lightconv.corpora import CORPORA, Progress
from lightconv.corpora.sources import SourceFiles
from lightconv.data.config import PipelineConfig, SideConfig, TaskConfig, WordsConfig
from lightconv.data.text import Corpus, Example, lines_of
from lightconv.data.vocabulary import SPECIALS

TYPES = 793_471
FILES = {
    "train": [f"news.en-{number:05}-of-00100" for number in range(1, 100)],
    "valid": ["news.en.heldout-00001-of-00050"],
    "test": ["news.en.heldout-00000-of-00050"],
}


def sentences(name: str, path: Path, cache: Path, progress: Progress) -> Corpus:
    source = SourceFiles(path, progress)
    wanted = {file: [file] for files in FILES.values() for file in files}
    source.require(wanted, CORPORA[name].needs)
    return Corpus(
        task=TaskConfig(kind="language_model", corpus=name, metric="perplexity"),
        splits={split: partial(_sentences, source, files) for split, files in FILES.items()},
        pipeline=PipelineConfig(
            sides=(SideConfig(lang="en"),), subword=WordsConfig(min_count=3, most=TYPES - SPECIALS)
        ),
        examples={"train": 30_300_000},  # approximately
        digests=source.digests,
    )


def _sentences(source: SourceFiles, files: list[str]) -> Iterator[Example]:
    for member, stream in source.walk(set(files)):
        for line in lines_of(stream.readline, str(member)):
            yield (line.removesuffix("\r"),)
