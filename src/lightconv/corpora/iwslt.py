"""IWSLT'14 German-English: TED talks, from `de-en.tgz` of the campaign or its unpacked folder.

The usual preparation, which the paper follows, drops pairs by their number of words and then takes
every 23rd of the others for validation. The words are counted when the corpus is opened, and the
result is kept in the cache.
"""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import sha256
from itertools import compress
from pathlib import Path

from lightconv.corpora import CORPORA, Progress, translation_task
from lightconv.corpora.sources import Member, Source, segments, side_by_side
from lightconv.data.config import BPEConfig, FilterConfig, PipelineConfig, SideConfig
from lightconv.data.corpus import Corpus, Example
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
# All but plain letters, digits and spaces.
_MARKS = re.compile("[^A-Za-z0-9 \u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f]")
_TAGS = re.compile(r"</?(?:title|description)>")


def talks(name: str, path: Path, cache: Path, progress: Progress) -> Corpus:
    """German to English in lower case, as in the paper."""
    source = Source(path, progress)
    stems = ["train.tags.de-en.{}", *(f"IWSLT14.{test}.de-en.{{}}.xml" for test in TESTS)]
    files = [stem.format(lang) for stem in stems for lang in LANGUAGES]
    members = source.require({file: [file] for file in files}, CORPORA[name].needs)
    kept = _kept(source, members[:2], cache, progress)
    return Corpus(
        task=translation_task(name, "tokenized_bleu_lowercase"),
        splits={
            "train": partial(_talks, source, members[:2], kept, False),
            "valid": partial(_talks, source, members[:2], kept, True),
            "test": partial(_tests, source, members[2:]),
        },
        pipeline=PIPELINE,
        filters=FilterConfig(unit="words", max_len=MAX_WORDS, max_ratio=MAX_RATIO),
        examples={"train": sum(kept) - sum(kept) // EVERY, "valid": sum(kept) // EVERY},
        digests=source.digests,
    )


def _raw_talks(source: Source, members: Sequence[Member]) -> Iterator[Example]:
    return side_by_side(partial(_talk_lines, source), members)


def _talk_lines(source: Source, member: Member) -> Iterator[str]:
    """Lines of talks; the lines about a talk may differ between languages."""
    for line in source.lines(member):
        if not _ABOUT.match(line):
            yield _TAGS.sub("", line).strip()


def _talks(
    source: Source, members: Sequence[Member], kept: bytes, held_out: bool
) -> Iterator[Example]:
    pairs = compress(_raw_talks(source, members), kept)
    return (pair for number, pair in enumerate(pairs, 1) if (number % EVERY == 0) == held_out)


def _tests(source: Source, members: Sequence[Member]) -> Iterator[Example]:
    for pair in zip(members[::2], members[1::2], strict=True):
        yield from side_by_side(partial(_test_lines, source), pair)


def _test_lines(source: Source, member: Member) -> Iterator[str]:
    # The usual preparation makes this quote plain; the training files have plain ones.
    for text in segments(source.lines(member), str(member)):
        yield text.replace("’", "'")


# --- Pairs by their number of words


def _kept(source: Source, members: Sequence[Member], cache: Path, progress: Progress) -> bytes:
    """One byte for each training pair, 1 if it is kept; read from the cache if it is there."""
    mark = sha256("".join(map(source.digest, members)).encode()).hexdigest()[:16]
    path = cache / f"iwslt14-de-en.{mark}.kept"
    if path.is_file():
        data = path.read_bytes()
        if sha256(data[32:]).digest() == data[:32]:
            return data[32:]
    kept = bytes(_count(source, members, progress))
    cache.mkdir(parents=True, exist_ok=True)
    replace_file(path, sha256(kept).digest() + kept)
    return kept


def _count(source: Source, members: Sequence[Member], progress: Progress) -> bytearray:
    """Tokenises only the pairs whose bounds do not decide."""
    steps = [Steps(SideConfig(lang=lang, tokenize="moses")) for lang in LANGUAGES]
    kept = bytearray()
    for pair in _raw_talks(source, members):
        sure = is_surely_kept(*map(word_bounds, pair))
        if sure is None:
            words = (step.apply(text) for step, text in zip(steps, pair, strict=True))
            sure = is_kept(*(len(text.split()) for text in words))
        kept.append(sure)
        if len(kept) % 20_000 == 0:
            progress(f"counting words: {len(kept):,} pairs")
    progress(
        f"{sum(kept):,} of {len(kept):,} pairs have 1 to {MAX_WORDS} words and a ratio up to "
        f"{MAX_RATIO}"
    )
    return kept


def word_bounds(text: str) -> tuple[int, int]:
    """The fewest and the most words that the Moses tokeniser can make of a text.

    It splits words at spaces, and each mark can become a word and split another in two.
    """
    if not text.isprintable():  # control characters are dropped, unusual spaces split words
        return 0, len(text)
    words = len(text.split())
    return words, words + 2 * len(_MARKS.findall(text))


def is_surely_kept(one: tuple[int, int], other: tuple[int, int]) -> bool | None:
    """`is_kept` for numbers of words within bounds; None if the bounds do not decide."""
    if is_kept(one[0], other[1]) and is_kept(one[1], other[0]):
        return True
    fewest = [one[0], other[0]]
    if max(fewest) > MAX_WORDS or one[0] > MAX_RATIO * other[1] or other[0] > MAX_RATIO * one[1]:
        return False
    return None


def is_kept(words: int, others: int) -> bool:
    """True if a pair with these numbers of words is used for training or validation."""
    shorter, longer = sorted((words, others))
    return shorter >= 1 and longer <= MAX_WORDS and longer <= MAX_RATIO * shorter
