"""LibreOffice's help, English to three languages: elements of a page have one id in all of them."""

import html
import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from lightconv.corpora import Progress
from lightconv.corpora.apt import fetch_packages
from lightconv.corpora.deb import read_members
from lightconv.corpora.descriptions import tidy
from lightconv.corpora.pairs import digests_of, is_translation, translation_corpus
from lightconv.corpora.splits import Item
from lightconv.data.corpus import Corpus

# (id, how many elements of the page had it before) -> text
Page = dict[tuple[str, int], str]

_HELD_OUT = {"de": 0.06, "fr": 0.06, "zh": 0.08}
_PACKAGES = {
    "en": "libreoffice-help-en-us",
    "de": "libreoffice-help-de",
    "fr": "libreoffice-help-fr",
    "zh": "libreoffice-help-zh-cn",
}
_PAGE = re.compile(r"usr/share/libreoffice/help/[^/]+/(text/.+\.html)")
_ELEMENT = re.compile(
    r'<(p|h[1-6]?) id="((?:par|hd)_[^"]+)"([^>]*)>(.*?)</\1>', re.DOTALL | re.ASCII
)
_CODE = re.compile(r'class="[^"]*(?:code|image|example)')
_TAG = re.compile(r"<(/?)(\w+)([^>]*)>")
_HAN = re.compile(r"[\u3400-\u9fff]")


def _translation(language: str, source: Path | None, cache: Path, progress: Progress) -> Corpus:
    """Headings and paragraphs, English to `language`."""
    packages = fetch_packages(cache, [_PACKAGES["en"], _PACKAGES[language]], progress)
    items = _aligned(packages[_PACKAGES["en"]], packages[_PACKAGES[language]], language)
    return translation_corpus(
        f"libreoffice-en-{language}",
        ("en", language),
        items,
        _HELD_OUT[language],
        digests_of(packages.values()),
    )


en_de = partial(_translation, "de")
en_fr = partial(_translation, "fr")
en_zh = partial(_translation, "zh")


def _aligned(english: Path, other: Path, language: str) -> Iterator[Item]:
    """Pairs of elements with one id on one page; a page stays together."""
    pages = dict(read_pages(english))
    for name, theirs in read_pages(other):
        for key, source in pages.get(name, {}).items():
            target = theirs.get(key, "")
            if language == "zh" and not _HAN.search(target):
                continue
            if is_translation(source, target):
                yield Item((source, target), name)


def read_pages(package: Path) -> Iterator[tuple[str, Page]]:
    """The pages of a help package by their paths, which all languages share."""
    for name, data in read_members(package, lambda name: _PAGE.fullmatch(name) is not None):
        found = _PAGE.fullmatch(name)
        assert found is not None
        yield found[1], read_page(data.decode("utf-8", "replace"))


def read_page(page: str) -> Page:
    """The texts of a page's headings and paragraphs; code and pictures are left out."""
    texts: Page = {}
    seen: Counter[str] = Counter()
    for _, name, attributes, body in _ELEMENT.findall(page):
        if text := "" if _CODE.search(attributes) else element_text(body):
            texts[name, seen[name]] = text
        seen[name] += 1
    return texts


def element_text(body: str) -> str:
    """The text of an element: of alternatives by system or program, the general one.

    Such a switch is a span of the class `switchinline` that holds hidden spans, one for each
    system or program and perhaps one that says `default`.
    """
    parts: list[str] = []
    # The spans that are open: the parts they replace when they close, and what they are.
    stack: list[tuple[list[str], str]] = []
    choices: list[dict[str, str]] = []
    last = 0
    for tag in _TAG.finditer(body):
        parts.append(body[last : tag.start()])
        last = tag.end()
        closing, name, attributes = tag.groups()
        if name == "br":
            parts.append(" ")
        elif name != "span":
            continue
        elif not closing:
            kind = _span_kind(attributes)
            stack.append((parts, kind))
            if kind == "switch":
                choices.append({})
            parts = []
        elif stack:
            text = "".join(parts)
            parts, kind = stack.pop()
            if kind == "switch":
                found = choices.pop()
                text = found.get("default") or next(iter(found.values()), text)
            elif kind and choices:
                choices[-1].setdefault(kind, text)
                continue
            parts.append(text)
    parts.append(body[last:])
    for outer, _ in reversed(stack):
        parts = [*outer, *parts]
    return tidy(html.unescape("".join(parts)))


def _span_kind(attributes: str) -> str:
    """`switch`, the name of one of its alternatives, or nothing."""
    if 'class="switchinline"' in attributes:
        return "switch"
    if "hidden" not in attributes:
        return ""
    found = re.search(r'class="([^"]+)"', attributes)
    return found[1] if found else "default"
