"""Package descriptions: records and their parts, pairs, and corpora of hand-made indices."""

import shutil
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightconv.corpora import open_corpus
from lightconv.corpora.debian import (
    Description,
    is_translation,
    read_descriptions,
    sentences,
    units,
)
from lightconv.corpora.splits import leaks, package_stem, position
from lightconv.data.config import BytesConfig, TaskConfig
from lightconv.data.corpus import Corpus, Example
from lightconv.paper.recipes import RECIPES
from tests.corpora.fake_apt import FakeApt

# --- Records and their parts

INDEX = """\
Package: foo
Description-md5: 00ff
Description-de: Werkzeug   für Dinge
 Foo ist ein
 Werkzeug.
 .
 Es kann:
  * dies
  * das,
    und jenes
 .

Package: bar
Description-md5: 11ff
Description-de: Ohne Langtext
"""


def read(path: Path, data: bytes, language: str = "de") -> list[Description]:
    path.write_bytes(data)
    return list(read_descriptions([path], language))


def test_records(tmp_path: Path) -> None:
    foo, bar = read(tmp_path / "index", INDEX.encode())
    assert foo == (
        "foo",
        "00ff",
        "Werkzeug für Dinge",
        (
            ("Foo ist ein", "Werkzeug."),
            ("Es kann:", " * dies", " * das,", "   und jenes"),
        ),
    )
    assert foo.text == "Foo ist ein Werkzeug. Es kann: * dies * das, und jenes"
    assert bar == ("bar", "11ff", "Ohne Langtext", ())


@pytest.mark.parametrize(
    "damaged",
    [
        INDEX.replace("Package: bar\n", "").encode(),
        INDEX.replace("Description-md5: 11ff\n", "").encode(),
        INDEX.replace("Description-de: Ohne", "Description-fr: Ohne").encode(),
        INDEX.encode().replace(b"Ohne", b"\xff\xfe"),
        INDEX.encode().replace(b"Ohne Langtext", b""),
    ],
)
def test_damaged_records_are_left_out(tmp_path: Path, damaged: bytes) -> None:
    assert [found.package for found in read(tmp_path / "index", damaged)] == ["foo"]


@given(st.binary(max_size=300))
def test_no_garbage_crashes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage"
    for part in (data, INDEX.encode() + data, data + INDEX.encode()):
        for found in read(path, part):
            assert found.package and found.synopsis and isinstance(found.text, str)
            for paragraph in found.paragraphs:
                assert " ".join(units(paragraph)) == " ".join(" ".join(units(paragraph)).split())


def test_units_are_text_items_and_lines() -> None:
    paragraph = [
        "Foo has a list -",
        "- as you see - of",
        " * first item",
        "   that goes on",
        "  - deeper",
        " * second",
        "and an end",
        "of two lines",
        "  $ foo --help",
        "  $ foo --version",
    ]
    assert units(paragraph) == [
        "Foo has a list - - as you see - of",
        "first item that goes on",
        "deeper",
        "second",
        "and an end of two lines",
        "$ foo --help",
        "$ foo --version",
    ]


@pytest.mark.parametrize("mark", ["*", "-", "+", "o", "•", "–", "1.", "12)", "(3)"])
def test_marks_of_list_items(mark: str) -> None:
    assert units([f"  {mark} one", f"  {mark}  two"]) == ["one", "two"]
    assert units([f" \N{NO-BREAK SPACE}{mark}\N{NO-BREAK SPACE}one"]) == ["one"]


def test_what_is_no_list_item() -> None:
    assert units(["  -option x"]) == ["-option x"]
    assert units(["  2048 tiles"]) == ["2048 tiles"]
    assert units(["  open"]) == ["open"]
    assert units([]) == []


def test_sentences() -> None:
    text = (
        'It runs on e.g. Linux. It is "free." See J. R. Doe (2001). Is it? Yes! '
        "Version 1.5 has it, etc. 3 files. lower case goes on. The end"
    )
    assert sentences(text) == [
        "It runs on e.g. Linux.",
        'It is "free."',
        "See J. R. Doe (2001).",
        "Is it?",
        "Yes!",
        "Version 1.5 has it, etc. 3 files. lower case goes on.",
        "The end",
    ]
    assert sentences("") == []


@given(st.text(alphabet="aB .!?()\"'1", max_size=60))
def test_sentences_lose_nothing(text: str) -> None:
    assert " ".join(sentences(text)).split() == text.split()


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


# --- Corpora

ENGLISH = """\
Package: zebra
Description-md5: 01
Description-en: tool that counts zebras
 Zebra counts what is striped. It is fast
 and small.
 .
 It knows these animals:
  * zebras of all ages
  * tigers and their cubs,
    also white ones
 .
 See http://zebra.example for more about it.

Package: zebra-doc
Description-md5: 02
Description-en: tool that counts zebras - manual
 This package has the manual of the tool.

Package: okapi
Description-md5: 03
Description-en: okapi finder for forests
 First paragraph of the okapi.
 .
 Second paragraph of the okapi.

Package: quokka
Description-md5: 04
Description-en: quokka of the day
 Shows a quokka:
  * smiling at you
  * or at others
 .
 It is free of charge.
"""
GERMAN = """\
Package: zebra
Description-md5: 01
Description-de: Werkzeug zum Zählen von Zebras
 Zebra zählt alles Gestreifte. Es ist schnell und
 klein.
 .
 Es kennt diese Tiere:
  * Zebras jeden Alters
  * Tiger und ihre Jungen, auch weiße
 .
 See http://zebra.example for more about it.

Package: zebra-doc
Description-md5: ff
Description-de: Eine Beschreibung, die es nicht mehr gibt

Package: okapi
Description-md5: 03
Description-de: Okapifinder für alle Wälder
 Ein einziger Absatz über das Okapi.

Package: quokka
Description-md5: 04
Description-de: Quokka des heutigen Tages
 Zeigt ein Quokka:
  * lächelnd
 .
 Es kostet nichts.
"""


def every(corpus: Corpus) -> set[Example]:
    return {example for reader in corpus.splits.values() for example in reader()}


def test_translation_is_aligned_by_digest_and_part(apt: FakeApt, tmp_path: Path) -> None:
    apt.publish("en", ENGLISH)
    apt.publish("de", GERMAN)
    corpus = open_corpus("debian-en-de", None, tmp_path / "cache")
    assert every(corpus) == {
        ("tool that counts zebras", "Werkzeug zum Zählen von Zebras"),
        (
            "Zebra counts what is striped. It is fast and small.",
            "Zebra zählt alles Gestreifte. Es ist schnell und klein.",
        ),
        ("It knows these animals:", "Es kennt diese Tiere:"),
        ("zebras of all ages", "Zebras jeden Alters"),
        ("tigers and their cubs, also white ones", "Tiger und ihre Jungen, auch weiße"),
        ("okapi finder for forests", "Okapifinder für alle Wälder"),
        ("quokka of the day", "Quokka des heutigen Tages"),
        ("It is free of charge.", "Es kostet nichts."),
    }
    assert corpus.digests == {
        "0_stable_main_i18n_Translation-en": sha256(ENGLISH.encode()).hexdigest(),
        "0_stable_main_i18n_Translation-de": sha256(GERMAN.encode()).hexdigest(),
    }


def test_summary(apt: FakeApt, tmp_path: Path) -> None:
    apt.publish("en", ENGLISH)
    corpus = open_corpus("debian-summary", None, tmp_path)
    assert every(corpus) == {
        (
            "Zebra counts what is striped. It is fast and small. It knows these animals: * zebras "
            "of all ages * tigers and their cubs, also white ones See http://zebra.example for "
            "more about it.",
            "tool that counts zebras",
        ),
        (
            "First paragraph of the okapi. Second paragraph of the okapi.",
            "okapi finder for forests",
        ),
        (
            "Shows a quokka: * smiling at you * or at others It is free of charge.",
            "quokka of the day",
        ),
    }
    assert [side.truncate for side in corpus.pipeline.sides] == [400, None]
    assert len(corpus.digests) == 1


def test_language_model(apt: FakeApt, tmp_path: Path) -> None:
    table = (
        "Package: t\nDescription-md5: 9\nDescription-en: x\n 1 2 3 4 = 5 6 7\n Too short here.\n"
    )
    apt.publish("en", ENGLISH + "\n" + table)
    corpus = open_corpus("debian-lm", None, tmp_path)
    assert every(corpus) == {
        ("Zebra counts what is striped.",),
        ("It is fast and small.",),
        ("It knows these animals:",),
        ("zebras of all ages",),
        ("tigers and their cubs, also white ones",),
        ("See http://zebra.example for more about it.",),
        ("This package has the manual of the tool.",),
        ("First paragraph of the okapi.",),
        ("Second paragraph of the okapi.",),
        ("It is free of charge.",),
    }


@pytest.mark.parametrize("language", ["de", "fr", "it", "da"])
def test_every_language_has_a_corpus(apt: FakeApt, tmp_path: Path, language: str) -> None:
    apt.publish("en", ENGLISH)
    apt.publish(language, GERMAN.replace("-de:", f"-{language}:"))
    corpus = open_corpus(f"debian-en-{language}", None, tmp_path)
    assert len(every(corpus)) == 8
    assert corpus.task == TaskConfig(
        kind="translation",
        corpus=f"debian-en-{language}",
        source_lang="en",
        target_lang=language,
        metric="sacrebleu",
    )
    assert corpus.pipeline.subword == BytesConfig(vocab=8000, joint=True)


@pytest.mark.parametrize("name", ["debian-en-de", "debian-lm", "debian-summary"])
def test_tasks_are_those_of_the_recipes(apt: FakeApt, tmp_path: Path, name: str) -> None:
    apt.publish("en", ENGLISH)
    apt.publish("de", GERMAN)
    corpus = open_corpus(name, None, tmp_path)
    assert corpus.task == RECIPES[f"{name}-lightconv-small"].task


def test_families_of_packages_stay_together(apt: FakeApt, tmp_path: Path) -> None:
    records = [
        f"Package: {package}\nDescription-md5: {name}{n}\nDescription-en: {name} tells {name}s\n"
        f" {name} is the {name} of {name}s in {package} and nowhere else.\n"
        for name in ("abcd", "efgh", "ijkl", "mnop", "qrst", "uvwx") * 12
        for n, package in enumerate((f"lib{name}", f"python3-{name}", f"{name}-doc"))
    ]
    apt.publish("en", "\n".join(records))
    corpus = open_corpus("debian-lm", None, tmp_path)
    for split, reader in corpus.splits.items():
        for (text,) in reader():
            place = position(text.split()[0])
            home = "test" if place < 0.0125 else "valid" if 0.5 <= place < 0.5125 else "train"
            assert split == home


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("apt-get") is None, reason="no apt on this machine")
def test_the_real_corpus_is_large_and_does_not_leak(tmp_path: Path) -> None:
    try:
        corpus = open_corpus("debian-en-de", None, tmp_path)
    except ValueError as error:
        pytest.skip(str(error))
    texts = {split: [e[0] for e in reader()] for split, reader in corpus.splits.items()}
    assert len(texts["train"]) > 15_000
    assert all(500 < len(texts[split]) < 5000 for split in ("valid", "test"))
    assert not any(leaks(texts["train"], texts["test"]))
    assert package_stem("libreoffice-writer") == package_stem("libreoffice")
