"""Own text of any form as a corpus: cleaned, and with validation and test split off.

Two files of lines; a table (TSV, CSV, JSON lines, Parquet, Arrow); a folder of tables, as Hugging
Face datasets come; or a list in Python. All text is held in memory.
"""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from lightconv.corpora.news import article_text, read_json, summary_text
from lightconv.corpora.own import FILTERS, METRICS, UNKNOWN, looks_tokenized
from lightconv.corpora.splits import Item, divide, letters_and_digits
from lightconv.data.config import BytesConfig, PipelineConfig, SideConfig, TaskConfig, TaskKind
from lightconv.data.text import COMPRESSED, SPLITS, Corpus, Example, Reader, read_lines
from lightconv.data.text import side_by_side as read_side_by_side
from lightconv.lazy import needed

# One table or folder, two files, or texts: one for each example, or (source, target).
Given = str | Path | Sequence[Any]

# Names of the columns of known datasets, source and target.
PAIRS = (
    *(("source", "target"), ("src", "tgt"), ("src", "trg"), ("sentence1", "sentence2")),
    *(("article", "highlights"), ("article", "abstract"), ("article", "summary")),
    *(("document", "summary"), ("dialogue", "summary"), ("text", "summary")),
)
TEXTS = ("text", "content", "sentence")
TABLES = (".tsv", ".csv", ".json", ".jsonl", ".parquet", ".arrow")
SPLIT_NAMES = {"train": "train", "valid": "valid", "validation": "valid", "val": "valid"}
SPLIT_NAMES |= {"dev": "valid", "test": "test", "eval": "test"}
HEADER = re.compile(r"[a-z]{2}(?:[-_][A-Z]{2})?")
LANGUAGE = re.compile(r"[a-z]{2,3}(?:[-_][A-Za-z]{2,4})?")
# Examples held out for each of validation and test, and the largest share of all.
HELD_OUT, MOST_HELD_OUT = 1000, 0.1
FEWEST = 50
# Lines of a text that are in one split together.
BLOCK = 50
# Words of a text over those of its summary that are read in ten minutes, and words at most.
LEAD, MOST_LEAD = 4, 400


@dataclass
class Own:
    """Examples of one's own by split, before anything is cleaned.

    languages    as far as the names of files or columns tell them
    name         of the files, for people
    corpus_name  of CORPORA if it is one
    """

    kind: TaskKind
    splits: dict[str, list[Example]]
    languages: tuple[str | None, ...] = (None, None)
    name: str = "texts"
    corpus_name: str = "own"

    @property
    def digests(self) -> dict[str, str]:
        return {split: digest_examples(found) for split, found in self.splits.items()}

    def corpus(self, progress: Any, *, seconds: float = 600.0) -> Corpus:
        """The cleaned corpus; what is not given is split off the training text.

        seconds  time for all, which says how much of a text is read for its summary
        """
        given = {split: clean(self.kind, found) for split, found in self.splits.items()}
        dropped = sum((found[1] for found in given.values()), Counter[str]())
        splits = {split: examples for split, (examples, _) in given.items()}
        if dropped:
            listed = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())
            progress(f"left out: {listed}")
        missing = [split for split in SPLITS if not splits.get(split)]
        if missing:
            splits = split_off(self.kind, splits)
            counts = ", ".join(f"{len(splits[split]):,} for {split}" for split in missing)
            progress(f"split off, near-duplicates together: {counts}")
        pair = self.kind != "language_model"
        if pair and looks_tokenized(target for _, target in splits["train"]):
            progress("note: the text looks tokenised; plain text gives better translations")
        source, target = self.languages if pair else (self.languages[0],) * 2
        sides = [SideConfig(lang=lang or UNKNOWN) for lang in (source, target)][: 1 + pair]
        if self.kind == "summarization":
            sides[0] = replace(sides[0], truncate=choose_lead(splits["train"], seconds))
        readers: dict[str, Reader] = {split: partial(iter, splits[split]) for split in SPLITS}
        return Corpus(
            task=TaskConfig(
                kind=self.kind,
                corpus=self.corpus_name,
                source_lang=source if pair else None,
                target_lang=target,
                metric=METRICS[self.kind],
            ),
            splits=readers,
            pipeline=PipelineConfig(
                sides=tuple(sides), subword=BytesConfig(vocab=choose_vocab(splits["train"]))
            ),
            filters=replace(FILTERS[self.kind], min_len=1),
            examples={split: len(found) for split, found in splits.items()},
            digests=self.digests,
        )


def read_own(
    given: Given,
    kind: TaskKind | None = None,
    *,
    valid: Given | None = None,
    test: Given | None = None,
    languages: tuple[str | None, str | None] = (None, None),
    columns: Sequence[str] = (),
) -> Own:
    """Examples of all that is given; ValueError names the file, the line and what is expected.

    kind  default: a language model of texts in Python, else translation
    """
    paths = _paths(given)
    if kind is None:
        rows: Sequence[Any] = [] if paths else given  # type: ignore[assignment]
        texts = bool(rows) and all(isinstance(each, str) for each in rows)
        kind = "language_model" if texts else "translation"
    found = Own(kind, {}, languages, name=" and ".join(path.name for path in paths) or "texts")
    for split, each in (("train", given), ("valid", valid), ("test", test)):
        if each is not None:
            paths = _paths(each)
            table = _Table(kind, columns, found.languages)
            parts = table.read_paths(paths) if paths else {"train": list(table.examples(each))}  # type: ignore[arg-type]
            found.languages = table.languages
            for name, examples in parts.items():
                home = split if split != "train" or len(parts) == 1 else name
                found.splits.setdefault(home, []).extend(examples)
    if not found.splits.get("train"):
        raise ValueError(f"{given!s:.80} has no training text, expected a file or split `train`")
    if kind == "translation" and None in found.languages and _paths(given) and not columns:
        raise ValueError(
            f"the languages of {given!s:.80} are unknown, expected endings such as train.en and "
            "train.fr, or --source-lang and --target-lang"
        )
    return found


def _paths(given: Given) -> list[Path]:
    """The files meant, none if texts are given; two names are files if they are there."""
    if isinstance(given, str | Path):
        return [Path(given)]
    names = len(given) == 2 and all(isinstance(e, str) and Path(e).is_file() for e in given)
    files = names or all(isinstance(each, Path) for each in given)
    return [Path(each) for each in given] if files else []


class _Table:
    """Examples of files and rows; remembers the languages that their names tell."""

    def __init__(
        self, kind: TaskKind, columns: Sequence[str], languages: tuple[str | None, ...]
    ) -> None:
        self.kind, self.columns = kind, tuple(columns)
        self.sides = 1 if kind == "language_model" else 2
        self.languages = languages

    def read_paths(self, paths: Sequence[Path]) -> dict[str, list[Example]]:
        """Examples by split; a single file is training text."""
        for path in paths:
            if not path.exists():
                raise ValueError(f"{path} does not exist, expected a file of text, or a table")
        if len(paths) == 2 and self.sides == 2:
            self._tell(*(_stem(path).suffix[1:] for path in paths))
            return {"train": list(read_side_by_side(paths, read_lines))}
        if len(paths) == 1 and paths[0].is_dir():
            return self._read_folder(paths[0])
        one_table = len(paths) == 1 and _stem(paths[0]).suffix.lower() in TABLES
        if self.sides == 2 and not one_table:
            listed = " ".join(map(str, paths))
            raise ValueError(
                f"{listed[:120]}: expected two files of lines, or one of {', '.join(TABLES)}, or a "
                "folder of such"
            )
        return {"train": [each for path in paths for each in self._read_file(path)]}

    def _read_folder(self, folder: Path) -> dict[str, list[Example]]:
        """Tables of a folder; the split is the name of the file, or of the folder it is in."""
        found: dict[str, list[Example]] = {}
        for path in sorted(folder.rglob("*")):
            relative = path.relative_to(folder)
            hidden = any(part.startswith((".", "cache-")) for part in relative.parts)
            suffix = _stem(path).suffix.lower()
            about = path.name.startswith(("dataset_", "state."))
            if path.is_file() and suffix in TABLES and not hidden and not about:
                names = re.split(r"[^a-z]+", str(relative).lower())
                split = next((SPLIT_NAMES[name] for name in names if name in SPLIT_NAMES), "train")
                found.setdefault(split, []).extend(self._read_file(path))
        if not found:
            raise ValueError(f"{folder} has no table, expected files {', '.join(TABLES)}")
        return found

    def _read_file(self, path: Path) -> Iterator[Example]:
        suffix = _stem(path).suffix.lower()
        if suffix not in TABLES:
            return ((line,) for line in read_lines(path))
        return self.examples(_rows(path, suffix, self.columns), str(path))

    def examples(self, rows: Iterable[Any], name: str = "texts") -> Iterator[Example]:
        """Examples of rows: tables by column, sequences, or texts."""
        for number, row in enumerate(rows, 1):
            try:
                yield self._example(row)
            except ValueError as error:
                raise ValueError(f"{name}, row {number}: {error}") from None

    def _example(self, row: Any) -> Example:
        if isinstance(row, Mapping):
            nested = row.get("translation")
            row = nested if isinstance(nested, Mapping) else row
            values = [row[column] for column in self._find_columns(row)]
        else:
            values = [row] if isinstance(row, str) else list(row)[: self.sides]
        if len(values) != self.sides:
            what = "source and target" if self.sides == 2 else "a text"
            raise ValueError(f"{str(row)[:60]!r}, expected {what}")
        parts = [_lines(value) for value in values]
        if self.kind == "summarization":
            return article_text(parts[0]), summary_text(parts[1])
        return tuple(" ".join(" ".join(lines).split()) for lines in parts)

    def _find_columns(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """Columns of the texts: those given, of a known dataset, or the only ones with text."""
        if not self.columns:
            texts = [name for name, value in row.items() if isinstance(value, str | list)]
            known: list[tuple[str, ...]] = [p for p in PAIRS if row.keys() >= {*p}]
            if self.sides == 1:
                known = [(name,) for name in TEXTS if name in row]
            elif None not in self.languages and row.keys() >= {*self.languages}:
                known = [tuple(map(str, self.languages))]
            self.columns = known[0] if known else tuple(texts)
            if len(self.columns) != self.sides:
                raise ValueError(
                    f"columns {', '.join(row)[:120]}: which hold the texts is not clear. Name them "
                    f"with --columns {'A,B' if self.sides == 2 else 'A'}"
                )
            self._tell(*self.columns)
        if missing := [name for name in self.columns if name not in row]:
            raise ValueError(f"no column {missing[0]!r}, expected one of {', '.join(row)[:120]}")
        return self.columns

    def _tell(self, *names: str) -> None:
        """Takes names for languages if they look like codes and none are given."""
        if self.languages == (None, None) and all(LANGUAGE.fullmatch(name) for name in names):
            self.languages = (names[0], names[-1])


def _stem(path: Path) -> Path:
    """The path without the suffix of a compression."""
    return path.with_suffix("") if path.suffix.lower() in COMPRESSED else path


def _rows(path: Path, suffix: str, columns: Sequence[str]) -> Iterator[Any]:
    """Rows of a table: mappings, or lists where it has no header."""
    if suffix in (".parquet", ".arrow"):
        yield from _arrow_rows(path, suffix)
        return
    lines = read_lines(path)
    if suffix in (".json", ".jsonl"):
        yield from (row for _, row in read_json(lines, str(path)))
        return
    quoted = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if suffix == ".tsv" else {}
    reader = csv.reader((f"{line}\n" for line in lines), **quoted)  # type: ignore[arg-type]
    try:
        first = next(reader, [])
        names = {name for pair in PAIRS for name in pair} | {*TEXTS, *columns}
        # Two letters only: a list of words may begin with one\ttwo.
        header = bool(names & {*first}) or all(HEADER.fullmatch(cell) for cell in first[:2])
        if not header:
            yield first
        for row in reader:
            yield dict(zip(first, row, strict=False)) if header else row
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}") from None


def _arrow_rows(path: Path, suffix: str) -> Iterator[Any]:
    with needed(str(path), "pyarrow", "parquet"):
        import pyarrow
        from pyarrow import ipc, parquet
    try:
        with pyarrow.memory_map(str(path)) as file:
            batches = parquet.ParquetFile(file).iter_batches() if suffix == ".parquet" else None
            for batch in batches or ipc.open_stream(file):
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path} cannot be read: {str(error)[:120]}") from None


def _lines(value: Any) -> list[str]:
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(part, str) for part in parts):
        raise ValueError(f"{str(value)[:60]!r}, expected text")
    lines = "\n".join(parts).replace("\r", "").split("\n")
    return [line.encode(errors="replace").decode() for line in lines]  # lone surrogates


def clean(kind: TaskKind, examples: Iterable[Example]) -> tuple[list[Example], Counter[str]]:
    """Examples worth learning from, each once, and counts of the others by reason."""
    found: dict[Example, None] = {}
    dropped = Counter[str]()
    for example in examples:
        if not all(text.strip() for text in example):
            dropped["empty"] += 1
        elif example in found:
            dropped["repeated"] += 1
        elif kind == "translation" and example[0] == example[1] and example[0].count(" ") > 2:
            dropped["not translated"] += 1
        else:
            found[example] = None
    return list(found), dropped


def split_off(kind: TaskKind, given: Mapping[str, list[Example]]) -> dict[str, list[Example]]:
    """All three splits: those that are missing are taken from training by a hash of the text."""
    train = given["train"]
    share = min(MOST_HELD_OUT, HELD_OUT / len(train))
    groups = _blocks(train) if kind == "language_model" else _related(train, share)
    divided = divide((Item(e, group) for e, group in zip(train, groups, strict=True)), share)
    found = {split: list(reader()) for split, reader in divided.items()}
    for split in ("valid", "test"):
        if given.get(split):
            found["train"] += found[split]
            found[split] = list(given[split])
        if len(found[split]) < min(FEWEST, 0.01 * len(train)) or not found[split]:
            raise ValueError(
                f"{len(train):,} different examples of training text are too few to split off "
                f"{split}, expected some hundreds. Give more text, or --{split} FILES"
            )
    return found


def _blocks(examples: Sequence[Example]) -> list[str]:
    """Group of each line of a text: blocks of lines stay together, as paragraphs do."""
    return [examples[place - place % BLOCK][0] for place in range(len(examples))]


def _related(examples: Sequence[Example], share: float) -> list[str]:
    """Group of each pair: equal sources or targets, but for case and punctuation, are related.

    A group that is large, since short sentences have many translations, is not kept together.
    """
    parents: dict[str, str] = {}

    def root(key: str) -> str:
        while (above := parents.setdefault(key, key)) != key:
            parents[key] = parents.setdefault(above, above)
            key = above
        return key

    keys = [(f"s{letters_and_digits(s)}", f"t{letters_and_digits(t)}") for s, t in examples]
    for source, target in keys:
        parents[root(source)] = root(target)
    roots = [root(source) for source, _ in keys]
    sizes = Counter(roots)
    most = max(20, share * len(examples) / 10)
    pairs = zip(roots, keys, strict=True)
    return [group if sizes[group] <= most else source for group, (source, _) in pairs]


def choose_vocab(examples: Sequence[Example]) -> int:
    """Subwords for the amount of text: more of them are learned well from more text only."""
    words = count_words(examples)
    return next((size for most, size in VOCABULARIES if words < most), 16_000)


def choose_lead(examples: Sequence[Example], seconds: float) -> int:
    """Words of a text that are read: on more of it, a model learns too late to attend to it."""
    words = count_words(example[1:] for example in examples) / len(examples)
    return round(min(MOST_LEAD, max(20.0, LEAD * words * max(1.0, seconds / 600))))


VOCABULARIES = ((30_000, 1000), (300_000, 2000), (5_000_000, 4000), (50_000_000, 8000))


def count_words(examples: Iterable[Example]) -> int:
    return sum(len(text.split()) for example in examples for text in example)


def digest_examples(examples: Iterable[Example]) -> str:
    found = sha256()
    for example in examples:
        found.update("\t".join(example).encode() + b"\n")
    return found.hexdigest()
