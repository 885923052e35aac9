"""Real text where it can be fetched; else invented text, and a line that says so."""

import io
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lightconv.corpora import Progress, open_corpus
from lightconv.corpora.synthetic import Settings, make
from lightconv.data.corpus import Corpus
from lightconv.demo import corpus
from lightconv.demo.plan import PLANS
from lightconv.demo.watch import Watch


@pytest.fixture
def no_apt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without apt, and small invented corpora."""

    def small(name: str, source: Path | None, cache: Path, progress: Progress) -> Corpus:
        if name.startswith("synthetic-"):
            return make(name, Settings(train=50, valid=5, test=5))
        return open_corpus(name, source, cache, progress)

    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(corpus, "open_corpus", small)
    monkeypatch.setenv("LIGHTCONV_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("no_apt")
def test_without_apt_the_text_is_invented(tmp_path: Path) -> None:
    file = io.StringIO()
    with Watch(file) as watch:
        found = corpus.find_data(PLANS["translation"], tmp_path / "data", watch)
    assert found.task.corpus == "synthetic-translation"
    assert corpus.is_invented(found)
    said = file.getvalue()
    assert "no apt-get on this machine" in said
    assert "going on with synthetic-translation" in said


@pytest.mark.usefixtures("no_apt")
def test_a_corpus_that_was_asked_for_is_not_replaced(tmp_path: Path) -> None:
    with Watch(io.StringIO()) as watch, pytest.raises(ValueError, match="no apt-get"):
        corpus.find_data(PLANS["translation"], tmp_path / "data", watch, "debian-en-fr")
    assert not (tmp_path / "data").exists()


@pytest.mark.usefixtures("no_apt")
def test_prepared_text_is_used_again(tmp_path: Path) -> None:
    with Watch(io.StringIO()) as watch:
        corpus.find_data(PLANS["lm"], tmp_path / "data", watch)
    file = io.StringIO()
    with Watch(file) as watch:
        found = corpus.find_data(PLANS["lm"], tmp_path / "data", watch)
    assert found.task.corpus == "synthetic-lm"
    assert "prepared before" in file.getvalue()


def test_few_byte_pairs_are_learned() -> None:
    made = make("synthetic-translation", Settings(train=50, valid=5, test=5))
    assert made.pipeline.subword.kind == "bytes"
    plan = replace(PLANS["translation"], vocab=300, max_len=77)
    config = corpus._configure(made, plan)
    assert config.pipeline.subword.vocab == 300  # type: ignore[union-attr]
    assert config.filters.max_len == 77
    words = make("synthetic-copy", Settings(train=50, valid=5, test=5))
    assert corpus._configure(words, plan).pipeline == words.pipeline


def test_only_the_beginnings_of_real_texts_are_read() -> None:
    made = make("synthetic-summary", Settings(train=50, valid=5, test=5))
    plan = replace(PLANS["summary"], lead=7)
    assert corpus._configure(made, plan).pipeline.sides == made.pipeline.sides
    real = replace(made, task=replace(made.task, corpus=plan.corpora[0]))
    source, target = corpus._configure(real, plan).pipeline.sides
    assert source == replace(made.pipeline.sides[0], truncate=7)
    assert target == made.pipeline.sides[1]
