"""Plans are recipes that fit their data; text is real where it can be fetched."""

import io
import shutil
import tomllib
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path

import pytest

from lightconv.config import from_dict, to_toml
from lightconv.console import Display
from lightconv.corpora import CORPORA, Progress, open_corpus
from lightconv.corpora.synthetic import Settings, make
from lightconv.data.config import TaskConfig
from lightconv.data.prepare import prepare
from lightconv.data.text import Corpus
from lightconv.demo import run
from lightconv.demo.plan import PLANS, headline, make_recipe, quick
from lightconv.models.config import Seq2SeqConfig
from lightconv.recipe import Recipe

TASK = TaskConfig(kind="translation", corpus="x", metric="sacrebleu")
SMALL = Settings(train=50, valid=5, test=5)


@pytest.mark.parametrize("name", list(PLANS))
def test_a_plan_is_a_recipe(name: str) -> None:
    plan = PLANS[name]
    assert all(corpus in CORPORA for corpus in plan.corpora)
    for each in (plan, quick(plan)):
        recipe = make_recipe(each, TASK, (4000, 4000), shared=True)
        assert from_dict(Recipe, tomllib.loads(to_toml(recipe))) == recipe
        kinds = {layer.kind for layer in next(iter(recipe.model.stacks.values()))}
        assert kinds == {"lightconv", "dynamicconv"}  # both have kernels to show
        train = recipe.train
        assert train.schedule.warmup + train.schedule.period == train.max_steps  # type: ignore[union-attr]


def test_vocabularies_of_their_own() -> None:
    model = make_recipe(PLANS["translation"], TASK, (30, 40), shared=False).model
    assert isinstance(model, Seq2SeqConfig)
    assert (model.source_vocab, model.target_vocab) == (30, 40)
    assert model.share_embeddings == "decoder"


def test_headline() -> None:
    """The perplexity of a language model is that of a subword, other scores are their values."""
    score = {"value": 9.0, "parts": {"per_subword": 4.0}}
    systems = {"model": [score], "unigram": [{"value": 7, "parts": {}}]}
    assert headline("lm", {"scores": systems}) == [("the model", 4.0), ("counting words", 7.0)]


# --- Text


@pytest.fixture
def no_apt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without apt, and small synthetic corpora."""

    def small(name: str, source: Path | None, cache: Path, progress: Progress) -> Corpus:
        if name.startswith("synthetic-"):
            return make(name, SMALL)
        return open_corpus(name, source, cache, progress)

    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(run, "open_corpus", small)
    monkeypatch.setenv("LIGHTCONV_CACHE", str(tmp_path / "cache"))


def find(task: str, folder: Path, corpus: str | None = None) -> tuple[str, str]:
    """The corpus that was used, and the notes."""
    file = io.StringIO()
    with redirect_stderr(file), Display() as display:
        found = run.find_data(PLANS[task], folder, display, corpus)
    return found.task.corpus, file.getvalue()


@pytest.mark.usefixtures("no_apt")
def test_without_apt_the_text_is_invented_and_used_again(tmp_path: Path) -> None:
    corpus, said = find("lm", tmp_path / "data")
    assert corpus == "synthetic-lm"
    assert "no apt-get on this machine" in said
    assert "using synthetic-lm instead" in said
    corpus, said = find("lm", tmp_path / "data")
    assert corpus == "synthetic-lm" and "prepared before" in said


@pytest.mark.usefixtures("no_apt")
def test_a_corpus_that_was_asked_for_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no apt-get"):
        find("translation", tmp_path / "data", "debian-en-fr")
    assert not (tmp_path / "data").exists()


def test_few_byte_pairs_are_learned() -> None:
    made = make("synthetic-translation", SMALL)
    assert made.pipeline.subword.kind == "bytes"
    plan = replace(PLANS["translation"], vocab=300, max_len=77)
    config = run.configure(made, plan)
    assert config.pipeline.subword.vocab == 300  # type: ignore[union-attr]
    assert config.filters.max_len == 77
    words = make("synthetic-copy", SMALL)
    assert run.configure(words, plan).pipeline == words.pipeline


def test_only_the_beginnings_of_real_texts_are_read() -> None:
    made = make("synthetic-summary", SMALL)
    plan = replace(PLANS["summary"], lead=7)
    assert run.configure(made, plan).pipeline.sides == made.pipeline.sides
    real = replace(made, task=replace(made.task, corpus=plan.corpora[0]))
    source, target = run.configure(real, plan).pipeline.sides
    assert source == replace(made.pipeline.sides[0], truncate=7)
    assert target == made.pipeline.sides[1]


def test_texts_at_even_distances() -> None:
    texts = ["one two"] * 5 + [" ".join(["w"] * 8)] * 60 + [" ".join(["w"] * 50)] * 5
    assert run.choose(texts, most=18) == [5, 15, 25, 35, 45, 55]
    assert run.choose(["a b"] * 3, most=18) == [0, 1, 2]  # none is of moderate length
    assert len(run.choose(texts, most=100)) == run.SHOWN


def test_the_first_words(tmp_path: Path) -> None:
    prepared = prepare(make("synthetic-summary", SMALL), tmp_path / "data", processes=1)
    counts = [len(text.split()) for text in prepared.references("valid")]
    most = round(sum(counts) / len(counts))
    found = run.lead_texts(prepared)
    for lead, source in zip(found, prepared.texts("test", "source"), strict=True):
        assert source.startswith(lead)
        assert 1 <= len(lead.split()) <= most
        *before, last = (word.endswith((".", "!", "?")) for word in lead.split())
        assert not any(before) and (last or len(lead.split()) == most)
