"""Which pairs can be learned from, and the corpus they make."""

from hashlib import sha256
from pathlib import Path

import pytest

from lightconv.corpora.pairs import digests_of, is_translation, translation_corpus
from lightconv.corpora.splits import Item
from lightconv.data.config import BytesConfig


@pytest.mark.parametrize(
    ("source", "target", "kept"),
    [
        ("A text of words.", "Ein Text aus Wörtern.", True),
        ("A text of words.", "a text of words", False),
        ("A text of words.", "«A TEXT of words»", False),
        ("Syntax highlighter", "Syntaxhervorhebung", False),
        ("1 2 3 foo", "1 2 3 Fuß", False),
        ("A text of words.", "12 34", False),
        ("A text of words.", "", False),
        ("Set the delay", "设置延迟", True),
        ("a b " * 40, "ä", False),
        ("kinds of things", "verschiedene Arten von Dingen, die es gibt, und so weiter", True),
        (
            "kinds of things",
            "verschiedene Arten von Dingen, die es gibt, und noch mehr davon",
            False,
        ),
    ],
)
def test_what_can_be_learned_from(source: str, target: str, kept: bool) -> None:
    assert is_translation(source, target) == kept


def test_corpus() -> None:
    items = [Item(("a text of words", "ein Text"), "group")]
    corpus = translation_corpus("some-en-de", ("en", "de"), items, 0.0, {"index": "00"})
    assert (corpus.task.kind, corpus.task.corpus) == ("translation", "some-en-de")
    assert (corpus.task.source_lang, corpus.task.target_lang) == ("en", "de")
    assert [side.lang for side in corpus.pipeline.sides] == ["en", "de"]
    assert corpus.pipeline.subword == BytesConfig(vocab=8000, joint=True)
    assert list(corpus.splits["train"]()) == [("a text of words", "ein Text")]
    assert set(corpus.splits) == {"train", "valid", "test"}
    assert corpus.digests == {"index": "00"}


def test_digests(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"text")
    assert digests_of([tmp_path / "a"]) == {"a": sha256(b"text").hexdigest()}
