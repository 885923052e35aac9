"""From a corpus to a prepared folder: texts to words, words to ids; safe to kill and restart.

Stages run in a hidden work folder beside the prepared folder, which records each finished stage;
its folder `result` becomes the prepared folder at the end. Words lie in one file per side, a line
for each example. Memory does not grow with the corpus, except for its different words.
"""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightconv.config import differences, from_dict, to_dict
from lightconv.console import Display
from lightconv.data.config import FilterConfig, PipelineConfig, PrepareConfig, SideConfig
from lightconv.data.pipeline import Pipeline
from lightconv.data.prepared import (
    Contents,
    Origin,
    Prepared,
    Split,
    apply_filters,
    count_lengths,
    describe_split,
    is_prepared,
    text_file,
    write_contents,
)
from lightconv.data.store import PAIR, TEXT, StoreWriter
from lightconv.data.subword import Codes, learn, pieces, read_blocks
from lightconv.data.text import Corpus, Example
from lightconv.data.vocabulary import UNK
from lightconv.data.words import Steps, check_packages
from lightconv.device import count_cores
from lightconv.files import digest, lock, replace_file, sync, write_manifest
from lightconv.processes import spread

TRAIN = "train"
# With fewer examples, or work items, the start of processes takes longer than their work.
WORTH_PROCESSES = 5000
WORTH_ITEMS = 5
STATE_FILE = "state.json"
LOCK_FILE = "lock"
# A prepared folder that is about to be replaced.
REPLACED = "replaced"


def prepare(
    corpus: Corpus,
    out: str | Path,
    *,
    config: PrepareConfig | None = None,
    overwrite: bool = False,
    processes: int | None = None,
    display: Display | None = None,
) -> Prepared:
    """Prepares a corpus into the folder `out`, or resumes a call that was stopped.

    config     other steps and filters than those of the corpus
    overwrite  a prepared folder may be replaced
    processes  number of workers; None: one per core
    """
    out = Path(out)
    check_free(out, overwrite=overwrite)
    config = config or PrepareConfig(pipeline=corpus.pipeline, filters=corpus.filters)
    check_packages(config.pipeline)
    found, expected = len(config.pipeline.sides), len(corpus.pipeline.sides)
    if found != expected:
        name = corpus.task.corpus
        raise ValueError(f"pipeline.sides has {found}, expected {expected} for {name}")
    # Other subwords than those of the corpus need codes of their own.
    codes = corpus.codes if config.pipeline.subword == corpus.pipeline.subword else None
    origin = Origin(
        task=corpus.task,
        pipeline=config.pipeline,
        filters=config.filters,
        tokenized=corpus.tokenized,
        codes=None if codes is None else digest(codes),
        inputs=dict(corpus.digests),
    )
    work = Work(out, origin)
    with work.opened():
        _Stages(corpus, work, processes or count_cores(), display or Display(quiet=True)).run()
        check_free(out, overwrite=overwrite)
        work.publish()
    return Prepared.open(out)


def check_free(out: Path, *, overwrite: bool) -> None:
    """Raises ValueError if `out` exists and may not be replaced."""
    above = next(folder for folder in out.absolute().parents if folder.exists())
    if not above.is_dir():
        raise ValueError(f"{out} cannot be made: {above} is a file, expected a folder")
    if not out.is_symlink() and not out.exists():
        return
    if not overwrite:
        raise ValueError(f"{out} exists. Choose another folder, or use --overwrite")
    is_folder = out.is_dir() and not out.is_symlink()
    if not is_folder or (any(out.iterdir()) and not is_prepared(out)):
        raise ValueError(f"{out} exists and is not a prepared folder, so it is not overwritten")


def work_folder(out: Path) -> Path:
    return out.absolute().with_name(f".{out.absolute().name}.prepare")


class Work:
    """The work folder of a preparation; one process at a time has it open.

    origin   decides the result: a folder begun with another origin is begun anew
    changed  differences to the origin of an earlier attempt
    stages   results of the finished stages, by name
    """

    def __init__(self, out: Path, origin: Origin) -> None:
        self.out = out.absolute()
        self.folder = work_folder(out)
        self.result = self.folder / "result"
        self.origin = origin
        self.changed: list[str] = []
        self.stages: dict[str, Any] = {}

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Locks the folder and finds the finished stages; a ValueError in the block removes it."""
        busy = f"another process prepares {self.out}. Wait for its end, or use another folder"
        with lock(self.folder / LOCK_FILE, busy, inherited=True):
            replaced = self.folder / REPLACED
            if replaced.exists() and not self.out.exists():
                replaced.rename(self.out)
            self._read()
            try:
                yield
            except ValueError:  # the input is unusable: it will be changed, and all done again
                self._remove()
                raise

    def do(self, stage: str, function: Callable[[], dict[str, Any]]) -> None:
        """Runs a stage unless it is finished; its files are on disk when `function` returns."""
        if stage not in self.stages:
            self.stages[stage] = function()
            self._write()

    def publish(self) -> None:
        """Renames the result to the prepared folder, which it replaces; removes the work folder."""
        for path in self.result.glob(".*"):  # left by a process that was killed while writing
            path.unlink()
        sync(self.result)
        if self.out.exists():
            self.out.rename(self.folder / REPLACED)
        self.result.rename(self.out)
        sync(self.out.parent)
        self._remove()

    def _remove(self) -> None:
        # The record first: a half-removed folder is not resumed.
        (self.folder / STATE_FILE).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _read(self) -> None:
        try:
            state = json.loads((self.folder / STATE_FILE).read_bytes())
            old, stages = from_dict(Origin, state["origin"]), state["stages"]
        except (OSError, ValueError, KeyError, TypeError):  # none, or of another version
            old, stages = None, {}
        if old == self.origin:
            self.stages = stages
            return
        if old is not None:
            self.changed = differences(old, self.origin)
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != LOCK_FILE:
                path.unlink()
        self.result.mkdir()
        self._write()

    def _write(self) -> None:
        state = {"origin": to_dict(self.origin), "stages": self.stages}
        replace_file(self.folder / STATE_FILE, json.dumps(state, indent=1).encode())


class _Stages:
    """The stages of one preparation; each returns what the work folder records of it."""

    def __init__(self, corpus: Corpus, work: Work, processes: int, display: Display) -> None:
        self.corpus, self.work, self.origin = corpus, work, work.origin
        self.processes, self.display = processes, display
        self.sides = PAIR if len(work.origin.pipeline.sides) == 2 else TEXT

    def run(self) -> None:
        if self.work.changed:
            changed = "; ".join(self.work.changed[:5])
            self.display.note(f"begun with other settings or inputs, starting anew: {changed}")
        elif self.work.stages:
            self.display.note(f"resuming after: {', '.join(self.work.stages)}")
        for split in self.corpus.splits:
            self.work.do(f"text of {split}", partial(self._to_words, split))
        self.work.do("vocabulary", self._learn)
        for split in self.corpus.splits:
            self.work.do(f"ids of {split}", partial(self._to_ids, split))
            for path in self._words(split):
                path.unlink(missing_ok=True)
        self._describe()

    def _words(self, split: str) -> list[Path]:
        return [self.work.folder / f"{split}.{side}.words" for side in self.sides]

    def _to_words(self, split: str) -> dict[str, Any]:
        """Writes the words of a split; plain text too of validation and test, for evaluation."""
        steps = self.origin.pipeline.sides
        if self.corpus.tokenized:
            done: dict[str, Any] = {"normalize": "none", "tokenize": "none", "split_hyphens": False}
            steps = tuple(replace(side, **done) for side in steps)
        paths, filters = self._words(split), self.origin.filters if split == TRAIN else None
        if split != TRAIN:
            paths += [text_file(self.work.result, split, side) for side in self.sides]
        items = pieces(self.corpus.splits[split]())
        begin = list(islice(items, WORTH_ITEMS))
        idle = all(side == SideConfig(lang=side.lang) for side in steps)
        processes = 1 if len(begin) < WORTH_ITEMS or idle else self.processes
        read, dropped = 0, Counter[str]()
        function = partial(_make_words, steps, filters)
        with ExitStack() as stack:
            files = [stack.enter_context(path.open("wb")) for path in paths]
            for count, reasons, blocks in spread(function, chain(begin, items), processes):
                for file, block in zip(files, blocks, strict=True):
                    file.write(block)
                read += count
                dropped += reasons
                self.display.show(f"reading {split}", read, self.corpus.examples.get(split))
        for path in paths:
            sync(path)
        self.display.end()
        found = {"read": read, "kept": read - dropped.total(), "dropped": dict(dropped)}
        _check_kept(split, found)
        return found

    def _learn(self) -> dict[str, Any]:
        examples = self.work.stages[f"text of {TRAIN}"]["kept"]
        codes = self.corpus.codes if self.origin.codes is not None else None
        learned = learn(
            self.origin.pipeline.subword,
            read_blocks(self._words(TRAIN)),
            processes=self._workers(examples),
            display=self.display,
            total=examples,
            given=None if codes is None else Codes.load(codes),
        )
        files = Pipeline(self.origin.pipeline, *learned).files()
        for name, data in files.items():
            replace_file(self.work.result / name, data)
        mark = hashlib.sha256(repr(files).encode()).hexdigest()
        sizes = dict(zip(self.sides, learned.vocabularies.sizes(), strict=False))
        return {"sizes": sizes, "digest": mark}

    def _to_ids(self, split: str) -> dict[str, Any]:
        text, vocabulary = self.work.stages[f"text of {split}"], self.work.stages["vocabulary"]
        # Filters that count words have been applied to the words already.
        filtered = split == TRAIN and self.origin.filters.unit == "tokens"
        filters = self.origin.filters if filtered else None
        plain = tuple(SideConfig(lang=side.lang) for side in self.origin.pipeline.sides)
        config = replace(self.origin.pipeline, sides=plain)  # the texts are words already
        load = partial(_load, self.work.result, vocabulary["digest"], config)
        function = partial(_make_ids, load, filters)
        blocks, processes = read_blocks(self._words(split)), self._workers(text["kept"])
        lengths, unknown = [np.zeros(0, np.int64) for _ in self.sides], [0 for _ in self.sides]
        dropped, done = Counter(text["dropped"]), 0
        with StoreWriter(self.work.result, split, vocabulary["sizes"]) as writer:
            for reasons, ids, sizes in spread(function, blocks, processes):
                if len(sizes[0]):
                    writer.append(*map(np.split, ids, (np.cumsum(each)[:-1] for each in sizes)))
                for side in range(len(sizes)):
                    lengths[side] = count_lengths(lengths[side], sizes[side])
                    unknown[side] += int((ids[side] == UNK).sum())
                dropped += reasons
                done += len(sizes[0]) + reasons.total()
                self.display.show(f"encoding {split}", done, text["kept"])
        self.display.end()
        counts = dict(zip(self.sides, zip(lengths, unknown, strict=True), strict=True))
        found = describe_split(text["read"], dropped, counts)
        _check_kept(split, found)
        return {"statistics": found, "digest": writer.digest}

    def _describe(self) -> None:
        splits, statistics = {}, {}
        for split in self.corpus.splits:
            found = self.work.stages[f"ids of {split}"]
            statistics[split] = found["statistics"]
            splits[split] = Split(examples=statistics[split]["kept"], digest=found["digest"])
        sizes = self.work.stages["vocabulary"]["sizes"]
        contents = Contents(origin=self.origin, vocabulary=sizes, splits=splits)
        write_contents(self.work.result, contents, {"vocabulary": sizes, "splits": statistics})
        write_manifest(self.work.result)

    def _workers(self, examples: int) -> int:
        return self.processes if examples >= WORTH_PROCESSES else 1


def _check_kept(split: str, found: dict[str, Any]) -> None:
    if not found["read"]:
        raise ValueError(
            f"split {split!r} has no examples, expected at least one. Give more text, or --valid "
            "for files of your own"
        )
    if not found["kept"]:
        reasons = ", ".join(f"{each} {count:,}" for each, count in found["dropped"].items())
        raise ValueError(
            f"nothing is left of split {split!r} after filtering: {found['read']:,} examples read, "
            f"dropped: {reasons}. Change the filters with --set filters.min_len, max_len or "
            "max_ratio"
        )


def _make_words(
    sides: tuple[SideConfig, ...], filters: FilterConfig | None, rows: list[Example]
) -> tuple[int, Counter[str], list[bytes]]:
    """Number of examples, reasons of those left out, and lines: words, unfiltered also texts."""
    for row in rows:
        if len(row) != len(sides):
            raise ValueError(f"an example has {len(row)} texts, expected {len(sides)}")
    texts = [[text.replace("\n", " ") for text in column] for column in zip(*rows, strict=True)]
    words = [list(map(_steps(side).apply, texts[i])) for i, side in enumerate(sides)]
    columns, dropped = words + texts, Counter[str]()
    if filters is not None:
        if filters.unit == "words":
            lengths = [np.array([len(text.split()) for text in column]) for column in words]
        else:  # tokens are not known yet: only empty texts are left out
            least = min(filters.min_len, 1)
            filters = replace(filters, min_len=least, max_len=None, max_ratio=None)
            lengths = [np.array([bool(text.strip()) for text in column], int) for column in words]
        kept, dropped = apply_filters(filters, lengths)
        columns = [list(compress(column, kept)) for column in words]
    lines = ["".join(f"{text}\n" for text in column).encode() for column in columns]
    return len(rows), dropped, lines


_steps = lru_cache(maxsize=4)(Steps)  # tokenisers take their time to be made


def _make_ids(
    load: Callable[[], Pipeline], filters: FilterConfig | None, block: tuple[bytes, ...]
) -> tuple[Counter[str], list[NDArray[np.uint32]], list[NDArray[np.int64]]]:
    """Reasons of the examples left out; for each side all ids, and the length of each sentence."""
    encode = load().encode
    rows = [encode(side, text.decode().split("\n")[:-1]) for side, text in enumerate(block)]
    sizes = [np.fromiter(map(len, each), np.int64, count=len(each)) for each in rows]
    ids = [np.fromiter(chain.from_iterable(each), np.uint32) for each in rows]
    dropped = Counter[str]()
    if filters is not None:
        kept, dropped = apply_filters(filters, sizes)
        ids = [all_[np.repeat(kept, size)] for all_, size in zip(ids, sizes, strict=True)]
        sizes = [size[kept] for size in sizes]
    return dropped, ids, sizes


@lru_cache(maxsize=1)  # the digest tells one pipeline of a folder from the next
def _load(folder: Path, digest: str, config: PipelineConfig) -> Pipeline:
    return Pipeline.load(folder, config)
