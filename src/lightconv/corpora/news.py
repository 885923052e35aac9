"""News: sentences of the One Billion Word benchmark; articles and highlights of CNN-DailyMail.

Billion Word: shuffled, tokenised sentences. As usual, the first of 50 held-out files is the test
set; the second is the validation set. The owners' vocabulary has 793,471 types: every word that
occurs at least three times in training, <S>, </S> and <UNK>. The vocabulary here also has <pad>,
so it drops the rarest word.

CNN-DailyMail comes as story files or as JSON lines. Three lists of addresses assign the stories to
splits; the SHA-1 of an address names its story. JSON lines come as one file for each split. The
sentences of a summary are joined by a pilcrow, ` ¶ `: one word for every tokeniser, and the end of
a line for metrics and readers.

In the paper's copy, markers (@entity1) replace names, and the text is words already. It comes as
summary files (Cheng and Lapata, 2016), as DeepMind's questions with the stories beside them, or as
stories or JSON lines that have markers.
"""

import io
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha1
from itertools import islice
from pathlib import Path
from typing import Any

from lightconv.corpora import CORPORA, Progress
from lightconv.corpora.sources import Member, SourceFiles
from lightconv.data.config import BPEConfig, PipelineConfig, SideConfig, TaskConfig, WordsConfig
from lightconv.data.text import SENTENCE_BREAK, Corpus, Example, Reader, lines_of
from lightconv.data.vocabulary import SPECIALS

TYPES = 793_471
FILES = {
    "train": [f"news.en-{number:05}-of-00100" for number in range(1, 100)],
    "valid": ["news.en.heldout-00001-of-00050"],
    "test": ["news.en.heldout-00000-of-00050"],
}


def sentences(name: str, path: Path, cache: Path, progress: Progress) -> Corpus:
    source = SourceFiles(path, progress)
    wanted = {file: [file] for files in FILES.values() for file in files}
    source.require(wanted, CORPORA[name].needs)
    return Corpus(
        task=TaskConfig(kind="language_model", corpus=name, metric="perplexity"),
        splits={split: partial(_lines, source, files) for split, files in FILES.items()},
        pipeline=PipelineConfig(
            sides=(SideConfig(lang="en"),), subword=WordsConfig(min_count=3, most=TYPES - SPECIALS)
        ),
        examples={"train": 30_300_000},  # approximately
        digests=source.digests,
    )


def _lines(source: SourceFiles, files: list[str]) -> Iterator[Example]:
    for member, stream in source.walk(set(files)):
        for line in lines_of(stream.readline, str(member)):
            yield (line.removesuffix("\r"),)


# The lists of the stories of each split, and the names of its JSON lines.
LISTS = {"train": "all_train.txt", "valid": "all_val.txt", "test": "all_test.txt"}
RECORDS = {"train": ["train"], "valid": ["validation", "valid", "val", "dev"], "test": ["test"]}
PIPELINE = PipelineConfig(
    sides=(
        SideConfig(lang="en", tokenize="moses", lowercase=True, truncate=400),
        SideConfig(lang="en", tokenize="moses", lowercase=True),
    ),
    subword=BPEConfig(merges=30_000, share_vocab=True, most=30_000 - SPECIALS),
)

# Article and summary in JSON lines.
FIELDS = (("article", "highlights"), ("document", "summary"), ("text", "summary"))
_EXPECTED = " or ".join(f'{{"{source}": ..., "{target}": ...}}' for source, target in FIELDS)
_STORY, _SUMMARY, _QUESTION = ".story", ".summary", ".question"
# Folders of the splits in archives of summary and question files.
FOLDERS = {"train": "training", "valid": "validation", "test": "test"}
MARKER = re.compile(r"@entity\d+")
# Ends of sentences; captions and headings have none.
_ENDS = (".", "!", "?", "'", "`", '"', "\u2019", "\u201d", ")")


def articles(name: str, path: Path, cache: Path, progress: Progress) -> Corpus:
    source = SourceFiles(path, progress)
    needs = CORPORA[name].needs
    ends = {Path(member.base).suffix for member in source}
    splits: dict[str, Reader]
    if end := next((end for end in _ANONYMOUS if end in ends), None):
        files = {split: _in_folder(source, folder, end, needs) for split, folder in FOLDERS.items()}
        splits = {split: partial(_ANONYMOUS[end], source, names) for split, names in files.items()}
    elif _STORY in ends:
        splits = _stories(source, needs, progress)
    else:
        wanted = {
            f"{names[0]}.jsonl": [f"{name}.{end}" for name in names for end in ("jsonl", "json")]
            for names in RECORDS.values()
        }
        members = zip(RECORDS, source.require(wanted, needs), strict=True)
        splits = {split: partial(_records, source, member) for split, member in members}
    pipeline = PIPELINE
    if any(MARKER.search(article) for article, _ in islice(splits["valid"](), 20)):
        progress("names are markers such as @entity1: the text is words already")
        sides = tuple(replace(side, tokenize="none") for side in PIPELINE.sides)
        pipeline = replace(PIPELINE, sides=sides)
    return Corpus(
        task=TaskConfig(kind="summarization", corpus=name, metric="rouge"),
        splits=splits,
        pipeline=pipeline,
        digests=source.digests,
    )


def _in_folder(source: SourceFiles, folder: str, end: str, needs: str) -> frozenset[str]:
    inside = (each.base for each in source if f"/{folder}/" in f"/{each.name}")
    if found := frozenset(base for base in inside if base.endswith(end)):
        return found
    raise ValueError(f"{source.path} lacks {folder}/*{end}, expected {needs}")


def _parts(member: Member, stream: io.BufferedReader, least: int) -> list[str]:
    """The parts of a file between empty lines: address, article, summary or question, ..."""
    parts = "\n".join(lines_of(stream.readline, str(member))).strip().split("\n\n")
    if len(parts) < least:
        raise ValueError(f"{member} has {len(parts)} parts between empty lines, expected {least}")
    return parts


def _summaries(source: SourceFiles, names: frozenset[str]) -> Iterator[Example]:
    for member, stream in source.walk(names):
        _, article, summary, *_ = _parts(member, stream, 3)
        # A label for extraction follows each sentence after three tabs.
        sentences = (line.partition("\t\t\t")[0] for line in article.split("\n"))
        yield article_text(sentences), summary_text(summary.split("\n"))


def _questions(source: SourceFiles, names: frozenset[str]) -> Iterator[Example]:
    """Articles of question files, with the highlights of their stories."""
    asked: dict[str, tuple[str, list[str]]] = {}
    for member, stream in source.walk(names):
        address, _, question, answer, *_ = _parts(member, stream, 5)
        _, marked = asked.setdefault(_story_name(address), (member.base, []))
        marked.append(question.replace("@placeholder", answer))
    _check_stories(source, asked, "the questions")
    found = {
        story.base: parse_story(lines_of(stream.readline, str(story)))[1].split(SENTENCE_BREAK)
        for story, stream in source.walk(asked)
    }
    homes = {base: (found[story], marked) for story, (base, marked) in asked.items()}
    for member, stream in source.walk(homes):
        _, article, _, _, table, *_ = _parts(member, stream, 5)
        entities = dict(line.split(":", 1) for line in table.split("\n") if ":" in line)
        yield article_text([article]), summary_text(mark(*homes[member.base], entities))


def mark(plain: list[str], marked: Iterable[str], entities: Mapping[str, str]) -> list[str]:
    """Highlights as the questions about them have them; others mention nobody of the article."""
    found = [_words(text.strip().removesuffix(" .")) for text in plain]  # added when it was read
    bags = [set(text.split()) for text in found]
    for text in marked:
        bag = set(_words(MARKER.sub(lambda match: entities.get(match[0], ""), text)).split())
        found[max(range(len(bags)), key=lambda i: len(bag & bags[i]) - len(bag ^ bags[i]))] = text
    return found


def _words(text: str) -> str:
    return " ".join(re.findall(r"\w+|[^\w\s]", text.lower()))


_ANONYMOUS = {_SUMMARY: _summaries, _QUESTION: _questions}


def _stories(source: SourceFiles, needs: str, progress: Progress) -> dict[str, Reader]:
    members = source.require({name: [name] for name in LISTS.values()}, needs)
    lists = dict(zip(LISTS, members, strict=True))
    for split, member in lists.items():
        names = _listed(source, member)
        _check_stories(source, names, member.base)
        progress(f"{split}: {len(names):,} stories")
    return {split: partial(_told, source, member) for split, member in lists.items()}


def _check_stories(source: SourceFiles, names: Collection[str], of: str) -> None:
    if missing := [name for name in names if not source.find(name)]:
        raise ValueError(
            f"{source.path} lacks {len(missing):,} of the {len(names):,} stories of {of}, "
            f"{missing[0]} among them, expected {CORPORA['cnn-dailymail'].needs}"
        )


def _listed(source: SourceFiles, member: Member) -> list[str]:
    addresses = (line.strip() for line in source.lines(member))
    return [_story_name(address) for address in addresses if address]


def _story_name(address: str) -> str:
    return f"{sha1(address.encode()).hexdigest()}{_STORY}"


def _told(source: SourceFiles, member: Member) -> Iterator[Example]:
    for story, stream in source.walk(set(_listed(source, member))):
        yield parse_story(lines_of(stream.readline, str(story)))


def parse_story(lines: Iterable[str]) -> Example:
    """(article, summary) of a story file: the lines after the first @highlight are the summary."""
    article: list[str] = []
    highlights: list[str] = []
    into = article
    for line in map(str.strip, lines):
        if line.startswith("@highlight"):
            into = highlights
        elif line:
            into.append(line if line.endswith(_ENDS) else f"{line} .")
    return article_text(article), summary_text(highlights)


def article_text(paragraphs: Iterable[str]) -> str:
    return " ".join(" ".join(paragraphs).split())


def summary_text(sentences: Iterable[str]) -> str:
    lines = (" ".join(sentence.replace(SENTENCE_BREAK, " ").split()) for sentence in sentences)
    return f" {SENTENCE_BREAK} ".join(filter(None, lines))


def _records(source: SourceFiles, member: Member) -> Iterator[Example]:
    return parse_records(source.lines(member), str(member))


def read_json(lines: Iterable[str], name: str, hint: str = "") -> Iterator[tuple[str, Any]]:
    """The place and the value of each JSON line that is not empty."""
    for number, line in enumerate(lines, 1):
        where = f"{name}, line {number}"
        try:
            if line.strip():
                yield where, json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: not JSON ({error}){hint}") from None


def parse_records(lines: Iterable[str], name: str) -> Iterator[Example]:
    """(article, summary) of each JSON line: texts with a sentence on each line, or lists."""
    for where, record in read_json(lines, name, f", expected {_EXPECTED}"):
        if not isinstance(record, dict):
            raise ValueError(f"{where}: {str(record)[:60]!r}, expected {_EXPECTED}")
        fields = next((pair for pair in FIELDS if record.keys() >= set(pair)), None)
        if fields is None:
            got = ", ".join(sorted(record)[:8]) or "(none)"
            raise ValueError(f"{where}: fields {got}, expected {_EXPECTED}")
        article, summary = (_sentences(record[field], f"{where}, {field}") for field in fields)
        yield article_text(article), summary_text(summary)


def _sentences(value: Any, where: str) -> list[str]:
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"{where}: {str(value)[:60]!r}, expected text or a list of texts")
    text = "\n".join(parts)
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"{where}: a lone surrogate, expected text. Write the file again")
    for mark in ("<s>", "</s>", "\r\n"):  # the first two in files of See et al. (2017)
        text = text.replace(mark, "\n")
    return text.split("\n")
