"""From a corpus to a prepared folder: texts to words, words to ids; safe to kill and restart.

The stages are done in a work folder beside the prepared folder, under a hidden name, which records
each finished stage. Its folder `result` is renamed to the prepared folder at the end. Memory does
not grow with the corpus, except for its different words.
"""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lightconv.config import differences, from_dict, to_dict
from lightconv.console import Display
from lightconv.data.config import PrepareConfig, SideConfig
from lightconv.data.corpus import Corpus
from lightconv.data.learn import learn
from lightconv.data.pipeline import Pipeline
from lightconv.data.prepared import (
    PIPELINE_FILES,
    Contents,
    Origin,
    Prepared,
    Split,
    is_prepared,
    write_contents,
)
from lightconv.data.stages import read_words, without_steps, words_file, write_ids, write_words
from lightconv.data.statistics import REASONS
from lightconv.data.store import PAIR, TEXT
from lightconv.data.subword import Codes
from lightconv.data.words import check_packages
from lightconv.device import count_cores
from lightconv.files import digest, lock, replace_file, sync, write_manifest

TRAIN = "train"
# With fewer examples the start of processes takes longer than their work.
WORTH_PROCESSES = 5000
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
    if len(config.pipeline.sides) != len(corpus.pipeline.sides):
        raise ValueError(
            f"pipeline.sides has {len(config.pipeline.sides)}, expected "
            f"{len(corpus.pipeline.sides)} for {corpus.task.corpus}"
        )
    work = Work(out, _origin(corpus, config))
    with work.opened():
        stages = _Stages(corpus, work, processes or count_cores(), display or Display(quiet=True))
        stages.tell()
        stages.read()
        stages.learn()
        stages.encode()
        stages.describe()
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


def _origin(corpus: Corpus, config: PrepareConfig) -> Origin:
    # Other subwords than those of the corpus need codes of their own.
    given = corpus.codes is not None and config.pipeline.subword == corpus.pipeline.subword
    return Origin(
        task=corpus.task,
        pipeline=config.pipeline,
        filters=config.filters,
        tokenized=corpus.tokenized,
        codes=digest(corpus.codes) if corpus.codes is not None and given else None,
        inputs=dict(corpus.digests),
    )


def work_folder(out: Path) -> Path:
    """The folder in which the prepared folder `out` is made."""
    return out.absolute().with_name(f".{out.absolute().name}.prepare")


class Work:
    """The work folder of a preparation; one process at a time has it open.

    origin   what decides the result: a folder begun with another origin is begun anew
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
        busy = (
            f"another process prepares {self.out}. Wait until it has ended, or choose another "
            "folder"
        )
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

    def finish(self, stage: str, found: Mapping[str, Any]) -> None:
        """Records a finished stage; its files must be on disk."""
        self.stages[stage] = dict(found)
        self._write()

    def publish(self) -> None:
        """Renames the result to the prepared folder, which it replaces; removes the work folder."""
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
        """Finds the finished stages; removes them if they have another origin."""
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
    """The stages of one preparation; each does nothing if it is finished already."""

    def __init__(self, corpus: Corpus, work: Work, processes: int, display: Display) -> None:
        self.corpus = corpus
        self.work = work
        self.origin = work.origin
        self.processes = processes
        self.display = display
        self.sides = PAIR if len(self.origin.pipeline.sides) == 2 else TEXT

    def tell(self) -> None:
        """Tells what becomes of an earlier attempt."""
        if self.work.changed:
            self.display.note(
                f"begun before with other settings or inputs, starting anew: "
                f"{'; '.join(self.work.changed[:5])}"
            )
        elif self.work.stages:
            self.display.note(f"resuming after: {', '.join(self.work.stages)}")

    def read(self) -> None:
        """Texts to words, split by split."""
        for split, read in self.corpus.splits.items():
            stage = f"text of {split}"
            if stage not in self.work.stages:
                found = write_words(
                    read,
                    split,
                    dict(zip(self.sides, self._steps(), strict=True)),
                    self.origin.filters if split == TRAIN else None,
                    words=self.work.folder,
                    texts=None if split == TRAIN else self.work.result,
                    processes=self.processes,
                    display=self.display,
                    expected=self.corpus.examples.get(split),
                )
                _check_kept(split, found["read"], found["kept"], found["dropped"])
                self.work.finish(stage, found)

    def learn(self) -> None:
        """Codes and vocabularies, from the words of training."""
        if "vocabulary" in self.work.stages:
            return
        examples = self._text(TRAIN)["kept"]
        given = self.corpus.codes if self.origin.codes is not None else None

        def progress(step: str, done: int) -> None:
            if step == "words":
                self.display.show("counting words", done, examples)
            else:
                self.display.show("learning the vocabulary", 0)

        learned = learn(
            without_steps(self.origin.pipeline),
            partial(read_words, self.work.folder, TRAIN, self.sides),
            processes=self._workers(examples),
            progress=progress,
            given=None if given is None else Codes.load(given),
        )
        self.display.end()
        pipeline = Pipeline(self.origin.pipeline, *learned)
        for name in PIPELINE_FILES:  # of an attempt that was stopped here
            (self.work.result / name).unlink(missing_ok=True)
        pipeline.save(self.work.result)
        sizes = dict(zip(self.sides, learned.vocabularies.sizes(), strict=False))
        mark = hashlib.sha256(repr(sorted(pipeline.files().items())).encode()).hexdigest()
        self.work.finish("vocabulary", {"sizes": sizes, "digest": mark})

    def encode(self) -> None:
        """Words to ids, split by split."""
        vocabulary = self.work.stages["vocabulary"]
        for split in self.corpus.splits:
            text = self._text(split)
            if f"ids of {split}" not in self.work.stages:
                # Filters that count words have been applied to the words already.
                filtered = split == TRAIN and self.origin.filters.unit == "tokens"
                found = write_ids(
                    self.work.folder,
                    split,
                    vocabulary["sizes"],
                    self.origin.filters if filtered else None,
                    pipeline=vocabulary["digest"],
                    out=self.work.result,
                    processes=self._workers(text["kept"]),
                    display=self.display,
                    total=text["kept"],
                )
                dropped = Counter(text["dropped"]) + Counter(found["dropped"])
                _check_kept(split, text["read"], found["kept"], dropped)
                self.work.finish(f"ids of {split}", found)
            for side in self.sides:
                words_file(self.work.folder, split, side).unlink(missing_ok=True)

    def describe(self) -> None:
        """Writes contents, statistics and manifest."""
        splits, statistics = {}, {}
        for split in self.corpus.splits:
            text, ids = self._text(split), self.work.stages[f"ids of {split}"]
            splits[split] = Split(examples=ids["kept"], digest=ids["digest"])
            dropped = Counter(text["dropped"]) + Counter(ids["dropped"])
            statistics[split] = {
                "read": text["read"],
                "kept": ids["kept"],
                "dropped": {reason: dropped[reason] for reason in REASONS if dropped[reason]},
                "sides": ids["sides"],
            }
        sizes = self.work.stages["vocabulary"]["sizes"]
        contents = Contents(origin=self.origin, vocabulary=sizes, splits=splits)
        write_contents(self.work.result, contents, {"vocabulary": sizes, "splits": statistics})
        write_manifest(self.work.result)

    def _steps(self) -> tuple[SideConfig, ...]:
        """Steps from the texts of the corpus to words: the owners may have done some."""
        sides = self.origin.pipeline.sides
        if not self.corpus.tokenized:
            return sides
        done: dict[str, Any] = {"normalize": "none", "tokenize": "none", "split_hyphens": False}
        return tuple(replace(side, **done) for side in sides)

    def _text(self, split: str) -> dict[str, Any]:
        found: dict[str, Any] = self.work.stages[f"text of {split}"]
        return found

    def _workers(self, examples: int) -> int:
        return self.processes if examples >= WORTH_PROCESSES else 1


def _check_kept(split: str, read: int, kept: int, dropped: Mapping[str, int]) -> None:
    """Raises ValueError with the counts if nothing is left of a split."""
    if kept:
        return
    if not read:
        raise ValueError(
            f"split {split!r} has no examples, expected at least one. Give more text, or --valid "
            "for files of your own"
        )
    reasons = ", ".join(f"{each} {dropped[each]:,}" for each in REASONS if dropped.get(each))
    raise ValueError(
        f"nothing is left of split {split!r} after filtering: {read:,} examples read, dropped: "
        f"{reasons}. Change the filters with --set filters.min_len, max_len or max_ratio"
    )
