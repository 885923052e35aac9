"""Translations that apt fetches; manuals among them: man pages, and books as HTML or XML.

A page and its translation have one structure. A page becomes a list of blocks, each a kind and its
text; blocks of two pages are paired where their kinds agree, and pairs with numbers share one.
"""

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial
from html.parser import HTMLParser
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from lightconv.corpora import Progress, translation_task
from lightconv.corpora.apt import fetch_packages, read_members
from lightconv.corpora.debian import (
    Aligned,
    descriptions,
    fetched_corpus,
    is_translation,
    office_help,
    sentences,
    tidy,
)
from lightconv.corpora.splits import Item
from lightconv.data.text import Corpus

# Larger pages, unpacked, are no text.
_MAX_PAGE = 8 << 20
# Where two pages differ in structure, shorter runs of equal kinds may agree by chance.
_LEAST_RUN = 4


class Block(NamedTuple):
    """A heading, paragraph, item or cell; `kind` is its place in the structure of the page."""

    kind: str
    text: str


def _unpack(data: bytes) -> bytes | None:
    """A gzip file, or None if it is damaged or too large."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        page = unpacker.decompress(data, _MAX_PAGE)
    except zlib.error:
        return None
    return page if unpacker.eof else None


class Shelf(NamedTuple):
    """Pages in English and in another language.

    english  packages of the English pages, and of the others if `other` is empty
    paths    of a page in them; `{}` is the language in `codes`, or its own code
    """

    name: str
    read: Callable[[str], list[Block]]
    english: str
    paths: str
    codes: dict[str, str]
    other: str = ""

    def packages(self, language: str) -> list[str]:
        names = self.english if language == "en" else self.other or self.english
        return [name.format(language) for name in names.split()]

    def pages(self, files: Mapping[str, Path], language: str) -> Iterator[tuple[str, str]]:
        """Pages by names that all languages share; damaged ones are left out."""
        paths = re.compile(self.paths.format(re.escape(self.codes.get(language, language))))
        for package in self.packages(language):
            for path, data in read_members(
                files[package], lambda path: bool(paths.fullmatch(path))
            ):
                page = _unpack(data) if path.endswith(".gz") else data
                if page is not None:
                    yield paths.sub(r"\1", path), page.decode("utf-8", "replace")


def _aligned(shelves: Sequence[Shelf], language: str, cache: Path, progress: Progress) -> Aligned:
    """Pairs of blocks; a page is one group."""
    names = [n for shelf in shelves for code in ("en", language) for n in shelf.packages(code)]
    files = fetch_packages(cache, list(dict.fromkeys(names)), progress)

    def items() -> Iterator[Item]:
        for shelf in shelves:
            english = dict(shelf.pages(files, "en"))
            for page, text in shelf.pages(files, language):
                if page in english:
                    for pair in pair_blocks(shelf.read(english[page]), shelf.read(text)):
                        yield Item(pair, f"{shelf.name}/{page}")

    return items(), list(files.values())


def pair_blocks(ours: Sequence[Block], theirs: Sequence[Block]) -> Iterator[tuple[str, str]]:
    """Texts of blocks at the same place of the structure that may be translations."""
    runs = [(0, 0, len(ours))]
    # A translated man page has its translators at the end.
    if [block.kind for block in ours] != [block.kind for block in theirs[: len(ours)]]:
        # Numbers keep a paragraph that only one of the pages has from shifting all that follow.
        one, two = ([(kind, _numbers(text)) for kind, text in page] for page in (ours, theirs))
        matched = SequenceMatcher(None, one, two, autojunk=False).get_matching_blocks()
        runs = [(run.a, run.b, run.size) for run in matched if run.size >= _LEAST_RUN]
    for start, other, size in runs:
        places = zip(range(start, start + size), range(other, other + size), strict=True)
        for pair in ((ours[i].text, theirs[j].text) for i, j in places):
            damaged = "\N{REPLACEMENT CHARACTER}" in "".join(pair)
            if not damaged and is_translation(*pair) and _agree(*pair):
                yield pair


def _numbers(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\d+", text))


def _names(text: str) -> frozenset[str]:
    """Words that no translation changes: options, paths, functions, settings."""
    return frozenset(re.findall(r"(?<!\w)--?\w[\w-]*|(?<![\w/])/\w+|\w+(?==|\(\d?\))", text))


def _agree(one: str, two: str) -> bool:
    """False if both texts have numbers, or both have names, and none in common."""
    found = ((of(one), of(two)) for of in (_numbers, _names))
    return all(ours & theirs or not (ours and theirs) for ours, theirs in found)


def _cut(item: Item) -> Iterator[Item]:
    """One item for each sentence, if both texts have the same number of them."""
    parts = [sentences(text) for text in item.example]
    if len(parts[0]) != len(parts[1]) or len(parts[0]) < 2:
        yield item
        return
    for pair in zip(*parts, strict=True):
        if is_translation(*pair) and _agree(*pair):
            yield item._replace(example=pair)


_TEXTS = re.compile(r"title|desc|div|para|p|h[1-6]|li|dt|dd|td|th|caption")
_FRAMES = re.compile(
    r"html|body|head|section|table|tr|ul|ol|dl|item|steps|list|note|header|figure|blockquote"
)
_HIDDEN = re.compile(r"script|style|pre|screen|(?:mal:)?credit|revision")


def _is_block(tag: str) -> bool:
    return bool(_TEXTS.fullmatch(tag) or _FRAMES.fullmatch(tag))


class _Markup(HTMLParser):
    """Blocks of HTML or of a help page; code and examples are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[Block] = []
        self.open: list[str] = ["page"]
        self.hidden: list[str] = []
        self.parts: list[str] = []

    def _end(self) -> None:
        text, kind = tidy("".join(self.parts)), self.open[-1]
        self.parts = []
        if text and _TEXTS.fullmatch(kind.partition(".")[0]):
            # Numbers of headings are those of the book, not of the text.
            self.blocks.append(Block(kind, re.sub(r"^(?:\d+\.)+(?:\d+\.?)?\s+", "", text)))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self.hidden or _HIDDEN.fullmatch(tag):
            self.hidden.append(tag)
        elif _is_block(tag):
            self._end()
            self.open.append(f"{tag}.{dict(attrs).get('class') or ''}")
        elif tag == "br":
            self.parts.append(" ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("br", "media", "img"):
            self.parts.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if self.hidden:
            while self.hidden and self.hidden.pop() != tag:
                pass
        elif _is_block(tag):
            self._end()
            names = [name.partition(".")[0] for name in self.open]
            if tag in names[1:]:
                del self.open[len(names) - 1 - names[::-1].index(tag) :]

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.parts.append(data)


def read_markup(page: str) -> list[Block]:
    """The blocks of an HTML or XML page."""
    parser = _Markup()
    parser.feed(page)
    parser.close()
    return parser.blocks


# Requests that begin a paragraph; after TP the next line is a block of its own, a tag.
_PARAGRAPHS = re.compile(r"PP|P|LP|TP|TQ|IP|HP|RS|RE|sp|SH|SS|br|in|ti")
_VERBATIM = {"nf": "fi", "EX": "EE", "TS": "TE", "de": ".", "ig": "."}
_FONTS = re.compile(r"[BIR]|SB|SM|[BIR]{2}")
_ESCAPE = re.compile(
    r"\\(?:f(?:\[\w*\]|\(..|.)|[smk](?:\[[^]]*\]|[+-]?\d)|\*?\[[^]]*\]|\*?\(..|\*.|.)", re.DOTALL
)
_CHARACTERS = {
    **{r"\-": "-", r"\e": "\\", r"\ ": " ", r"\~": " ", r"\0": " ", r"\(aq": "'", r"\(dq": '"'},
    **{r"\(em": "\N{EM DASH}", r"\(en": "\N{EN DASH}", r"\(bu": "*", r"\(co": "(C)", r"\'": "'"},
    **{r"\(lq": "\N{LEFT DOUBLE QUOTATION MARK}", r"\(rq": "\N{RIGHT DOUBLE QUOTATION MARK}"},
    **{r"\[aq]": "'", r"\[em]": "\N{EM DASH}", r"\[en]": "\N{EN DASH}", r"\(ti": "~", r"\(ha": "^"},
    **{r"\[char126]": "~", r"\[rs]": "\\", r"\`": "`", r"\(ga": "`", r"\(rs": "\\", r"\.": "."},
}
_ARGUMENT = re.compile(r'"((?:[^"]|"")*)"?|((?:\\.|\S)+)')


def read_manual(page: str) -> list[Block]:
    """The blocks of a man page; examples and tables are left out."""
    blocks: list[Block] = []
    parts: list[str] = []
    kind, tagged, until = "", False, ""

    def end() -> None:
        if text := tidy(_plain(" ".join(parts))):
            blocks.append(Block(kind, text))
        parts.clear()

    for line in page.replace("\\\n", "").split("\n"):
        request, _, rest = line[1:].strip().partition(" ") if line[:1] in ".'" else ("", "", line)
        if until:
            until = "" if line[:1] in ".'" and request == until else until
        elif line[:1] not in (".", "'"):
            if line.strip():
                parts.append(re.sub(r'\\".*', "", line))
            else:
                end()
        elif request in _VERBATIM:
            end()
            until = _VERBATIM[request]
        elif _PARAGRAPHS.fullmatch(request):
            end()
            kind, tagged = request, request == "TP"
            if request in ("SH", "SS", "IP") and rest:
                parts.append(" ".join(_arguments(rest)[: 1 if request == "IP" else None]))
                end()
            continue
        elif _FONTS.fullmatch(request):
            words = _arguments(rest)
            parts.append((" " if len(request) == 1 or request in ("SB", "SM") else "").join(words))
        if tagged and parts:
            end()
            kind, tagged = "TP.text", False
    end()
    return blocks


def _arguments(text: str) -> list[str]:
    return [quoted.replace('""', '"') or plain for quoted, plain in _ARGUMENT.findall(text)]


def _plain(text: str) -> str:
    """Text without requests for fonts, sizes and spacing; the empty text if it has unknown ones."""
    unknown = False

    def replace(found: re.Match[str]) -> str:
        nonlocal unknown
        escape = found[0]
        if escape in _CHARACTERS:
            return _CHARACTERS[escape]
        unknown |= escape[1] in "([*"
        return ""

    plain = _ESCAPE.sub(replace, text)
    return "" if unknown else plain


_HANDBOOK = {"en": "en-US", "de": "de-DE", "fr": "fr-FR", "it": "it-IT", "es": "es-ES"}
_GUIDE = "installation-guide-amd64"
# Debian's handbook, reference and installation guide, GNOME's help: name, package, paths, codes.
_BOOKS = [
    Shelf(name, read_markup, package, f"usr/share/{paths}", codes)
    for name, package, paths, codes in (
        (
            "debian-handbook",
            "debian-handbook",
            r"doc/debian-handbook/html/{}/(.+\.html)",
            _HANDBOOK,
        ),
        ("debian-reference", "debian-reference-{}", r"debian-reference/(\w+)\.{}\.html", {}),
        (_GUIDE, _GUIDE, rf"doc/{_GUIDE}/{{}}/(.+\.html)", {}),
        ("gnome-user-docs", "gnome-user-docs", r"help/{}/(.+\.page)", {"en": "C"}),
    )
]
_MANUALS = Shelf(
    "man",
    read_manual,
    "manpages manpages-dev coreutils util-linux systemd libsane-common mtools",
    r"usr/share/man/{}(man\d/[^/]+)\.gz",
    {"en": "", "de": "de/"},
    other="manpages-{} manpages-{}-dev",
)
books, manuals = partial(_aligned, _BOOKS), partial(_aligned, [_MANUALS])


def everything(language: str, cache: Path, progress: Progress) -> Aligned:
    """Manuals, books, package descriptions and LibreOffice's help, cut into sentences."""
    readers = (manuals, books, office_help, descriptions)
    found = [read(language, cache, progress) for read in readers]
    items = chain.from_iterable(_cut(item) for each, _ in found for item in each)
    return items, [file for _, files in found for file in files]


# Readers of pairs, and the share of the groups in validation and in test: one to two thousand lines
# each, so of less text more.
_PAIRS: dict[str, tuple[Callable[[str, Path, Progress], Aligned], float]] = {
    "debian": (descriptions, 0.0125),
    "libreoffice": (office_help, 0.06),
    "debian-docs": (books, 0.1),
    "manpages": (manuals, 0.04),
    "debian-all": (everything, 0.04),
}
_LARGER = {"debian-en-de": 0.05, "debian-en-fr": 0.03, "libreoffice-en-zh": 0.08}


def translation(name: str, cache: Path, progress: Progress) -> Corpus:
    kind, _, language = name.rpartition("-en-")
    read, share = _PAIRS[kind]
    items, files = read(language, cache, progress)
    held_out = _LARGER.get(name, share)
    return fetched_corpus(translation_task(name, "sacrebleu"), items, held_out, files)
