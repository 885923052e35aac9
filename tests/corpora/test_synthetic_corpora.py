"""Made-up corpora: the same everywhere, no leak, and each does what its name says."""

import pickle
import subprocess
import sys
from hashlib import sha256
from itertools import islice
from pathlib import Path

import pytest

from lightconv.corpora import CORPORA, open_corpus
from lightconv.corpora.synthetic import Settings, make
from lightconv.data.corpus import Example

NAMES = [name for name in CORPORA if name.startswith("synthetic-")]
SMALL = Settings(train=300, valid=20, test=20)


def take(name: str, split: str = "train", settings: Settings = SMALL) -> list[Example]:
    return list(make(name, settings).splits[split]())


SMALL_SPLITS = ("train", "valid", "test")


def digest(name: str) -> str:
    text = "\n".join("\t".join(example) for split in SMALL_SPLITS for example in take(name, split))
    return sha256(text.encode()).hexdigest()[:12]


def test_there_are_five() -> None:
    assert len(NAMES) == 5


@pytest.mark.parametrize("name", NAMES)
def test_sizes_and_sides(name: str) -> None:
    corpus = make(name, SMALL)
    assert corpus.task.corpus == name
    assert [len(take(name, split)) for split in SMALL_SPLITS] == [300, 20, 20]
    sides = 1 if name == "synthetic-lm" else 2
    assert len(corpus.pipeline.sides) == sides
    for example in take(name):
        assert len(example) == sides
        assert all(text and text == " ".join(text.split()) for text in example)


@pytest.mark.parametrize("name", NAMES)
def test_no_text_is_in_two_splits(name: str) -> None:
    first, second, third = ({example[0] for example in take(name, s)} for s in SMALL_SPLITS)
    assert not first & second and not first & third and not second & third


@pytest.mark.parametrize("name", NAMES)
def test_readers_begin_anew_and_travel(name: str) -> None:
    reader = make(name, SMALL).splits["valid"]
    assert list(reader()) == list(reader()) == list(pickle.loads(pickle.dumps(reader))())


@pytest.mark.parametrize("name", NAMES)
def test_opened_by_name(name: str, tmp_path: Path) -> None:
    corpus = open_corpus(name, None, tmp_path)
    assert list(islice(corpus.splits["test"](), 3)) == list(islice(make(name).splits["test"](), 3))
    assert not list(tmp_path.iterdir())


def test_seeds_differ_and_a_longer_corpus_begins_with_the_shorter() -> None:
    for name in NAMES:
        assert take(name) != take(name, settings=Settings(train=300, seed=1))
        assert take(name, settings=Settings(train=10)) == take(name)[:10]


# Data once prepared is compared by digest, so these texts do not change.
PUBLISHED = {
    "synthetic-translation": "7009b62cdc6f",
    "synthetic-reverse": "d598d8c7af5a",
    "synthetic-copy": "8f020b6b4214",
    "synthetic-lm": "8d4f56c687ae",
    "synthetic-summary": "e7a38853aa01",
}


def test_the_same_whatever_the_hash_seed() -> None:
    code = (
        "from tests.corpora.test_synthetic_corpora import NAMES, digest\n"
        "print([digest(name) for name in NAMES])"
    )
    for seed in ("0", "77"):
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}
        output = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
        assert output == f"{list(PUBLISHED.values())}\n"


def test_copy_and_reverse() -> None:
    settings = Settings(train=300, symbols=7, min_len=2, max_len=4)
    lengths = set()
    for source, target in take("synthetic-copy", settings=settings):
        assert source == target
    for source, target in take("synthetic-reverse", settings=settings):
        words = source.split(" ")
        assert target.split(" ") == list(reversed(words))
        assert set(words) <= {f"w{n}" for n in range(7)}
        lengths.add(len(words))
    assert lengths == {2, 3, 4}


def test_too_few_texts() -> None:
    with pytest.raises(ValueError, match="too few different texts"):
        take("synthetic-copy", "test", Settings(symbols=1, min_len=1, max_len=1))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"train": 0}, "train=0"),
        ({"seed": -1}, "seed=-1"),
        ({"min_len": 9, "max_len": 8}, "min_len=9 must not be above max_len=8"),
    ],
)
def test_settings_are_checked(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**wrong)
