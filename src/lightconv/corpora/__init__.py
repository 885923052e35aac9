"""CORPORA: every corpus that `lightconv prepare` knows by name.

A corpus is one line here and one function `(source, cache, progress) -> Corpus` in a module that
is loaded when it is used.
"""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from lightconv.data.corpus import Corpus

# What is going on, one line at a time.
Progress = Callable[[str], None]
# (the path given with --from or None, a folder for what is fetched, progress) -> the corpus
Open = Callable[[Path | None, Path, Progress], Corpus]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A corpus and where it is read."""

    about: str
    # "module:function" below lightconv.corpora; the function is an Open.
    open: str
    # What the user must have: printed by lists and in errors.
    needs: str
    # Whether `needs` is a path given with --from; if not, --from is refused.
    takes_source: bool = False


_MIRROR = "apt with a package mirror (any Debian or Ubuntu machine; no root)"
_NOTHING = "nothing"

CORPORA: dict[str, Entry] = {
    # --- The paper's six set-ups, read from what their owners ship
    "iwslt14-de-en": Entry(
        about="IWSLT'14, TED talks, German to English",
        open="iwslt:de_en",
        needs="de-en.tgz of the IWSLT 2014 evaluation campaign (WIT3, release 2014-01), or its "
        "folder",
        takes_source=True,
    ),
    "wmt16-en-de": Entry(
        about="WMT'16, English to German",
        open="wmt:en_de",
        needs="wmt16_en_de.tar.gz, the package that Google made for its Transformer, or a folder "
        "with the archives of WMT'16 it was made of",
        takes_source=True,
    ),
    "wmt14-en-fr": Entry(
        about="WMT'14, English to French",
        open="wmt:en_fr",
        needs="a folder with the archives of WMT'14: Europarl v7, Common Crawl, UN, News "
        "Commentary v9, 10^9 French-English, dev and test sets",
        takes_source=True,
    ),
    "wmt17-zh-en": Entry(
        about="WMT'17, Chinese to English",
        open="wmt:zh_en",
        needs="a folder with the archives of WMT'17: News Commentary v12, UN Parallel Corpus v1.0, "
        "CWMT, dev and test sets",
        takes_source=True,
    ),
    "billion-word": Entry(
        about="sentences of news, whole words",
        open="billion_word:sentences",
        needs="1-billion-word-language-modeling-benchmark-r13output.tar.gz of the One Billion Word "
        "benchmark, or its folder",
        takes_source=True,
    ),
    "cnn-dailymail": Entry(
        about="news articles to their highlights",
        open="cnn_dailymail:articles",
        needs="a folder with cnn_stories.tgz, dailymail_stories.tgz (DeepMind Q&A dataset) and the "
        "lists all_train.txt, all_val.txt, all_test.txt (See et al., 2017), or with JSON lines",
        takes_source=True,
    ),
    # --- Texts that a Debian or Ubuntu machine fetches with its own package client
    "debian-en-de": Entry(
        about="package descriptions, English to German", open="debian:en_de", needs=_MIRROR
    ),
    "debian-en-fr": Entry(
        about="package descriptions, English to French", open="debian:en_fr", needs=_MIRROR
    ),
    "debian-en-it": Entry(
        about="package descriptions, English to Italian", open="debian:en_it", needs=_MIRROR
    ),
    "debian-en-da": Entry(
        about="package descriptions, English to Danish", open="debian:en_da", needs=_MIRROR
    ),
    "debian-summary": Entry(
        about="long package descriptions to their synopses", open="debian:summary", needs=_MIRROR
    ),
    "debian-lm": Entry(about="sentences of package descriptions", open="debian:lm", needs=_MIRROR),
    "libreoffice-en-de": Entry(
        about="LibreOffice's help, English to German", open="libreoffice:en_de", needs=_MIRROR
    ),
    "libreoffice-en-fr": Entry(
        about="LibreOffice's help, English to French", open="libreoffice:en_fr", needs=_MIRROR
    ),
    "libreoffice-en-zh": Entry(
        about="LibreOffice's help, English to Chinese", open="libreoffice:en_zh", needs=_MIRROR
    ),
    # --- Invented texts, the same everywhere
    "synthetic-translation": Entry(
        about="an invented language to another: lexicon, endings and word order",
        open="synthetic:translation",
        needs=_NOTHING,
    ),
    "synthetic-reverse": Entry(
        about="words to the same words from last to first",
        open="synthetic:reverse",
        needs=_NOTHING,
    ),
    "synthetic-copy": Entry(about="words to the same words", open="synthetic:copy", needs=_NOTHING),
    "synthetic-lm": Entry(about="sentences made of templates", open="synthetic:lm", needs=_NOTHING),
    "synthetic-summary": Entry(
        about="long documents to their key sentences", open="synthetic:summary", needs=_NOTHING
    ),
}


def find_entry(name: str) -> Entry:
    """The corpus of that name; an unknown one is answered with the nearest."""
    if name in CORPORA:
        return CORPORA[name]
    near = difflib.get_close_matches(name, CORPORA, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(CORPORA)}"
    raise ValueError(f"unknown corpus '{name[:60]}'; {hint}")


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
    found: Open = getattr(import_module(f"{__name__}.{module}"), function)
    return found(source, cache, progress)
