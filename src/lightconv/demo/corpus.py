"""The demo's text: real where the machine can fetch it, else invented, and then it says so."""

from dataclasses import replace
from pathlib import Path

from lightconv.console import Display
from lightconv.corpora import open_corpus
from lightconv.data.config import BytesConfig, PrepareConfig
from lightconv.data.corpus import Corpus
from lightconv.data.prepare import prepare
from lightconv.data.prepared import Prepared, is_prepared
from lightconv.demo.plan import Plan
from lightconv.files import cache_folder


def find_data(plan: Plan, folder: Path, display: Display, corpus: str | None = None) -> Prepared:
    """The prepared folder, made if it is not there yet.

    corpus  the one to take; without it the plan's, and where that cannot be had the invented one
    """
    if is_prepared(folder):
        found = Prepared.open(folder)
        known = (corpus,) if corpus else plan.corpora
        if found.task.corpus not in known:
            raise ValueError(
                f"{folder} holds {found.task.corpus}, expected {' or '.join(known)}. Choose "
                "another folder with --out"
            )
        display.note(f"using {folder} ({found.task.corpus}), prepared before")
        return found
    real, invented = plan.corpora
    name = corpus or real
    display.show(f"fetching and reading {name}")
    try:
        opened = open_corpus(name, None, cache_folder() / "corpora", display.note)
    except ValueError as error:
        if corpus is not None:
            raise
        display.note(f"{real} cannot be fetched: {error}")
        display.note(f"going on with {invented}: the language is invented, everything else is real")
        opened = open_corpus(invented, None, cache_folder() / "corpora", display.note)
    display.end()
    return prepare(opened, folder, config=_configure(opened, plan), display=display)


def _configure(corpus: Corpus, plan: Plan) -> PrepareConfig:
    """How the corpus is prepared: as it says itself, but for byte pairs and long texts."""
    pipeline = corpus.pipeline
    if isinstance(pipeline.subword, BytesConfig):
        pipeline = replace(pipeline, subword=replace(pipeline.subword, vocab=plan.vocab))
    if plan.lead is not None and corpus.task.corpus == plan.corpora[0]:
        source, *others = pipeline.sides
        pipeline = replace(pipeline, sides=(replace(source, truncate=plan.lead), *others))
    filters = replace(corpus.filters, max_len=plan.max_len)
    return PrepareConfig(pipeline=pipeline, filters=filters)


def is_invented(prepared: Prepared) -> bool:
    """Whether it is a made-up corpus."""
    return prepared.task.corpus.startswith("synthetic-")
