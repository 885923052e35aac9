"""The ranges of a task's configuration."""

import pytest

from lightconv.data import TaskConfig


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"corpus": ""}, "^corpus='' must be a word without spaces$"),
        ({"corpus": "my corpus"}, "^corpus='my corpus' must be a word without spaces$"),
        ({"metric": " bleu"}, "^metric=' bleu' must be a word without spaces$"),
        ({"source_lang": ""}, "^source_lang='' must be"),
        ({"target_lang": "d\te"}, r"^target_lang='d\\te' must be"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TaskConfig(**{"kind": "translation", "corpus": "toy", "metric": "bleu", **changes})


def test_languages_may_be_absent() -> None:
    task = TaskConfig(kind="language_model", corpus="billion-word", metric="perplexity")
    assert task.source_lang is None
