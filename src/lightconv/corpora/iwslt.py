"""IWSLT'14 German-English: TED talks, from `de-en.tgz` of the campaign or its unpacked folder.

The usual preparation, which the paper follows, first drops pairs by their number of words and then
takes every 23rd of the others for validation. So the words are counted here, once, and what is kept
is remembered in the cache.
"""

import re
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from itertools import compress
from pathlib import Path

from lightconv.corpora import Progress
from lightconv.corpora.archives import Source, replace_file
from lightconv.corpora.parallel import segments, side_by_side
from lightconv.corpora.unpack import Member
from lightconv.data.config import BPEConfig, FilterConfig, PipelineConfig, SideConfig, TaskConfig
from lightconv.data.corpus import Corpus, Example
from lightconv.data.words import Steps

LANGUAGES = ("de", "en")
NEEDS = (
    "de-en.tgz of the IWSLT 2014 evaluation campaign (WIT3, texts of release 2014-01), or the "
    "folder it unpacks to"
)
EVERY = 23
MAX_WORDS = 175
MAX_RATIO = 1.5
PIPELINE = PipelineConfig(
    sides=tuple(SideConfig(lang=lang, tokenize="moses", lowercase=True) for lang in LANGUAGES),
    subword=BPEConfig(merges=10_000, joint=True),
)
# All of these make up the test set, in this order.
TESTED = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")

Pair = tuple[Member, Member]

# Lines about a talk; its title and description are learned from.
_ABOUT = re.compile(r"\s*</?(?:url|keywords|talkid|speaker|reviewer|translator|doc)\b")
# All but plain letters, digits and spaces.
_MARKS = re.compile("[^A-Za-z0-9 \u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f]")
_TAGS = re.compile(r"</?(?:title|description)>")


def de_en(path: Path | None, cache: Path, progress: Progress) -> Corpus:
    """German to English, lower case, as the paper has it."""
    if path is None:
        raise ValueError(f"iwslt14-de-en needs --from PATH: {NEEDS}")
    source = Source(path, progress)
    trained = _found(source, "train.tags.de-en.{}")
    tested = [_found(source, f"IWSLT14.{name}.de-en.{{}}.xml") for name in TESTED]
    source.record(member for pair in (trained, *tested) for member in pair)
    kept = _kept(source, trained, cache, progress)
    return Corpus(
        task=TaskConfig(
            kind="translation",
            corpus="iwslt14-de-en",
            source_lang="de",
            target_lang="en",
            metric="tokenized_bleu_lowercase",
        ),
        splits={
            "train": partial(_talks, source, trained, kept, False),
            "valid": partial(_talks, source, trained, kept, True),
            "test": partial(_tests, source, tested),
        },
        pipeline=PIPELINE,
        filters=FilterConfig(unit="words", max_len=MAX_WORDS, max_ratio=MAX_RATIO),
        examples={"train": sum(kept) - sum(kept) // EVERY, "valid": sum(kept) // EVERY},
        digests=source.digests,
    )


def _found(source: Source, name: str) -> Pair:
    members = [source.find(name.format(lang)) for lang in LANGUAGES]
    if members[0] is None or members[1] is None:
        missing = name.format(LANGUAGES[members[0] is not None])
        raise ValueError(f"{source.path} lacks {missing}, expected {NEEDS}")
    return members[0], members[1]


# --- The training file


def _raw_talks(source: Source, files: Pair) -> Iterator[tuple[str, ...]]:
    """All pairs of the training files."""
    return side_by_side([partial(_talk_lines, source, member) for member in files], files)


def _talk_lines(source: Source, member: Member) -> Iterator[str]:
    """What was said, without the lines about the talk: those can differ between languages."""
    for line in source.lines(member):
        if not _ABOUT.match(line):
            yield _TAGS.sub("", line).strip()


def _talks(source: Source, files: Pair, kept: bytes, held_out: bool) -> Iterator[Example]:
    """Pairs that are kept: every 23rd of them, or the others."""
    pairs = compress(_raw_talks(source, files), kept)
    return (pair for number, pair in enumerate(pairs, 1) if (number % EVERY == 0) == held_out)


def _kept(source: Source, files: Pair, cache: Path, progress: Progress) -> bytes:
    """One byte for each pair of the training files: 1 if it is neither too long nor odd."""
    mark = sha256("".join(map(source.digest, files)).encode()).hexdigest()[:16]
    path = cache / f"iwslt14-de-en.{mark}.kept"
    if path.is_file():
        digest, kept = path.read_bytes()[:32], path.read_bytes()[32:]
        if sha256(kept).digest() == digest:
            return kept
    kept = bytes(_count(source, files, progress))
    cache.mkdir(parents=True, exist_ok=True)
    replace_file(path, sha256(kept).digest() + kept)
    return kept


def _count(source: Source, files: Pair, progress: Progress) -> bytearray:
    """Tokenises pairs to see which are kept, unless a look at them tells."""
    steps = [Steps(SideConfig(lang=lang, tokenize="moses")) for lang in LANGUAGES]
    kept = bytearray()
    for pair in _raw_talks(source, files):
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
    """The least and the most words that Moses can make of a text.

    It parts words at spaces, and each mark can become a word and cut another in two.
    """
    if not text.isprintable():  # control characters go, and unusual spaces part words
        return 0, len(text)
    words = len(text.split())
    return words, words + 2 * len(_MARKS.findall(text))


def is_surely_kept(one: tuple[int, int], other: tuple[int, int]) -> bool | None:
    """Whether a pair with at least and at most so many words is kept; None if it depends."""
    if is_kept(one[0], other[1]) and is_kept(one[1], other[0]):
        return True
    fewest = [one[0], other[0]]
    if max(fewest) > MAX_WORDS or one[0] > MAX_RATIO * other[1] or other[0] > MAX_RATIO * one[1]:
        return False
    return None


def is_kept(words: int, others: int) -> bool:
    """Whether a pair with so many words on each side is learned from, or validated on."""
    shorter, longer = sorted((words, others))
    return shorter >= 1 and longer <= MAX_WORDS and longer <= MAX_RATIO * shorter


# --- The test sets


def _tests(source: Source, files: list[Pair]) -> Iterator[Example]:
    for pair in files:
        yield from side_by_side([partial(_test_lines, source, member) for member in pair], pair)


def _test_lines(source: Source, member: Member) -> Iterator[str]:
    # The usual preparation makes this quote plain here; the training files have it so already.
    for text in segments(source.lines(member), str(member)):
        yield text.replace("’", "'")
