"""WMT: the translation tasks of 2014 (En-Fr), 2016 (En-De) and 2017 (Zh-En) as the paper has them.

A folder with the archives of the campaign, packed or not, is read by the names of the files in
them: parallel lines to learn from, .sgm or plain lines to test on.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lightconv.corpora import Open, Progress
from lightconv.corpora.archives import Source
from lightconv.corpora.chinese import Cleaner
from lightconv.corpora.parallel import segments, side_by_side
from lightconv.corpora.unpack import Member
from lightconv.data.config import BPEConfig, FilterConfig, PipelineConfig, SideConfig, TaskConfig
from lightconv.data.corpus import Corpus, Example
from lightconv.data.vocabulary import SPECIALS

Files = list[tuple[Member, Member]]

_EUROPARL = "training-parallel-europarl-v7.tgz"
_CRAWL = "training-parallel-commoncrawl.tgz"


@dataclass(frozen=True)
class Part:
    """Two files by what their owners call them, the first name that is there, and their archive."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    home: str


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What one task is made of."""

    task: TaskConfig
    parts: Mapping[str, Sequence[Part]]
    pipeline: PipelineConfig
    filters: FilterConfig
    # About so many training pairs there are.
    examples: int
    # What is done to training pairs before the filters: a new one for every reading.
    clean: type[Cleaner] | None = None


def _lines(stem: str, source: str, target: str, home: str) -> Part:
    """Parallel files that differ in the language at the end."""
    return Part((f"{stem}.{source}",), (f"{stem}.{target}",), home)


def _tested(stem: str, source: str, target: str, home: str, *, plain: bool = True) -> Part:
    """A test set: source and reference as .sgm; older ones are the same in both directions."""
    year = stem.partition("-")[0]
    names = [
        (
            f"{stem}-{role}.{lang}.sgm",
            *((f"{stem}-{other}.{lang}.sgm", f"{year}.{lang}") if plain else ()),
        )
        for lang, role, other in ((source, "src", "ref"), (target, "ref", "src"))
    ]
    return Part(names[0], names[1], home)


def _moses(lang: str) -> SideConfig:
    return SideConfig(lang=lang, tokenize="moses")


def _task(corpus: str, source: str, target: str, metric: str) -> TaskConfig:
    return TaskConfig(
        kind="translation", corpus=corpus, source_lang=source, target_lang=target, metric=metric
    )


# The paper takes the package that Google made of these for its Transformer; the script behind it
# tokenises, keeps 1 to 80 words and up to 9 for each of the other side, and learns 32,000 merges.
EN_DE = Setup(
    task=_task("wmt16-en-de", "en", "de", "tokenized_bleu_compounds"),
    parts={
        "train": (
            _lines("europarl-v7.de-en", "en", "de", _EUROPARL),
            _lines("commoncrawl.de-en", "en", "de", _CRAWL),
            _lines("news-commentary-v11.de-en", "en", "de", "training-parallel-nc-v11.tgz"),
        ),
        "valid": (_tested("newstest2013", "en", "de", "dev.tgz"),),
        "test": (_tested("newstest2014-deen", "en", "de", "dev.tgz or test-full.tgz"),),
    },
    pipeline=PipelineConfig(
        sides=(_moses("en"), _moses("de")),
        subword=BPEConfig(merges=32_000, share_vocab=True, most=32_768 - SPECIALS),
    ),
    filters=FilterConfig(unit="words", max_len=80, max_ratio=9.0),
    examples=4_600_000,
)

# As for the convolutional models of Gehring et al. (2017), which the paper follows: up to 175 words
# and 1.5 for each of the other side; fairseq's script for this task splits hyphens too.
EN_FR = Setup(
    task=_task("wmt14-en-fr", "en", "fr", "tokenized_bleu"),
    parts={
        "train": (
            _lines("europarl-v7.fr-en", "en", "fr", _EUROPARL),
            _lines("commoncrawl.fr-en", "en", "fr", _CRAWL),
            _lines("undoc.2000.fr-en", "en", "fr", "training-parallel-un.tgz"),
            _lines("news-commentary-v9.fr-en", "en", "fr", "training-parallel-nc-v9.tgz"),
            _lines("giga-fren.release2.fixed", "en", "fr", "training-giga-fren.tar"),
        ),
        "valid": (
            _tested("newstest2012", "en", "fr", "dev.tgz"),
            _tested("newstest2013", "en", "fr", "dev.tgz"),
        ),
        "test": (_tested("newstest2014-fren", "en", "fr", "test-full.tgz"),),
    },
    pipeline=PipelineConfig(
        sides=tuple(
            SideConfig(lang=lang, normalize="moses", tokenize="moses", split_hyphens=True)
            for lang in ("en", "fr")
        ),
        subword=BPEConfig(merges=40_000, share_vocab=True, most=40_000 - SPECIALS),
    ),
    filters=FilterConfig(unit="words", max_len=175, max_ratio=1.5),
    examples=40_800_000,
)


_CWMT = (
    ("casia2015_ch.txt", "casia2015_en.txt", "casia2015.zip"),
    ("casict-A_ch.txt", "casict-A_en.txt", "casict2011.zip"),
    ("casict-B_ch.txt", "casict-B_en.txt", "casict2011.zip"),
    ("casict2015_ch.txt", "casict2015_en.txt", "casict2015.zip"),
    ("datum_ch.txt", "datum_en.txt", "datum2015.zip"),
    *((f"Book{n}_cn.txt", f"Book{n}_en.txt", "datum2017.zip") for n in range(1, 21)),
    ("NEU_cn.txt", "NEU_en.txt", "neu2017.zip"),
)
ZH_EN = Setup(
    task=_task("wmt17-zh-en", "zh", "en", "sacrebleu"),
    parts={
        "train": (
            _lines("news-commentary-v12.zh-en", "zh", "en", "training-parallel-nc-v12.tgz"),
            _lines("UNv1.0.en-zh", "zh", "en", "UNv1.0.en-zh.tar.gz or its pieces .00 and .01"),
            *(Part((source,), (target,), home) for source, target, home in _CWMT),
        ),
        "valid": (_tested("newsdev2017-zhen", "zh", "en", "dev.tgz", plain=False),),
        "test": (_tested("newstest2017-zhen", "zh", "en", "test.tgz", plain=False),),
    },
    pipeline=PipelineConfig(
        sides=(SideConfig(lang="zh", tokenize="jieba"), _moses("en")),
        subword=BPEConfig(merges=32_000, joint=False),
    ),
    filters=FilterConfig(unit="words", min_len=3, max_len=70, max_ratio=9.0),
    examples=22_000_000,
    clean=Cleaner,
)


# --- Reading


def _open(setup: Setup, path: Path | None, cache: Path, progress: Progress) -> Corpus:
    if path is None:
        raise ValueError(f"{setup.task.corpus} needs --from PATH: {_needs(setup)}")
    source = Source(path, progress)
    if setup is EN_DE and source.find(f"{_PACKAGE['train']}.en"):
        return _packaged(setup, source, cache)
    found = {split: _members(setup, source, split) for split in setup.parts}
    source.record(member for files in found.values() for pair in files for member in pair)
    return Corpus(
        task=setup.task,
        splits={
            split: partial(_examples, source, files, setup.clean if split == "train" else None)
            for split, files in found.items()
        },
        pipeline=setup.pipeline,
        filters=setup.filters,
        examples={"train": setup.examples},
        digests=source.digests,
    )


def _needs(setup: Setup) -> str:
    """What to get, for errors."""
    homes = dict.fromkeys(part.home for parts in setup.parts.values() for part in parts)
    package = " or wmt16_en_de.tar.gz, the package that Google made of them" * (setup is EN_DE)
    return f"a folder with {', '.join(homes)} of WMT's translation task{package}"


def _members(setup: Setup, source: Source, split: str) -> Files:
    """The files of a split; all of what is missing is named at once."""
    files, missing = [], []
    for part in setup.parts[split]:
        sides = [_find(source, names) for names in (part.source, part.target)]
        missing += [
            f"{names[0]} ({part.home})"
            for names, member in zip((part.source, part.target), sides, strict=True)
            if member is None
        ]
        files.append((sides[0], sides[1]))
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ValueError(
            f"{source.path} lacks {', '.join(missing[:3])}{more}, expected {_needs(setup)}"
        )
    return [(one, other) for one, other in files if one and other]


def _find(source: Source, names: Sequence[str]) -> Member | None:
    """The first of these files; the shortened test sets have the same names as the full ones."""
    for member in (member for name in names for member in source.named(name)):
        if "filtered" not in f"{member.container.name}/{member.name}":
            return member
    return None


def _examples(source: Source, files: Files, clean: type[Cleaner] | None) -> Iterator[Example]:
    cleaner = clean() if clean else None
    for one, other in files:
        readers = [partial(_texts, source, member) for member in (one, other)]
        for pair in side_by_side(readers, (one, other)):
            if cleaner is None:
                yield pair
            elif cleaned := cleaner(*pair):
                yield cleaned


def _texts(source: Source, member: Member) -> Iterator[str]:
    # Nobody but the owners can mend their archives: a few broken bytes in a crawl are replaced.
    lines = source.lines(member, mend=True)
    return segments(lines, str(member)) if member.base.endswith(".sgm") else lines


# --- The package of Google: tokenised, cleaned and cut into byte pairs


_PACKAGE = {
    "train": "train.tok.clean.bpe.32000",
    "valid": "newstest2013.tok.bpe.32000",
    "test": "newstest2014.tok.bpe.32000",
}
_CODES = "bpe.32000"


def _packaged(setup: Setup, source: Source, cache: Path) -> Corpus:
    """Words put together again; the package's own merges cut them as they were."""
    names = [f"{stem}.{lang}" for stem in _PACKAGE.values() for lang in ("en", "de")]
    found = {name: source.find(name) for name in (*names, _CODES)}
    missing = [name for name, member in found.items() if member is None]
    if missing:
        raise ValueError(
            f"{source.path} lacks {', '.join(missing)}, expected all of wmt16_en_de.tar.gz. "
            "Fetch the package again"
        )
    members = {name: member for name, member in found.items() if member}
    source.record(members.values())
    return Corpus(
        task=setup.task,
        splits={
            split: partial(_words, source, members[f"{stem}.en"], members[f"{stem}.de"])
            for split, stem in _PACKAGE.items()
        },
        pipeline=setup.pipeline,
        examples={"train": setup.examples},
        tokenized=True,
        codes=source.on_disk(members[_CODES], cache),
        digests=source.digests,
    )


def _words(source: Source, one: Member, other: Member) -> Iterator[Example]:
    readers = [partial(source.lines, member) for member in (one, other)]
    for pair in side_by_side(readers, (one, other)):
        yield tuple(f"{text} ".replace("@@ ", "").strip() for text in pair)


en_de: Open = partial(_open, EN_DE)
en_fr: Open = partial(_open, EN_FR)
zh_en: Open = partial(_open, ZH_EN)
