"""Distillation (Kim and Rush, 2016): a student learns its teacher's outputs.

The prepared folder has these outputs as targets of training; validation and test do not change.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from lightconv.console import Display
from lightconv.data.prepared import (
    Contents,
    Prepared,
    Split,
    describe_split,
    is_prepared,
    write_contents,
)
from lightconv.data.store import StoreWriter
from lightconv.data.vocabulary import UNK
from lightconv.decode.options import DecodeConfig, TextOptions
from lightconv.evaluate.system import Examples, describe_search, open_model
from lightconv.files import digest, new_folder, write_manifest
from lightconv.models import Seq2Seq
from lightconv.models.folder import WEIGHTS_FILE

TRAIN = "train"


def distill(
    teacher: Path,
    prepared: Prepared,
    out: Path,
    *,
    beam: int | None = None,
    options: TextOptions | None = None,
    display: Display,
) -> Prepared:
    """`prepared` with the outputs of `teacher` as targets of training; `out` itself if it is that.

    beam  of the teacher's search; None: that of its folder
    """
    folder, search = open_model(teacher, prepared)
    if not folder.pairs:
        raise ValueError(f"{teacher} is a language model, expected a model of pairs")
    search = search if beam is None else replace(search, beam=beam)
    options = options or TextOptions()
    origin = replace(prepared.origin, inputs=_inputs(prepared, folder.path, search, options))
    if out.exists():
        if not is_prepared(out) or Prepared.open(out).origin.inputs != origin.inputs:
            raise ValueError(
                f"{out} exists, expected no folder, or outputs of this teacher for these sources "
                "by the same search. Remove it, or give another --out"
            )
        return Prepared.open(out)
    examples = Examples(prepared, TRAIN)
    display.note(f"{teacher} answers {examples.count:,} sources")
    model = folder.load()
    assert isinstance(model, Seq2Seq)  # by folder.pairs
    found = examples.search(
        model,
        search,
        options=options,
        show=lambda done: display.show("distilling", done, examples.count),
    )
    display.end()
    pairs = zip(examples.sources(), found.best, strict=True)
    sides = tuple(zip(*((source, best) for source, best in pairs if best), strict=True))
    if not sides:
        raise ValueError(f"{teacher} has only empty outputs, expected texts. Train it first")
    counts = {
        name: (np.bincount(list(map(len, side))), sum(ids.count(UNK) for ids in side))
        for name, side in zip(prepared.sides, sides, strict=True)
    }
    kept, statistics = len(sides[0]), prepared.statistics()
    dropped = {"empty": examples.count - kept}
    statistics["splits"][TRAIN] = describe_split(examples.count, dropped, counts)
    with new_folder(out) as fresh:
        for path in prepared.folder.iterdir():
            if path.is_file() and not path.name.startswith((f"{TRAIN}.", "manifest.")):
                shutil.copyfile(path, fresh / path.name)
        with StoreWriter(fresh, TRAIN, prepared.contents.vocabulary) as writer:
            writer.append(*sides)
        assert writer.digest is not None
        splits = prepared.contents.splits | {TRAIN: Split(examples=kept, digest=writer.digest)}
        contents = Contents(origin=origin, vocabulary=prepared.contents.vocabulary, splits=splits)
        write_contents(fresh, contents, statistics)
        write_manifest(fresh)
    return Prepared.open(out)


def _inputs(
    prepared: Prepared, teacher: Path, search: DecodeConfig, options: TextOptions
) -> dict[str, str]:
    """Everything that decides the teacher's outputs."""
    how = {**describe_search(search), "quantize": options.quantize}
    return {
        "sources": prepared.contents.splits[TRAIN].digest,
        "teacher": digest(teacher / WEIGHTS_FILE),
        "search": " ".join(f"{name}={value}" for name, value in sorted(how.items())),
    }
