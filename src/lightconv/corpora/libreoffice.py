"""LibreOffice's help, English to three languages: an element of a page has the same id in all."""

import html
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from lightconv.corpora import Progress, translation_task
from lightconv.corpora.apt import fetch_packages, read_members
from lightconv.corpora.debian import fetched_corpus, is_translation, tidy
from lightconv.corpora.splits import Item
from lightconv.data.corpus import Corpus

# (id, number of earlier elements of the page with this id) -> text
Page = dict[tuple[str, int], str]

_PACKAGES = {"en": "en-us", "de": "de", "fr": "fr", "zh": "zh-cn"}
_PAGE = re.compile(r"usr/share/libreoffice/help/[^/]+/(text/.+\.html)")
_ELEMENT = re.compile(
    r'<(p|h[1-6]?) id="((?:par|hd)_[^"]+)"([^>]*)>(.*?)</\1>', re.DOTALL | re.ASCII
)
_CODE = re.compile(r'class="[^"]*(?:code|image|example)')
_TAG = re.compile(r"<(/?)(\w+)([^>]*)>")
_HAN = re.compile(r"[\u3400-\u9fff]")


def translation(name: str, cache: Path, progress: Progress) -> Corpus:
    language = name[-2:]
    packages = [f"libreoffice-help-{_PACKAGES[code]}" for code in ("en", language)]
    english, other = fetch_packages(cache, packages, progress).values()
    items = _aligned(english, other, language)
    held_out = 0.08 if language == "zh" else 0.06
    return fetched_corpus(translation_task(name, "sacrebleu"), items, held_out, [english, other])


def _aligned(english: Path, other: Path, language: str) -> Iterator[Item]:
    # A page is one group.
    pages = dict(read_pages(english))
    for name, theirs in read_pages(other):
        for key, source in pages.get(name, {}).items():
            target = theirs.get(key, "")
            if language == "zh" and not _HAN.search(target):
                continue
            if is_translation(source, target):
                yield Item((source, target), name)


def read_pages(package: Path) -> Iterator[tuple[str, Page]]:
    """The pages of a help package by their paths, which are the same in all languages."""
    for name, data in read_members(package, lambda name: _PAGE.fullmatch(name) is not None):
        yield _PAGE.sub(r"\1", name), read_page(data.decode("utf-8", "replace"))


def read_page(page: str) -> Page:
    """The texts of a page's headings and paragraphs; without code and pictures."""
    texts: Page = {}
    seen: Counter[str] = Counter()
    for _, name, attributes, body in _ELEMENT.findall(page):
        if text := "" if _CODE.search(attributes) else element_text(body):
            texts[name, seen[name]] = text
        seen[name] += 1
    return texts


def element_text(body: str) -> str:
    """The text of an element, with the default of alternatives by system or program.

    A `switchinline` span holds hidden ones, one for each system; the default has no class.
    """
    parts: list[str] = []
    stack: list[tuple[list[str], str]] = []  # of open spans: the parts before, and the kind
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
    if 'class="switchinline"' in attributes:
        return "switch"
    if "hidden" not in attributes:
        return ""
    found = re.search(r'class="([^"]+)"', attributes)
    return found[1] if found else "default"
