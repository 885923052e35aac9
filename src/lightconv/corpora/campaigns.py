"""Translation tasks of the evaluation campaigns: IWSLT'14 (De-En) and WMT, as in the paper.

IWSLT'14: TED talks, from `de-en.tgz` of the campaign or its unpacked folder. The usual preparation,
which the paper follows, drops pairs by their number of words and then takes every 23rd of the
others for validation. The words are counted when the corpus is opened, and the result is kept in
the cache.

WMT: 2014 (En-Fr), 2016 (En-De) and 2017 (Zh-En). The source is a folder with the archives of the
campaign, packed or not; files are found by name: parallel lines for training, .sgm or plain lines
for validation and test.
"""

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b, sha256
from itertools import compress
from pathlib import Path

import numpy as np

from lightconv.corpora import CORPORA, Progress, translation_task
from lightconv.corpora.sources import Member, SourceFiles, read_pairs, segments
from lightconv.data.config import BPEConfig, FilterConfig, PipelineConfig, SideConfig
from lightconv.data.prepared import apply_filters
from lightconv.data.text import Corpus, Example, Reader
from lightconv.data.vocabulary import SPECIALS
from lightconv.data.words import Steps
from lightconv.files import replace_file

_USUAL = FilterConfig(unit="words", max_len=175, max_ratio=1.5)
# Of the talks every 23rd pair is for validation, and the test set is all of these, in this order.
EVERY = 23
TALK_TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")

# Lines about a talk, anywhere in a line or, in later releases, at its beginning; its title and
# description are training text.
_ABOUT = re.compile(r".*<(?:url|talkid|keywords)>|\s*</?(?:speaker|reviewer|translator|doc)\b")
_TAGS = re.compile(r"</?(?:title|description)>")


def talks(name: str, path: Path, cache: Path, progress: Progress) -> Corpus:
    source = SourceFiles(path, progress)
    stems = ["train.tags.de-en.{}", *(f"IWSLT14.{test}.de-en.{{}}.xml" for test in TALK_TESTS)]
    files = [stem.format(lang) for stem in stems for lang in ("de", "en")]
    members = source.require({file: [file] for file in files}, CORPORA[name].needs)
    read = partial(read_pairs, partial(_talk_lines, source), members[:2])
    # The counts also depend on the lines that are left out.
    mark = sha256("".join([_ABOUT.pattern, *source.digests.values()]).encode()).hexdigest()[:16]
    kept = _kept(read, cache / f"iwslt14-de-en.{mark}.kept", progress)
    return Corpus(
        task=translation_task(name, "tokenized_bleu_lowercase"),
        splits={
            "train": partial(_part, read, kept, False),
            "valid": partial(_part, read, kept, True),
            "test": partial(read_pairs, partial(_test_lines, source), members[2:]),
        },
        pipeline=PipelineConfig(
            sides=tuple(replace(_moses(lang), lowercase=True) for lang in ("de", "en")),
            subword=BPEConfig(merges=10_000, joint=True),
        ),
        filters=_USUAL,
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
    steps = [Steps(_moses(lang)) for lang in ("de", "en")]
    lengths = []
    for number, pair in enumerate(read(), 1):
        words = (step.apply(text).split() for step, text in zip(steps, pair, strict=True))
        lengths.append(list(map(len, words)))
        if number % 20_000 == 0:
            progress(f"counting words: {number:,} pairs")
    kept = apply_filters(_USUAL, list(np.array(lengths, int).reshape(-1, 2).T))[0].tobytes()
    limits = f"1 to {_USUAL.max_len} words and a ratio up to {_USUAL.max_ratio}"
    progress(f"{sum(kept):,} of {len(kept):,} pairs have {limits}")
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, sha256(kept).digest() + kept)
    return kept


_EUROPARL = "training-parallel-europarl-v7.tgz"
_CRAWL = "training-parallel-commoncrawl.tgz"
# Split -> archive, for errors -> files; a file by its possible names, separated by spaces.
Parts = Mapping[str, Mapping[str, Sequence[str]]]


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """Files and preparation of one task."""

    parts: Parts
    pipeline: PipelineConfig
    filters: FilterConfig
    metric: str
    # Approximate number of training pairs.
    examples: int


def _test(stem: str) -> str:
    """Names of a test set that is the same in both directions."""
    year = stem.partition("-")[0]
    return f"{stem}-{{role}}.{{lang}}.sgm {stem}-{{other}}.{{lang}}.sgm {year}.{{lang}}"


def _moses(lang: str) -> SideConfig:
    return SideConfig(lang=lang, tokenize="moses")


CAMPAIGNS = {
    # The paper uses the package that Google made of these for its Transformer; the script behind it
    # tokenises, keeps 1 to 80 words and ratios up to 9, and learns 32,000 merges.
    "wmt16-en-de": Campaign(
        parts={
            "train": {
                _EUROPARL: ["europarl-v7.de-en.{lang}"],
                _CRAWL: ["commoncrawl.de-en.{lang}"],
                "training-parallel-nc-v11.tgz": ["news-commentary-v11.de-en.{lang}"],
            },
            "valid": {"dev.tgz": [_test("newstest2013")]},
            "test": {"dev.tgz or test-full.tgz": [_test("newstest2014-deen")]},
        },
        pipeline=PipelineConfig(
            sides=(_moses("en"), _moses("de")),
            subword=BPEConfig(merges=32_000, share_vocab=True, most=32_768 - SPECIALS),
        ),
        filters=FilterConfig(unit="words", max_len=80, max_ratio=9.0),
        metric="tokenized_bleu_compounds",
        examples=4_600_000,
    ),
    # As for the convolutional models of Gehring et al. (2017), which the paper follows: up to 175
    # words and ratios up to 1.5; fairseq's script for this task also splits hyphens.
    "wmt14-en-fr": Campaign(
        parts={
            "train": {
                _EUROPARL: ["europarl-v7.fr-en.{lang}"],
                _CRAWL: ["commoncrawl.fr-en.{lang}"],
                "training-parallel-un.tgz": ["undoc.2000.fr-en.{lang}"],
                "training-parallel-nc-v9.tgz": ["news-commentary-v9.fr-en.{lang}"],
                "training-giga-fren.tar": ["giga-fren.release2.fixed.{lang}"],
            },
            "valid": {"dev.tgz": [_test("newstest2012"), _test("newstest2013")]},
            "test": {"test-full.tgz": [_test("newstest2014-fren")]},
        },
        pipeline=PipelineConfig(
            sides=tuple(
                SideConfig(lang=lang, normalize="moses", tokenize="moses", split_hyphens=True)
                for lang in ("en", "fr")
            ),
            subword=BPEConfig(merges=40_000, share_vocab=True, most=40_000 - SPECIALS),
        ),
        filters=_USUAL,
        metric="tokenized_bleu",
        examples=40_800_000,
    ),
    "wmt17-zh-en": Campaign(
        parts={
            "train": {
                "training-parallel-nc-v12.tgz": ["news-commentary-v12.zh-en.{lang}"],
                "UNv1.0.en-zh.tar.gz or its pieces .00 and .01": ["UNv1.0.en-zh.{lang}"],
                "casia2015.zip": ["casia2015_{ch}.txt"],
                "casict2011.zip": ["casict-A_{ch}.txt", "casict-B_{ch}.txt"],
                "casict2015.zip": ["casict2015_{ch}.txt"],
                "datum2015.zip": ["datum_{ch}.txt"],
                "datum2017.zip": [f"Book{number}_{{cn}}.txt" for number in range(1, 21)],
                "neu2017.zip": ["NEU_{cn}.txt"],
            },
            "valid": {"dev.tgz": ["newsdev2017-zhen-{role}.{lang}.sgm"]},
            "test": {"test.tgz": ["newstest2017-zhen-{role}.{lang}.sgm"]},
        },
        pipeline=PipelineConfig(
            sides=(SideConfig(lang="zh", tokenize="jieba"), _moses("en")),
            subword=BPEConfig(merges=32_000, joint=False),
        ),
        filters=FilterConfig(unit="words", min_len=3, max_len=70, max_ratio=9.0),
        metric="sacrebleu",
        examples=22_000_000,
    ),
}


# Google's package: tokenised, cleaned and segmented by its own codes.
_PACKAGE: Parts = {
    "train": {"wmt16_en_de.tar.gz": ["train.tok.clean.bpe.32000.{lang}"]},
    "valid": {"wmt16_en_de.tar.gz": ["newstest2013.tok.bpe.32000.{lang}"]},
    "test": {"wmt16_en_de.tar.gz": ["newstest2014.tok.bpe.32000.{lang}"]},
    "codes": {"wmt16_en_de.tar.gz": ["bpe.32000"]},
}


def translation(name: str, path: Path, cache: Path, progress: Progress) -> Corpus:
    campaign = CAMPAIGNS[name]
    # The shortened test sets have the same file names as the full ones.
    source = SourceFiles(path, progress, ignore="filtered")
    packaged = name == "wmt16-en-de" and bool(source.find("train.tok.clean.bpe.32000.en"))
    parts = _PACKAGE if packaged else campaign.parts
    wanted = {split: _names(homes, name.split("-")[1:]) for split, homes in parts.items()}
    everything = {what: names for files in wanted.values() for what, names in files.items()}
    archives = ", ".join(dict.fromkeys(home for homes in parts.values() for home in homes))
    members = iter(source.require(everything, f"{CORPORA[name].needs} ({archives})"))
    found = {split: [next(members) for _ in files] for split, files in wanted.items()}
    codes = found.pop("codes", None)
    read = partial(_lines if packaged else _texts, source)
    splits: dict[str, Reader] = {
        split: partial(read_pairs, read, files) for split, files in found.items()
    }
    if name == "wmt17-zh-en":
        splits["train"] = partial(clean_chinese, splits["train"])
    return Corpus(
        task=translation_task(name, campaign.metric),
        splits=splits,
        pipeline=campaign.pipeline,
        filters=FilterConfig() if packaged else campaign.filters,
        examples={"train": campaign.examples},
        tokenized=packaged,
        codes=source.on_disk(codes[0], cache) if codes else None,
        digests=source.digests,
    )


def _names(homes: Mapping[str, Sequence[str]], languages: Sequence[str]) -> dict[str, list[str]]:
    """Possible names of each file, source and target by turns."""
    found: dict[str, list[str]] = {}
    for home, patterns in homes.items():
        for pattern in patterns:
            for lang, role, other in zip(languages, ("src", "ref"), ("ref", "src"), strict=True):
                # CWMT calls Chinese ch or cn.
                codes = {code: lang.replace("zh", code) for code in ("ch", "cn")}
                names = pattern.format(lang=lang, role=role, other=other, **codes).split()
                found[f"{names[0]} ({home})"] = names
    return found


def _texts(source: SourceFiles, member: Member) -> Iterator[str]:
    # A crawl has a few broken bytes that only its owners could correct.
    lines = source.lines(member, mend=True)
    return segments(lines, str(member)) if member.base.endswith(".sgm") else lines


def _lines(source: SourceFiles, member: Member) -> Iterator[str]:
    return (f"{line} ".replace("@@ ", "").strip() for line in source.lines(member))


_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_CHINESE = re.compile(f"[{_HAN}]")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Some owners put spaces between Chinese words; input to translate has none.
_JOINED = f"[{_HAN}\u3000-\u303f\uff01-\uff60]"
_SPACE = re.compile(f"(?<={_JOINED}) +| +(?={_JOINED})")


class Seen:
    """Bloom filter: with 30 bits (128 MB), it errs on one in a million of 25 million texts."""

    _PLACES = struct.Struct("<8Q")

    def __init__(self, bits: int = 30) -> None:
        self._bits = bytearray(1 << (bits - 3))
        self._mask = (1 << bits) - 1

    def add(self, text: str) -> bool:
        """Adds a text; False if it is not new."""
        digest = blake2b(text.encode(), digest_size=self._PLACES.size).digest()
        new = False
        for place in self._PLACES.unpack(digest):
            byte, bit = divmod(place & self._mask, 8)
            new |= not self._bits[byte] >> bit & 1
            self._bits[byte] |= 1 << bit
        return new


def clean_chinese(read: Reader) -> Iterator[Example]:
    """Pairs with Chinese on the source side alone, each once (rules of Hassan et al., 2018)."""
    seen = Seen()
    for pair in read():
        source, target = (_CONTROL.sub("", text) for text in pair)
        chinese, english = _SPACE.sub("", source).strip(), target.strip()
        right = _CHINESE.search(chinese) and not _CHINESE.search(english)
        if right and seen.add(f"{chinese}\n{english}"):
            yield chinese, english
