"""CNN-DailyMail: news articles and their highlights, as story files or as JSON lines.

Story files come as `cnn_stories.tgz` and `dailymail_stories.tgz`, or unpacked; which story belongs
to which split, three lists of addresses say, by the SHA-1 of each. JSON lines come as one file for
each split (see `summaries`).

In the paper's copy, names of people and places were replaced by markers (@entity1). The owners ship
stories with the names in them, and so they are read; JSON lines with markers are taken as they are.
"""

from collections.abc import Iterator
from functools import partial
from hashlib import sha1
from pathlib import Path

from lightconv.corpora import Progress
from lightconv.corpora.archives import Source
from lightconv.corpora.summaries import article_text, parse_records, summary_text
from lightconv.corpora.unpack import Member
from lightconv.data.config import BPEConfig, PipelineConfig, SideConfig, TaskConfig
from lightconv.data.corpus import Corpus, Example, Reader
from lightconv.data.text import lines_of
from lightconv.data.vocabulary import SPECIALS

LISTS = {"train": "all_train.txt", "valid": "all_val.txt", "test": "all_test.txt"}
RECORDS = {
    split: tuple(f"{name}.{ending}" for name in names for ending in ("jsonl", "json"))
    for split, names in {
        "train": ("train",),
        "valid": ("validation", "valid", "val", "dev"),
        "test": ("test",),
    }.items()
}
NEEDS = (
    "a folder with cnn_stories.tgz and dailymail_stories.tgz of the DeepMind Q&A dataset (or cnn "
    "and dailymail, unpacked) and the lists all_train.txt, all_val.txt, all_test.txt of See et al. "
    "(2017), or with JSON lines in train.jsonl, validation.jsonl, test.jsonl"
)
TRUNCATE = 400
PIPELINE = PipelineConfig(
    sides=(
        SideConfig(lang="en", tokenize="moses", lowercase=True, truncate=TRUNCATE),
        SideConfig(lang="en", tokenize="moses", lowercase=True),
    ),
    subword=BPEConfig(merges=30_000, share_vocab=True, most=30_000 - SPECIALS),
)

_STORY = ".story"
_HIGHLIGHT = "@highlight"
# What a sentence may end with; captions and headings end without.
_ENDS = (".", "!", "?", "'", "`", '"', "\u2019", "\u201d", ")")


def articles(path: Path | None, cache: Path, progress: Progress) -> Corpus:
    """Articles, cut after 400 words, and their highlights."""
    if path is None:
        raise ValueError(f"cnn-dailymail needs --from PATH: {NEEDS}")
    source = Source(path, progress)
    stories = any(member.base.endswith(_STORY) for member in source)
    splits = _stories(source, progress) if stories else _records(source)
    return Corpus(
        task=TaskConfig(kind="summarization", corpus="cnn-dailymail", metric="rouge"),
        splits=splits,
        pipeline=PIPELINE,
        digests=source.digests,
    )


def _members(source: Source, names: dict[str, tuple[str, ...]], missing: str) -> dict[str, Member]:
    found = {split: source.find(*candidates) for split, candidates in names.items()}
    for split, member in found.items():
        if member is None:
            raise ValueError(f"{source.path} lacks {names[split][0]}{missing}, expected {NEEDS}")
    members = {split: member for split, member in found.items() if member}
    source.record(members.values())
    return members


# --- JSON lines


def _records(source: Source) -> dict[str, Reader]:
    members = _members(source, RECORDS, " and story files")
    return {split: partial(_parsed, source, member) for split, member in members.items()}


def _parsed(source: Source, member: Member) -> Iterator[Example]:
    return parse_records(source.lines(member), str(member))


# --- Stories


def _stories(source: Source, progress: Progress) -> dict[str, Reader]:
    lists = _members(source, {split: (name,) for split, name in LISTS.items()}, "")
    for split, member in lists.items():
        names = _listed(source, member)
        missing = [name for name in names if not source.named(name)]
        if missing:
            raise ValueError(
                f"{source.path} lacks {len(missing):,} of the {len(names):,} stories of "
                f"{member.base}, {missing[0]} among them, expected those of CNN and of the Daily "
                f"Mail: {NEEDS}"
            )
        progress(f"{split}: {len(names):,} stories")
    return {split: partial(_told, source, member) for split, member in lists.items()}


def _listed(source: Source, member: Member) -> list[str]:
    """The story files of a split: each is named by the SHA-1 of its address."""
    addresses = (line.strip() for line in source.lines(member))
    return [f"{sha1(address.encode()).hexdigest()}{_STORY}" for address in addresses if address]


def _told(source: Source, member: Member) -> Iterator[Example]:
    """The stories of a list, in the order of the archive or the folder."""
    wanted = set(_listed(source, member))
    for found in source.walk(wanted.__contains__):
        yield parse_story(lines_of(found.stream, str(found.member)))


def parse_story(lines: Iterator[str]) -> Example:
    """A story file -> (article, summary): what follows an @highlight is part of the summary."""
    article: list[str] = []
    highlights: list[str] = []
    into = article
    for line in map(str.strip, lines):
        if line.startswith(_HIGHLIGHT):
            into = highlights
        elif line:
            into.append(line if line.endswith(_ENDS) else f"{line} .")
    return article_text(article), summary_text(highlights)
