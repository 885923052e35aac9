"""From a corpus to a prepared folder: read, learn, encode; safe to kill and to start again.

Four stages, each recorded in the work folder when it is done: the text of every split becomes
words, codes and vocabularies are learned from those of training, every split is encoded, and the
folder gets its name. Memory does not grow with the corpus, except for its different words.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lightconv.console import Display
from lightconv.data.codes import Codes
from lightconv.data.config import PipelineConfig, SideConfig
from lightconv.data.corpus import Corpus
from lightconv.data.extract import Extraction, extract, words_file
from lightconv.data.filters import REASONS
from lightconv.data.layout import PAIR, TEXT
from lightconv.data.learn import learn
from lightconv.data.origin import Origin, PrepareConfig, find_origin
from lightconv.data.pipeline import Pipeline
from lightconv.data.prepared import (
    PIPELINE_FILES,
    Contents,
    Prepared,
    Split,
    is_prepared,
    write_contents,
)
from lightconv.data.tokens import Encoding, encode, read_words, without_steps
from lightconv.data.words import check_packages
from lightconv.data.work import Work
from lightconv.files import MANIFEST_FILE, write_manifest

TRAIN = "train"
# With fewer examples it takes longer to start processes than to do their work.
WORTH_PROCESSES = 5000


def prepare(
    corpus: Corpus,
    out: str | Path,
    *,
    config: PrepareConfig | None = None,
    overwrite: bool = False,
    processes: int | None = None,
    display: Display | None = None,
) -> Prepared:
    """Prepares a corpus into the folder `out`, or goes on where an earlier call was stopped.

    config     other steps and filters than the corpus has
    overwrite  whether a prepared folder may be replaced
    processes  how many work; None: as many as there are cores
    """
    out = Path(out)
    check_free(out, overwrite=overwrite)
    config = config or PrepareConfig(pipeline=corpus.pipeline, filters=corpus.filters)
    check_packages(config.pipeline)
    _check_sides(corpus, config.pipeline)
    with Work(out, find_origin(corpus, config)) as work:
        stages = _Stages(corpus, work, processes or cores(), display or Display(quiet=True))
        stages.tell()
        stages.extract()
        stages.learn()
        stages.encode()
        stages.describe()
        check_free(out, overwrite=overwrite)
        work.publish()
    return Prepared.open(out)


def check_free(out: Path, *, overwrite: bool) -> None:
    """Raises ValueError if something stands there that may not be replaced."""
    above = next(folder for folder in out.absolute().parents if folder.exists())
    if not above.is_dir():
        raise ValueError(f"{out} cannot be made: {above} is a file, expected a folder")
    if not out.is_symlink() and not out.exists():
        return
    if not overwrite:
        raise ValueError(f"{out} exists. Choose another folder, or say --overwrite")
    is_folder = out.is_dir() and not out.is_symlink()
    if not is_folder or (any(out.iterdir()) and not is_prepared(out)):
        raise ValueError(f"{out} exists and is no prepared folder, so it is not overwritten")


def cores() -> int:
    """How many processors this process may use."""
    with suppress(AttributeError):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Stages:
    """The stages of one preparation; each does nothing if it is done already."""

    def __init__(self, corpus: Corpus, work: Work, processes: int, display: Display) -> None:
        self.corpus = corpus
        self.work = work
        self.origin: Origin = work.origin
        self.processes = processes
        self.display = display
        self.names = PAIR if len(self.origin.pipeline.sides) == 2 else TEXT

    def tell(self) -> None:
        """Says what becomes of an earlier attempt."""
        if self.work.changed:
            self.display.note(
                f"begun before with other settings or inputs, starting anew: "
                f"{'; '.join(self.work.changed[:5])}"
            )
        elif self.work.stages:
            self.display.note(f"going on after: {', '.join(self.work.stages)}")

    def extract(self) -> None:
        """Text to words, split by split."""
        for split, read in self.corpus.splits.items():
            stage = f"text of {split}"
            if stage not in self.work.stages:
                found = extract(
                    read,
                    split,
                    Extraction(
                        sides=dict(zip(self.names, self._steps(), strict=True)),
                        filters=self.origin.filters if split == TRAIN else None,
                        plain=split != TRAIN,
                    ),
                    words=self.work.folder,
                    texts=self.work.result,
                    processes=self.processes,
                    display=self.display,
                    expected=self.corpus.examples.get(split),
                )
                _check_some(split, found["read"], found["kept"], found["dropped"])
                self.work.finish(stage, found)

    def learn(self) -> None:
        """Codes and vocabularies, from the words of training."""
        if "vocabulary" in self.work.stages:
            return
        examples = self._text(TRAIN)["kept"]
        learned = learn(
            without_steps(self.origin.pipeline),
            partial(read_words, self.work.folder, TRAIN, self.names),
            processes=self._for(examples),
            progress=partial(self._show_learning, examples),
            given=self._given_codes(),
        )
        self.display.end()
        pipeline = Pipeline(self.origin.pipeline, learned.codes, learned.vocabularies)
        for name in PIPELINE_FILES:  # what an attempt left that was stopped here
            (self.work.result / name).unlink(missing_ok=True)
        pipeline.save(self.work.result)
        digest = hashlib.sha256()
        for name, data in sorted((pipeline.files() | learned.vocabularies.files()).items()):
            digest.update(f"{name} {len(data)}\n".encode() + data)
        sizes = learned.vocabularies.sizes()
        self.work.finish(
            "vocabulary",
            {"sizes": dict(zip(self.names, sizes, strict=False)), "digest": digest.hexdigest()},
        )

    def encode(self) -> None:
        """Words to ids, split by split."""
        vocabulary = self.work.stages["vocabulary"]
        for split in self.corpus.splits:
            text = self._text(split)
            if f"ids of {split}" not in self.work.stages:
                # Filters that count words have seen the text already.
                filtered = split == TRAIN and self.origin.filters.unit == "tokens"
                found = encode(
                    self.work.folder,
                    split,
                    Encoding(
                        pipeline=(str(self.work.result), vocabulary["digest"]),
                        filters=self.origin.filters if filtered else None,
                    ),
                    vocabulary["sizes"],
                    out=self.work.result,
                    processes=self._for(text["kept"]),
                    display=self.display,
                    total=text["kept"],
                )
                dropped = Counter(text["dropped"]) + Counter(found["dropped"])
                _check_some(split, text["read"], found["kept"], dropped)
                self.work.finish(f"ids of {split}", found)
            for side in self.names:
                words_file(self.work.folder, split, side).unlink(missing_ok=True)

    def describe(self) -> None:
        """Writes what the folder holds, and its checksums."""
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
        (self.work.result / MANIFEST_FILE).unlink(missing_ok=True)
        write_manifest(self.work.result)

    def _steps(self) -> tuple[SideConfig, ...]:
        """From the texts of the corpus to words: owners may have done some of it."""
        if not self.corpus.tokenized:
            return self.origin.pipeline.sides
        return tuple(
            replace(side, normalize="none", tokenize="none", split_hyphens=False)
            for side in self.origin.pipeline.sides
        )

    def _given_codes(self) -> Codes | None:
        if self.origin.codes is None or self.corpus.codes is None:
            return None
        return Codes.load(self.corpus.codes)

    def _show_learning(self, total: int, step: str, done: int) -> None:
        if step == "words":
            self.display.show("counting words", done, total)
        else:
            self.display.show("learning the vocabulary", 0)

    def _text(self, split: str) -> dict[str, Any]:
        found: dict[str, Any] = self.work.stages[f"text of {split}"]
        return found

    def _for(self, examples: int) -> int:
        return self.processes if examples >= WORTH_PROCESSES else 1


def _check_sides(corpus: Corpus, config: PipelineConfig) -> None:
    if len(config.sides) != len(corpus.pipeline.sides):
        raise ValueError(
            f"pipeline.sides has {len(config.sides)}, expected {len(corpus.pipeline.sides)} for "
            f"{corpus.task.corpus}"
        )


def _check_some(split: str, read: int, kept: int, dropped: Mapping[str, int]) -> None:
    """Raises ValueError with the numbers if nothing is left of a split."""
    if kept:
        return
    if not read:
        raise ValueError(
            f"split {split!r} has no examples, expected at least one. Give more text, or --valid "
            "for files of your own"
        )
    reasons = ", ".join(
        f"{reason} {dropped[reason]:,}" for reason in REASONS if dropped.get(reason)
    )
    raise ValueError(
        f"nothing is left of split {split!r} after filtering: {read:,} examples read, dropped: "
        f"{reasons}. Change the filters with --set filters.min_len, max_len or max_ratio"
    )
