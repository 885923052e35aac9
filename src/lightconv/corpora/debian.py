"""Texts that apt fetches: package descriptions, and LibreOffice's help.

Descriptions are records of `Translation-xx` indices: a package, the digest of the English text, a
synopsis, and paragraphs of lines that begin with one space; a line that begins with more spaces is
a list item or stands alone. An element of a help page has the same id in all languages.
"""

import html
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from lightconv.corpora import Progress
from lightconv.corpora.apt import fetch_indices, fetch_packages, read_members
from lightconv.corpora.splits import Item, divide, letters_and_digits, package_stem
from lightconv.data.config import BytesConfig, FilterConfig, PipelineConfig, SideConfig, TaskConfig
from lightconv.data.text import Corpus, Example
from lightconv.files import digest

# Pairs of texts, and the files they are read from.
Aligned = tuple[Iterator[Item], list[Path]]


class Description(NamedTuple):
    """One record; paragraphs are lines without their first space."""

    package: str
    digest: str
    synopsis: str
    paragraphs: tuple[tuple[str, ...], ...]

    @property
    def text(self) -> str:
        return " ".join(tidy(line) for paragraph in self.paragraphs for line in paragraph)


def read_descriptions(files: Iterable[Path], language: str) -> Iterator[Description]:
    """The records of indices; damaged ones are left out."""
    for file in files:
        records = file.read_bytes().decode("utf-8", "replace").split("\n\n")
        yield from filter(None, (_parse(record, language) for record in records))


def _parse(record: str, language: str) -> Description | None:
    fields: dict[str, str] = {}
    paragraphs: list[list[str]] = [[]]
    wanted = f"Description-{language}"
    field = ""
    for line in record.split("\n"):
        if line[:1] != " ":
            field, _, fields[field] = line.partition(":")
        elif field == wanted:
            if line.strip() == ".":
                paragraphs.append([])
            else:
                paragraphs[-1].append(line[1:])
    package, digest = fields.get("Package", "").strip(), fields.get("Description-md5", "").strip()
    synopsis = tidy(fields.get(wanted, ""))
    if not (package and digest and synopsis) or "\N{REPLACEMENT CHARACTER}" in record:
        return None
    kept = tuple(tuple(paragraph) for paragraph in paragraphs if paragraph)
    return Description(package, digest, synopsis, kept)


def tidy(text: str) -> str:
    return " ".join(text.split())


_BULLET = re.compile(r"(?:[*•·‣+o–—-]|\(?\d{1,2}[.)])\s+(?=\S)")


def units(paragraph: Iterable[str]) -> list[str]:
    """Parts of a paragraph: running text, list items without their marks, single lines."""
    found: list[list[str]] = []
    # Running text continues with lines that are not indented, all else with deeper lines.
    running, depth = False, 0
    for line in paragraph:
        body = line.lstrip()
        indent = len(line) - len(body)
        bullet = _BULLET.match(body)
        # In running text a line may begin with a dash, but hardly with an asterisk.
        if bullet and (indent > 0 or body[0] in "*•"):
            found.append([body[bullet.end() :]])
            running, depth = False, indent
        elif found and (indent == 0 if running else indent > depth):
            found[-1].append(body)
        else:
            found.append([body])
            running, depth = indent == 0, indent
    return [tidy(" ".join(parts)) for parts in found]


_END = re.compile(r"[.!?][\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9])")
# A full stop after these, or after an initial, does not end a sentence.
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\[\"'])(?:e\.g|i\.e|cf|vs|etc|resp|approx|incl|Mr|Mrs|Dr|Prof|St|No|Vol|Fig|[A-Z])$"
)


def sentences(text: str) -> list[str]:
    found, start = [], 0
    for end in _END.finditer(text):
        if not _ABBREVIATION.search(text, start, end.start()):
            found.append(text[start : end.end()].strip())
            start = end.end()
    rest = text[start:].strip()
    return [*found, rest] if rest else found


def fetched_corpus(
    task: TaskConfig, items: Iterable[Item], held_out: float, files: Iterable[Path]
) -> Corpus:
    """English text, alone or with another side, and one byte-level vocabulary."""
    english = SideConfig(lang="en")
    sides: tuple[SideConfig, ...] = (english,)
    filters = FilterConfig(max_len=256)
    if task.kind == "summarization":
        sides, filters = (SideConfig(lang="en", truncate=400), english), FilterConfig()
    elif task.target_lang:
        sides = (english, SideConfig(lang=task.target_lang))
        filters = FilterConfig(max_len=256, max_ratio=4.0)
    return Corpus(
        task=task,
        splits=divide(items, held_out),
        pipeline=PipelineConfig(sides=sides, subword=BytesConfig(vocab=8000, joint=True)),
        filters=filters,
        digests={file.name: digest(file) for file in files},
    )


def descriptions(language: str, cache: Path, progress: Progress) -> Aligned:
    files = fetch_indices(cache, ["en", language], progress)
    english = {found.digest: found for found in read_descriptions(files["en"], "en")}
    items = _aligned(english, read_descriptions(files[language], language))
    return items, files["en"] + files[language]


def english(name: str, cache: Path, progress: Progress) -> Corpus:
    """Summaries or sentences."""
    files = fetch_indices(cache, ["en"], progress)["en"]
    if name == "debian-summary":
        task = TaskConfig(kind="summarization", corpus=name, metric="rouge")
        examples, held_out = _summary, 0.025
    else:
        task = TaskConfig(kind="language_model", corpus=name, metric="perplexity")
        examples, held_out = _prose, 0.0125
    found = (
        _items(description.package, examples(description))
        for description in read_descriptions(files, "en")
    )
    return fetched_corpus(task, chain.from_iterable(found), held_out, files)


def _summary(description: Description) -> Iterator[Example]:
    if len(description.text.split()) >= 10 and len(description.synopsis.split()) >= 2:
        yield description.text, description.synopsis


def _prose(description: Description) -> Iterator[Example]:
    """Sentences of at least four words that are mostly letters, unlike tables and lists."""
    for paragraph in description.paragraphs:
        for unit in units(paragraph):
            for sentence in sentences(unit):
                letters = sum(map(str.isalpha, sentence))
                if len(sentence.split()) >= 4 and letters >= 0.6 * len(sentence):
                    yield (sentence,)


def _aligned(
    english: Mapping[str, Description], translations: Iterable[Description]
) -> Iterator[Item]:
    """Synopses, and parts of paragraphs if both texts have the same number of them."""
    for other in translations:
        if (original := english.get(other.digest)) is None:
            continue
        pairs = [(original.synopsis, other.synopsis)]
        if len(original.paragraphs) == len(other.paragraphs):
            for ours, theirs in zip(original.paragraphs, other.paragraphs, strict=True):
                parts, their_parts = units(ours), units(theirs)
                if len(parts) == len(their_parts):
                    pairs += zip(parts, their_parts, strict=True)
        yield from _items(other.package, (pair for pair in pairs if is_translation(*pair)))


def _items(package: str, examples: Iterable[Example]) -> Iterator[Item]:
    """Examples of one package: grouped by its family, its name masked in templates."""
    group = package_stem(package)
    names = tuple(word for word in re.split(r"[^a-z0-9]+", package.lower()) if len(word) > 2)
    for example in examples:
        yield Item(example, group, (group, *names))


def is_translation(source: str, target: str) -> bool:
    """True if an English text and its counterpart are useful: words, and not the same text."""
    if letters_and_digits(source) == letters_and_digits(target):
        return False
    words = [word for word in source.split() if any(map(str.isalpha, word))]
    # One or two words are ambiguous without context: "Line".
    if len(words) < 3 or not any(map(str.isalpha, target)):
        return False
    # In UTF-8 bytes, of which Chinese needs about as many as English; short texts differ more.
    shorter, longer = sorted((len(source.encode()), len(target.encode())))
    return longer <= max(60, 3 * shorter)


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


def office_help(language: str, cache: Path, progress: Progress) -> Aligned:
    packages = [f"libreoffice-help-{_PACKAGES[code]}" for code in ("en", language)]
    english, other = fetch_packages(cache, packages, progress).values()
    return _aligned_pages(english, other, language), [english, other]


def _aligned_pages(english: Path, other: Path, language: str) -> Iterator[Item]:
    # A page is one group.
    pages = dict(read_pages(english))
    for name, theirs in read_pages(other):
        for key, source in pages.get(name, {}).items():
            target = theirs.get(key, "")
            chinese = language != "zh" or _HAN.search(target)
            if chinese and is_translation(source, target):
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
