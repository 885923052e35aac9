"""Billion Word: 99 shards for training, two of the held-out files, from archive or folder."""

import pickle
from pathlib import Path

import pytest

from lightconv.corpora import open_corpus
from lightconv.data.config import WordsConfig
from lightconv.data.vocabulary import Vocabulary
from lightconv.models.config import LanguageModelConfig
from lightconv.paper.recipes import RECIPES
from tests.corpora.packing import lines, pack, write_folder

ROOT = "1-billion-word-language-modeling-benchmark-r13output"
TRAIN = f"{ROOT}/training-monolingual.tokenized.shuffled/news.en-"
HELD_OUT = f"{ROOT}/heldout-monolingual.tokenized.shuffled/news.en.heldout-"
# Two sentences a shard; the owners held out shard 0.
FILES = {
    f"{ROOT}/README": "about\n",
    **{f"{HELD_OUT}{n:05}-of-00050": lines(f"Held out {n} .") for n in range(50)},
    **{
        f"{TRAIN}{n:05}-of-00100": lines(f"Shard {n} one .", f"Shard {n} two .")
        for n in range(1, 100)
    },
}


@pytest.mark.parametrize("packed", [True, False], ids=["archive", "folder"])
def test_splits(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / f"{ROOT}.tar.gz"
    path = pack(path, FILES) if packed else write_folder(tmp_path / "loose", FILES)
    corpus = open_corpus("billion-word", path, tmp_path / "cache")
    train = [text for (text,) in corpus.splits["train"]()]
    assert len(train) == len(set(train)) == 198
    assert train[:3] == ["Shard 1 one .", "Shard 1 two .", "Shard 2 one ."]
    assert list(corpus.splits["valid"]()) == [("Held out 1 .",)]
    assert list(pickle.loads(pickle.dumps(corpus.splits["test"]))()) == [("Held out 0 .",)]
    assert len(corpus.digests) == (1 if packed else 101)


def test_the_papers_vocabulary(tmp_path: Path) -> None:
    corpus = open_corpus("billion-word", write_folder(tmp_path, FILES), tmp_path / "cache")
    recipe = RECIPES["billion-word-dynamicconv"]
    assert corpus.task == recipe.task
    assert isinstance(recipe.model, LanguageModelConfig)
    words = corpus.pipeline.subword
    assert isinstance(words, WordsConfig) and words.min_count == 3 and words.most
    assert words.most + len(Vocabulary.of([])) == recipe.model.vocab == 793_471
    (side,) = corpus.pipeline.sides
    assert (side.normalize, side.tokenize, side.lowercase) == ("none", "none", False)


def test_missing_shards_are_named(tmp_path: Path) -> None:
    content = {name: text for name, text in FILES.items() if "00042-of-00100" not in name}
    with pytest.raises(ValueError, match=r"lacks news\.en-00042-of-00100, expected 1-billion-word"):
        open_corpus("billion-word", pack(tmp_path / "a.tar.gz", content), tmp_path)
    wrong = write_folder(tmp_path / "wrong", {"x.txt": "x"})
    with pytest.raises(ValueError, match=r"lacks news\.en-00001-of-00100, .* and 98 more"):
        open_corpus("billion-word", wrong, tmp_path)
