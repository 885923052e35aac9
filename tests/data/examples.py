"""Small corpora to prepare, and what a prepared folder holds, for tests."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lightconv.data.config import BytesConfig, PipelineConfig, SideConfig, TaskConfig, WordsConfig
from lightconv.data.corpus import Corpus, Example
from lightconv.data.store import Store
from tests.data.samples import make_lines, make_words

TASK = TaskConfig(kind="translation", corpus="own", source_lang="de", target_lang="en", metric="x")
LM_TASK = TaskConfig(kind="language_model", corpus="own", metric="perplexity")
SIDES = (SideConfig(lang="de"), SideConfig(lang="en"))
WORDS = PipelineConfig(sides=SIDES, subword=WordsConfig())
BYTES = PipelineConfig(sides=SIDES, subword=BytesConfig(vocab=300))


def corpus(
    train: Sequence[Example],
    valid: Sequence[Example] = (("a b", "x"),),
    pipeline: PipelineConfig = WORDS,
    **fields: Any,
) -> Corpus:
    given: dict[str, Any] = {
        "task": TASK if len(pipeline.sides) == 2 else LM_TASK,
        "pipeline": pipeline,
        "splits": {"train": partial(iter, train), "valid": partial(iter, valid)},
    }
    return Corpus(**given | fields)


def sentences(count: int, seed: int = 0) -> list[Example]:
    words = make_words(200, seed)
    return list(
        zip(make_lines(count, words, seed), make_lines(count, words, seed + 1), strict=True)
    )


def ids(store: Store) -> list[tuple[list[int], ...]]:
    return [tuple(side.tolist() for side in store[i]) for i in range(len(store))]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


class Notes:
    """A display that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.shown: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def show(self, what: str, done: int = 0, total: int | None = None) -> None:
        self.shown.append(what)

    def end(self) -> None:
        pass
