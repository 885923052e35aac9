"""Own files as a corpus: parallel text, text for language modelling, articles and summaries.

Translation reads PREFIX.de and PREFIX.en, summarisation PREFIX.source and PREFIX.target or JSON
lines, language modelling one text file; each plain or with .gz, .bz2 or .xz. Without a validation
set, about two thousand training examples are held out, by a hash of their text, so that equal
lines stay together.

Text that is tokenised already is left alone: words end at spaces, their subwords are those of
subword-nmt, and the measure is tokenised BLEU.
"""

import hashlib
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

from lightconv.corpora import Progress
from lightconv.corpora.news import parse_records
from lightconv.corpora.splits import position
from lightconv.data import text
from lightconv.data.config import (
    BPEConfig,
    BytesConfig,
    FilterConfig,
    PipelineConfig,
    SideConfig,
    TaskConfig,
    TaskKind,
)
from lightconv.data.text import Corpus, Example, Reader

METRICS: dict[TaskKind, str] = {
    "translation": "sacrebleu",
    "language_model": "perplexity",
    "summarization": "rouge",
}
FILTERS: dict[TaskKind, FilterConfig] = {
    "translation": FilterConfig(max_len=250, max_ratio=9.0),
    # An empty line ends a paragraph and is a training example like any other.
    "language_model": FilterConfig(min_len=0),
    "summarization": FilterConfig(),
}
# As in the paper's IWSLT set-up.
TOKENIZED = BPEConfig(merges=10_000)
# Signs of a tokeniser, which are rare in plain text; lines that are looked at.
SIGNS = ("&apos;", "&quot;", "&amp;", " @-@ ", " n't ")
LOOKED_AT = 1000
# Undetermined language.
UNKNOWN = "und"

# A prefix or a file, or source and target.
Given = Path | tuple[Path, Path]


def own_corpus(
    kind: TaskKind,
    *,
    train: Given,
    valid: Given | None = None,
    test: Given | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    tokenized: bool = False,
    lowercase: bool = False,
    progress: Progress = lambda _: None,
) -> Corpus:
    """The corpus of these files; parallel files must have the same number of lines.

    train, valid, test  prefixes of two files, two files, or one file
    tokenized           a space stands between any two words: the text is left alone
    lowercase           the text is lower-cased
    """
    languages = _languages(kind, source_lang, target_lang)
    given = {"train": train, "valid": valid, "test": test}
    files = {split: _files(kind, prefix, languages) for split, prefix in given.items() if prefix}
    digests: dict[str, str] = {}
    lines = {split: _scan(split, paths, digests) for split, paths in files.items()}
    splits: dict[str, Reader] = {split: partial(_read, paths) for split, paths in files.items()}
    if valid is None:
        share = min(0.05, 2000 / max(1, lines["train"]))
        splits["train"] = partial(_part, files["train"], share, False)
        splits["valid"] = partial(_part, files["train"], share, True)
        lines["valid"] = round(share * lines["train"])
        lines["train"] -= lines["valid"]
        progress(f"no --valid: held out {share:.1%} of the training text for validation")
    first, *others = [SideConfig(lang=lang, lowercase=lowercase) for lang in languages]
    if kind == "summarization":
        first = replace(first, truncate=400)
    metric = METRICS[kind]
    if kind == "translation" and tokenized:
        metric = "tokenized_bleu_lowercase" if lowercase else "tokenized_bleu"
    elif kind == "translation" and looks_tokenized(text.read_lines(files["train"][-1])):
        progress(
            f"note: {files['train'][-1]} looks tokenised already, and {metric} expects plain text. "
            "--tokenized leaves the text alone and chooses tokenised BLEU"
        )
    return Corpus(
        task=TaskConfig(
            kind=kind,
            corpus="own",
            source_lang=source_lang,
            target_lang=target_lang,
            metric=metric,
        ),
        splits={split: splits[split] for split in given if split in splits},
        pipeline=PipelineConfig(
            sides=(first, *others), subword=TOKENIZED if tokenized else BytesConfig()
        ),
        filters=FILTERS[kind],
        tokenized=tokenized,
        examples=lines,
        digests=digests,
    )


def looks_tokenized(lines: Iterable[str]) -> bool:
    """True if most full stops of the first lines stand apart, or a twentieth of them has a sign."""
    begin = list(islice(lines, LOOKED_AT))
    stops = [line for line in begin if line.endswith(".")]
    apart = sum(line.endswith(" .") for line in stops)
    signed = sum(any(sign in line for sign in SIGNS) for line in begin)
    return apart > max(len(stops) / 2, len(begin) / 20) or signed > len(begin) / 20


def _languages(kind: TaskKind, source: str | None, target: str | None) -> tuple[str, ...]:
    if kind == "language_model":
        return (source or target or UNKNOWN,)
    if kind == "summarization":
        return (source or UNKNOWN, target or source or UNKNOWN)
    if not source or not target:
        raise ValueError("translation needs --source-lang and --target-lang, as in: de en")
    if source == target:
        raise ValueError(f"source and target language are both '{source}', expected two")
    return source, target


def _files(kind: TaskKind, given: Given, languages: tuple[str, ...]) -> tuple[Path, ...]:
    meaning = ""
    if not isinstance(given, Path):
        paths: tuple[Path, ...] = given
    elif kind == "language_model" or (kind == "summarization" and is_json(given)):
        paths = (given,)
    else:
        ends = languages if kind == "translation" else ("source", "target")
        paths = tuple(_with_end(given, end) for end in ends)
        both = " and ".join(f"{given.name}.{end}" for end in ends)
        also = ", or a .jsonl file" if kind == "summarization" else ""
        meaning = f": prefix {given} stands for {both}{also}"
    for path in paths:
        try:
            text.check_file(path)
        except ValueError as error:
            raise ValueError(f"{error}{meaning}") from None
    return paths


def is_json(path: Path) -> bool:
    """True for names of JSON lines, compressed or not."""
    suffixes = [suffix for suffix in path.suffixes if suffix not in text.COMPRESSED]
    return suffixes[-1:] in ([".jsonl"], [".json"])


def _with_end(prefix: Path, end: str) -> Path:
    names = [f"{prefix.name}.{end}{suffix}" for suffix in ("", *text.COMPRESSED)]
    paths = [prefix.with_name(name) for name in names]
    return next((path for path in paths if path.exists()), paths[0])


def _scan(split: str, paths: tuple[Path, ...], digests: dict[str, str]) -> int:
    """Enters the digests; returns the number of lines, which must be the same for both files."""
    counts = []
    for path in paths:
        digest, newlines, last = hashlib.sha256(), 0, b"\n"
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
                newlines += block.count(b"\n")
                last = block
        digests[f"{split}/{path.name}"] = digest.hexdigest()
        counts.append(newlines + (not last.endswith(b"\n")))
    if len(set(counts)) > 1 or any(path.suffix in text.COMPRESSED for path in paths):
        return text.check_lines(paths, map(text.read_lines, paths))
    return counts[0]


def _read(paths: tuple[Path, ...]) -> Iterator[Example]:
    """All examples of a split; corrections of the text are reported in one warning."""
    notes = text.Notes()
    if len(paths) > 1:
        yield from text.side_by_side(paths, partial(text.read_lines, notes=notes))
    elif is_json(paths[0]):
        yield from parse_records(text.read_lines(paths[0], notes), str(paths[0]))
    else:
        for line in text.read_lines(paths[0], notes):
            yield (line,)
    if warning := notes.warning():
        warnings.warn(f"{' and '.join(map(str, paths))}: {warning}", stacklevel=2)


def _part(paths: tuple[Path, ...], share: float, held_out: bool) -> Iterator[Example]:
    for example in _read(paths):
        if (position(example[0]) < share) == held_out:
            yield example
