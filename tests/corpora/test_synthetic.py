"""Generated corpora: the same everywhere, no leak; rules of the languages and the documents."""

import pickle
import re
import subprocess
import sys
from hashlib import sha256
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from lightconv.corpora import CORPORA, open_corpus
from lightconv.corpora.synthetic import Languages, Settings, Word, document, make, sentence
from lightconv.data.text import SPLITS, Example

NAMES = [name for name in CORPORA if name.startswith("synthetic-")]
SIZES = {"train": 300, "valid": 20, "test": 20}
SMALL = Settings(**SIZES)


def take(name: str, split: str = "train", settings: Settings = SMALL) -> list[Example]:
    return list(make(name, settings).splits[split]())


def digest(name: str) -> str:
    text = "\n".join("\t".join(example) for split in SPLITS for example in take(name, split))
    return sha256(text.encode()).hexdigest()[:12]


@pytest.mark.parametrize("name", NAMES)
def test_corpora(name: str, tmp_path: Path) -> None:
    corpus = make(name, SMALL)
    assert corpus.task.corpus == name
    texts = {split: list(read()) for split, read in corpus.splits.items()}
    assert {split: len(examples) for split, examples in texts.items()} == SIZES
    sides = 1 if name == "synthetic-lm" else 2
    assert len(corpus.pipeline.sides) == sides
    for example in texts["train"]:
        assert len(example) == sides
        assert all(text and text == " ".join(text.split()) for text in example)
    sources = [{example[0] for example in examples} for examples in texts.values()]
    assert sum(map(len, sources)) == len(set().union(*sources)), "no text is in two splits"
    reader = corpus.splits["valid"]
    assert list(reader()) == texts["valid"] == list(pickle.loads(pickle.dumps(reader))())
    opened = open_corpus(name, None, tmp_path).splits["test"]
    assert list(islice(opened(), 3)) == list(islice(make(name).splits["test"](), 3))
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
        "from tests.corpora.test_synthetic import NAMES, digest\n"
        "print({name: digest(name) for name in NAMES})"
    )
    for seed in ("0", "77"):
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}
        output = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
        assert output == f"{PUBLISHED}\n"


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


# --- The invented languages


class Script(Random):
    """Random numbers of a list."""

    def __init__(self, *numbers: float) -> None:
        super().__init__()
        self.numbers = iter(numbers)

    def random(self) -> float:
        return next(self.numbers)


def test_order_and_endings() -> None:
    languages = Languages()
    languages.words = {
        "determiners": [Word("la", "tu")],
        "adjectives": [Word("gran", "mag"), Word("ruj", "eryth")],
        "nouns": [Word("hund", "kyn", "a"), Word("kat", "ail", "o"), Word("stal", "auch", "u")],
        "verbs": [Word("vid", "blep")],
        "relations": [Word("en", "par")],
        "conjunctions": [Word("et", "kai")],
    }

    def chosen(place: int, count: int) -> list[float]:
        """Numbers with which `pick` takes one of `count` words."""
        return [(place + 0.5) / count, 1.0]

    dog = [0.9, 0.9, *chosen(0, 1), *chosen(0, 2), *chosen(1, 2), *chosen(0, 3), 0.1]
    cats = [0.1, 0.1, *chosen(0, 1), *chosen(1, 3), 0.9]
    barn = [0.6, 0.6, *chosen(0, 1), *chosen(1, 2), *chosen(2, 3), 0.1]
    see, past, future = chosen(0, 1), [0.5], [0.9]
    assert languages.clause(Script(0.9, *dog, *see, *past, *cats)) == (
        "la gran ruj hund vidro la katki",
        "kyna maga erytha tua ailosh tuosh blepith",
    )
    placed = [0.1, *cats, *see, *future, *dog, *chosen(0, 1), *barn]
    source, target = (
        "la katki vidvesu la gran ruj hund en la ruj stal",
        "ailosh tuosh auchu erythu tuu par kyna maga erytha tua blepolanni",
    )
    assert languages.clause(Script(*placed)) == (source, target)
    assert languages.sentence(Script(*placed, 0.2, *placed, *chosen(0, 1), 0.1)) == (
        f"L{source[1:]} et {source}?",
        f"A{target[1:]} kai {target}?",
    )


def test_a_source_has_one_translation() -> None:
    languages = Languages(3)
    random = Random(1)
    known: dict[str, str] = {}
    for _ in range(5000):
        source, target = languages.sentence(random)
        assert known.setdefault(source, target) == target
        assert source[-1] == target[-1] and source[-1] in ".?"
        assert len(source.split()) == len(target.split())


def test_no_word_is_two() -> None:
    languages = Languages(0)
    words = [word for kind in languages.words.values() for word in kind]
    assert len({word.source for word in words}) == len({word.target for word in words}) == 193
    assert not {word.source for word in words} & {word.target for word in words}
    assert {noun.gender for noun in languages.words["nouns"]} == {"a", "o", "u"}


# --- Sentences and documents


def test_what_returns_is_the_same() -> None:
    random = Random(1)
    pattern = re.compile(
        r"on \w+ , (\w+) gives (\w+) a \w+ (\w+) , and (\w+) puts the (\w+) away ."
    )
    texts = [sentence(random)[0] for _ in range(500)]
    assert not any("{" in text or not text.endswith(" .") for text in texts)
    gifts = [match.groups() for match in map(pattern.fullmatch, texts) if match]
    assert len(gifts) > 20 and len(set(texts)) > 400
    for giver, taker, thing, again, thing_again in gifts:
        assert giver != taker == again
        assert thing == thing_again


def test_documents_and_summaries() -> None:
    random = Random(2)
    keys = {
        r"(\w+) will build a (\w+) (\w+) \.": "decided that {} will build a {} {} for",
        r"(\w+) found the (\w+) of (\w+) \.": r"{} has found the \w+ {} that {} had lost",
        r"(\w+) closes the (\w+) on (\w+) \.": "(?i)the {1} closes on {2} because of the {0}",
    }
    seen = set()
    for _ in range(200):
        text, summary = document(random)
        assert 14 <= len(re.findall(r" \.", text)) <= 32
        claims = re.findall(r"[^.]+ \.", summary)
        assert len(claims) == 2
        for claim in claims:
            matches = {said: re.fullmatch(said, claim.strip()) for said in keys}
            ((said, match),) = [(said, match) for said, match in matches.items() if match]
            assert re.search(keys[said].format(*match.groups()), text)
            seen.add(said)
    assert seen == set(keys)
