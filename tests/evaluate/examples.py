"""Prepared folders of a few sentences, and those of tests/golden."""

from functools import partial
from pathlib import Path
from typing import Any

from lightconv.data.config import PipelineConfig, SideConfig, TaskConfig, WordsConfig
from lightconv.data.prepare import prepare
from lightconv.data.prepared import Prepared
from lightconv.data.text import Corpus, Example

GOLDEN = Path(__file__).parents[1] / "golden"


def make(
    folder: Path,
    train: list[Example],
    test: list[Example] | None = None,
    *,
    side: dict[str, Any] | None = None,
    subword: Any = None,
    metric: str = "x",
    **fields: Any,
) -> Prepared:
    """Prepares pairs of German and English, or texts; without `test` that is `train` again."""
    langs = ("de", "en")[-len(train[0]) :]
    splits = {"train": train, "valid": test or train, "test": test or train}
    sides = tuple(SideConfig(lang=lang, **(side or {})) for lang in langs)
    corpus = Corpus(
        task=TaskConfig(
            kind="translation" if len(langs) == 2 else "language_model",
            corpus="own",
            source_lang="de" if len(langs) == 2 else None,
            target_lang="en",
            metric=metric,
        ),
        pipeline=PipelineConfig(sides=sides, subword=subword or WordsConfig()),
        splits={name: partial(iter, examples) for name, examples in splits.items()},
        **fields,
    )
    return prepare(corpus, folder / "data", processes=1)
