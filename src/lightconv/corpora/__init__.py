"""CORPORA: every corpus that `lightconv prepare` knows by name; its module is loaded when used."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from lightconv.console import suggest
from lightconv.data.config import TaskConfig
from lightconv.data.text import Corpus

# Takes one line of text about the work in progress.
Progress = Callable[[str], None]

_MIRROR = "apt with a package mirror (any Debian or Ubuntu machine; no root)"
_NOTHING = "nothing"
_LANGUAGES = {
    **{"de": "German", "fr": "French", "it": "Italian", "es": "Spanish"},
    **{"da": "Danish", "zh": "Chinese"},
}


@dataclass(frozen=True)
class CorpusEntry:
    """A named corpus, opened by "module:function" with its name, --from, cache and Progress."""

    about: str
    open: str
    needs: str

    @property
    def takes_source(self) -> bool:
        """True if `needs` is a path given with --from."""
        return self.needs not in (_MIRROR, _NOTHING)


CORPORA: dict[str, CorpusEntry] = {
    # --- The paper's six set-ups, read from the archives of their owners
    "iwslt14-de-en": CorpusEntry(
        "IWSLT'14, TED talks, German to English",
        "campaigns:talks",
        "de-en.tgz of the IWSLT 2014 evaluation campaign (WIT3, release 2014-01), or its folder",
    ),
    "wmt16-en-de": CorpusEntry(
        "WMT'16, English to German",
        "campaigns:translation",
        "wmt16_en_de.tar.gz, the package that Google made for its Transformer, or a folder "
        "with the archives of WMT'16 it was made of",
    ),
    "wmt14-en-fr": CorpusEntry(
        "WMT'14, English to French",
        "campaigns:translation",
        "a folder with the archives of WMT'14: Europarl v7, Common Crawl, UN, News "
        "Commentary v9, 10^9 French-English, dev and test sets",
    ),
    "wmt17-zh-en": CorpusEntry(
        "WMT'17, Chinese to English",
        "campaigns:translation",
        "a folder with the archives of WMT'17: News Commentary v12, UN Parallel Corpus v1.0, "
        "CWMT, dev and test sets",
    ),
    "billion-word": CorpusEntry(
        "sentences of news, whole words",
        "news:sentences",
        "1-billion-word-language-modeling-benchmark-r13output.tar.gz of the One Billion Word "
        "benchmark, or its folder",
    ),
    "cnn-dailymail": CorpusEntry(
        "news articles to their highlights",
        "news:articles",
        "a folder with cnn_stories.tgz, dailymail_stories.tgz (DeepMind Q&A dataset) and the "
        "lists all_train.txt, all_val.txt, all_test.txt (See et al., 2017), or with JSON lines; "
        "anonymised: with cnn.tgz, dailymail.tgz (its questions), or with .summary files",
    ),
    # --- Texts that a Debian or Ubuntu machine fetches with its own package client
    **{
        f"{name}-en-{code}": CorpusEntry(
            f"{about}, English to {_LANGUAGES[code]}", "documents:translation", _MIRROR
        )
        for name, about, codes in (
            ("debian", "package descriptions", "de fr it da"),
            ("libreoffice", "LibreOffice's help", "de fr zh"),
            ("debian-docs", "Debian's and GNOME's manuals", "de fr it es"),
            ("manpages", "man pages", "de"),
        )
        for code in codes.split()
    },
    "debian-all-en-de": CorpusEntry(
        "all of the English-German texts above, as sentences", "documents:translation", _MIRROR
    ),
    "debian-summary": CorpusEntry(
        "long package descriptions to their synopses", "debian:english", _MIRROR
    ),
    "debian-lm": CorpusEntry("sentences of package descriptions", "debian:english", _MIRROR),
    # --- Invented texts, the same everywhere
    **{
        f"synthetic-{name}": CorpusEntry(about, "synthetic:generated", _NOTHING)
        for name, about in {
            "translation": "an invented language to another: lexicon, endings and word order",
            "reverse": "words to the same words from last to first",
            "copy": "words to the same words",
            "lm": "sentences made of templates",
            "summary": "long documents to their key sentences",
        }.items()
    },
}

# Numbers of examples, tokens and types of the paper's data, and their sources; "M" is rounded.
PUBLISHED: dict[str, tuple[str, dict[str, str]]] = {
    "iwslt14-de-en": ("fairseq", {"train": "160,239", "valid": "7,283", "test": "6,750"}),
    "wmt16-en-de": ("paper, newstest", {"train": "4.5M", "valid": "3,000", "test": "3,003"}),
    "wmt14-en-fr": ("paper, newstest", {"train": "36M", "valid": "6,003", "test": "3,003"}),
    "wmt17-zh-en": ("paper, newstest", {"train": "20M", "valid": "2,002", "test": "2,001"}),
    "billion-word": ("paper, Chelba et al. 2013", {"tokens": "768M", "types": "793,471"}),
    "cnn-dailymail": ("Nallapati 2016", {"train": "286,817", "valid": "13,368", "test": "11,487"}),
}


def find_entry(name: str) -> CorpusEntry:
    """The corpus of that name; ValueError with the nearest name if there is none."""
    if name not in CORPORA:
        raise ValueError(f"unknown corpus '{name[:60]}'{suggest(name, CORPORA)}")
    return CORPORA[name]


def open_corpus(
    name: str, source: Path | None, cache: Path, progress: Progress = lambda _: None
) -> Corpus:
    """The corpus of that name, fetched into `cache` or read from `source`."""
    entry = find_entry(name)
    if source is not None and not entry.takes_source:
        raise ValueError(f"{name} takes no --from, got {source}: it needs {entry.needs}")
    if source is None and entry.takes_source:
        raise ValueError(f"{name} needs --from PATH: {entry.needs}")
    module, function = entry.open.split(":")
    opened: Callable[..., Corpus] = getattr(import_module(f"{__name__}.{module}"), function)
    return opened(name, *([source] if source else []), cache, progress)


def translation_task(name: str, metric: str) -> TaskConfig:
    """The task of a corpus whose name ends with its languages, as in wmt16-en-de."""
    source, target = name.split("-")[-2:]
    return TaskConfig(
        kind="translation", corpus=name, source_lang=source, target_lang=target, metric=metric
    )
