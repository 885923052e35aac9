"""IWSLT'14 German-English: TED talks, from `de-en.tgz` of the campaign or its unpacked folder.

The usual preparation, which the paper follows, drops pairs by their number of words and then takes
every 23rd of the others for validation. The words are counted when the corpus is opened, and the
result is kept in the cache.
"""

import re
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from itertools import compress
from pathlib import Path

from lightconv.corpora import CORPORA, Progress, translation_task
from lightconv.corpora.sources import Member, SourceFiles, read_pairs, segments
from lightconv.data.config import BPEConfig, FilterConfig, PipelineConfig, SideConfig
from lightconv.data.text import Corpus, Example, Reader
from lightconv.data.words import Steps
from lightconv.files import replace_file

LANGUAGES = ("de", "en")
EVERY = 23
MAX_WORDS = 175
MAX_RATIO = 1.5
PIPELINE = PipelineConfig(
    sides=tuple(SideConfig(lang=lang, tokenize="moses", lowercase=True) for lang in LANGUAGES),
    subword=BPEConfig(merges=10_000, joint=True),
)
# The test set is all of these, in this order.
TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")

# Lines about a talk; its title and description are training text.
_ABOUT = re.compile(r"\s*</?(?:url|keywords|talkid|speaker|reviewer|translator|doc)\b")
_TAGS = re.compile(r"</?(?:title|description)>")


def talks(name: str, path: Path, cache: Path, progress: Progress) -> Corpus:
    source = SourceFiles(path, progress)
    stems = ["train.tags.de-en.{}", *(f"IWSLT14.{test}.de-en.{{}}.xml" for test in TESTS)]
    files = [stem.format(lang) for stem in stems for lang in LANGUAGES]
    members = source.require({file: [file] for file in files}, CORPORA[name].needs)
    read = partial(read_pairs, partial(_talk_lines, source), members[:2])
    mark = sha256("".join(source.digests.values()).encode()).hexdigest()[:16]
    kept = _kept(read, cache / f"iwslt14-de-en.{mark}.kept", progress)
    return Corpus(
        task=translation_task(name, "tokenized_bleu_lowercase"),
        splits={
            "train": partial(_part, read, kept, False),
            "valid": partial(_part, read, kept, True),
            "test": partial(read_pairs, partial(_test_lines, source), members[2:]),
        },
        pipeline=PIPELINE,
        filters=FilterConfig(unit="words", max_len=MAX_WORDS, max_ratio=MAX_RATIO),
        examples={"train": sum(kept) - sum(kept) // EVERY, "valid": sum(kept) // EVERY},
        digests=source.digests,
    )


def _talk_lines(source: SourceFiles, member: Member) -> Iterator[str]:
    # The lines about a talk may differ between languages.
    for line in source.lines(member):
        if not _ABOUT.match(line):
            yield _TAGS.sub("", line).strip()


def _part(read: Reader, kept: bytes, held_out: bool) -> Iterator[Example]:
    pairs = enumerate(compress(read(), kept), 1)
    return (pair for number, pair in pairs if (number % EVERY == 0) == held_out)


def _test_lines(source: SourceFiles, member: Member) -> Iterator[str]:
    # The usual preparation makes this quote plain; the training files have plain ones.
    for text in segments(source.lines(member), str(member)):
        yield text.replace("’", "'")


def _kept(read: Reader, path: Path, progress: Progress) -> bytes:
    """One byte for each training pair, 1 if it is kept; read from `path` if it is there."""
    if path.is_file():
        data = path.read_bytes()
        if sha256(data[32:]).digest() == data[:32]:
            return data[32:]
    steps = [Steps(SideConfig(lang=lang, tokenize="moses")) for lang in LANGUAGES]
    kept = bytearray()
    for pair in read():
        words = (step.apply(text).split() for step, text in zip(steps, pair, strict=True))
        kept.append(is_kept(*map(len, words)))
        if len(kept) % 20_000 == 0:
            progress(f"counting words: {len(kept):,} pairs")
    progress(
        f"{sum(kept):,} of {len(kept):,} pairs have 1 to {MAX_WORDS} words and a ratio up to "
        f"{MAX_RATIO}"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, sha256(kept).digest() + kept)
    return bytes(kept)


def is_kept(words: int, others: int) -> bool:
    """True if a pair with these numbers of words is used for training or validation."""
    shorter, longer = sorted((words, others))
    return shorter >= 1 and longer <= MAX_WORDS and longer <= MAX_RATIO * shorter
