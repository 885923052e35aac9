"""Package descriptions and help pages: records and their parts, pairs, corpora."""

import shutil
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightconv.corpora import open_corpus
from lightconv.corpora.debian import (
    Description,
    element_text,
    is_translation,
    read_descriptions,
    read_page,
    sentences,
    units,
)
from lightconv.corpora.splits import leaks, position
from lightconv.data.config import BytesConfig, TaskConfig
from lightconv.data.text import Corpus, Example
from lightconv.paper.recipes import RECIPES
from tests.corpora.fake_apt import FakeApt
from tests.corpora.packing import make_deb

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


def read_index(path: Path, data: bytes) -> list[Description]:
    path.write_bytes(data)
    return list(read_descriptions([path], "de"))


def test_records(tmp_path: Path) -> None:
    foo, bar = read_index(tmp_path / "index", INDEX.encode())
    assert foo.text == "Foo ist ein Werkzeug. Es kann: * dies * das, und jenes"
    paragraphs = (
        ("Foo ist ein", "Werkzeug."),
        ("Es kann:", " * dies", " * das,", "   und jenes"),
    )
    assert tuple(foo) == ("foo", "00ff", "Werkzeug für Dinge", paragraphs)
    assert tuple(bar) == ("bar", "11ff", "Ohne Langtext", ())


@pytest.mark.parametrize(
    ("part", "damaged"),
    [
        (b"Package: bar\n", b""),
        (b"Description-md5: 11ff\n", b""),
        (b"Description-de: Ohne", b"Description-fr: Ohne"),
        (b"Ohne", b"\xff\xfe"),
        (b"Ohne Langtext", b""),
    ],
)
def test_damaged_records_are_left_out(tmp_path: Path, part: bytes, damaged: bytes) -> None:
    found = read_index(tmp_path / "index", INDEX.encode().replace(part, damaged))
    assert [description.package for description in found] == ["foo"]


@given(st.binary(max_size=300))
def test_no_garbage_crashes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage"
    for part in (data, INDEX.encode() + data, data + INDEX.encode()):
        for found in read_index(path, part):
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


def test_marks_of_list_items() -> None:
    for mark in ("*", "-", "+", "o", "•", "–", "1.", "12)", "(3)"):
        assert units([f"  {mark} one", f"  {mark}  two"]) == ["one", "two"]
        assert units([f" \N{NO-BREAK SPACE}{mark}\N{NO-BREAK SPACE}one"]) == ["one"]
    for line in ("-option x", "2048 tiles", "open"):
        assert units([f"  {line}"]) == [line]
    assert units([]) == []


def test_sentences() -> None:
    parts = [
        "It runs on e.g. Linux.",
        'It is "free."',
        "See J. R. Doe (2001).",
        "Is it?",
        "Yes!",
        "Version 1.5 has it, etc. 3 files. lower case goes on.",
        "The end",
    ]
    assert sentences(" ".join(parts)) == parts
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
        ("kinds of things", "x" * 60, True),
        ("kinds of things", "x" * 61, False),
        ("a b c " * 20, "x" * 360, True),
        ("a b c " * 20, "x" * 361, False),
    ],
)
def test_pairs_that_are_useful(source: str, target: str, kept: bool) -> None:
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

Package: t
Description-md5: 9
Description-en: x
 1 2 3 4 = 5 6 7
 Too short here.
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
PAIRS = {
    "tool that counts zebras": "Werkzeug zum Zählen von Zebras",
    "Zebra counts what is striped. It is fast and small.": "Zebra zählt alles Gestreifte. "
    "Es ist schnell und klein.",
    "It knows these animals:": "Es kennt diese Tiere:",
    "zebras of all ages": "Zebras jeden Alters",
    "tigers and their cubs, also white ones": "Tiger und ihre Jungen, auch weiße",
    "okapi finder for forests": "Okapifinder für alle Wälder",
    "quokka of the day": "Quokka des heutigen Tages",
    "It is free of charge.": "Es kostet nichts.",
}
SUMMARIES = {
    "Zebra counts what is striped. It is fast and small. It knows these animals: * zebras of all "
    "ages * tigers and their cubs, also white ones See http://zebra.example for more about "
    "it.": "tool that counts zebras",
    "First paragraph of the okapi. Second paragraph of the okapi.": "okapi finder for forests",
    "Shows a quokka: * smiling at you * or at others It is free of charge.": "quokka of the day",
}
SENTENCES = {
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


def every(corpus: Corpus) -> set[Example]:
    return {example for reader in corpus.splits.values() for example in reader()}


@pytest.mark.parametrize("language", ["de", "fr", "it", "da"])
def test_translation(apt: FakeApt, tmp_path: Path, language: str) -> None:
    german = GERMAN.replace("-de:", f"-{language}:")
    apt.publish("en", ENGLISH)
    apt.publish(language, german)
    corpus = open_corpus(f"debian-en-{language}", None, tmp_path)
    assert every(corpus) == set(PAIRS.items())
    assert corpus.digests == {
        "0_stable_main_i18n_Translation-en": sha256(ENGLISH.encode()).hexdigest(),
        f"0_stable_main_i18n_Translation-{language}": sha256(german.encode()).hexdigest(),
    }
    assert corpus.task == TaskConfig(
        kind="translation",
        corpus=f"debian-en-{language}",
        source_lang="en",
        target_lang=language,
        metric="sacrebleu",
    )
    assert [side.lang for side in corpus.pipeline.sides] == ["en", language]
    assert corpus.pipeline.subword == BytesConfig(vocab=8000, joint=True)
    assert (corpus.filters.max_len, corpus.filters.max_ratio) == (256, 4.0)
    if language == "de":
        assert corpus.task == RECIPES["debian-en-de-lightconv-small"].task


@pytest.mark.parametrize(
    ("name", "texts", "truncate"),
    [
        ("debian-summary", set(SUMMARIES.items()), [400, None]),
        ("debian-lm", SENTENCES, [None]),
    ],
)
def test_summaries_and_sentences(
    apt: FakeApt, tmp_path: Path, name: str, texts: set[Example], truncate: list[int | None]
) -> None:
    apt.publish("en", ENGLISH)
    corpus = open_corpus(name, None, tmp_path)
    assert every(corpus) == texts
    assert [side.truncate for side in corpus.pipeline.sides] == truncate
    assert corpus.task == RECIPES[f"{name}-lightconv-small"].task
    assert len(corpus.digests) == 1


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
@pytest.mark.parametrize("name", ["debian-en-de", "libreoffice-en-zh"])
def test_real_corpora_are_large_and_do_not_leak(name: str, tmp_path: Path) -> None:
    try:
        corpus = open_corpus(name, None, tmp_path)
    except ValueError as error:
        pytest.skip(str(error))
    texts = {split: [e[0] for e in reader()] for split, reader in corpus.splits.items()}
    assert len(texts["train"]) > (15_000 if name == "debian-en-de" else 10_000)
    assert all(500 < len(texts[split]) < 5000 for split in ("valid", "test"))
    assert not any(leaks(texts["train"], texts["test"]))


PAGE = """
<title>no element</title>
<h1 id="hd_id1" dir="auto">Columns</h1>
<p id="par_id2" class="paragraph" dir="auto"><a name="x"></a><span class="avis">Sets the
number</span> &amp; width of <a href="y">columns</a>.</p>
<p id="par_id3" class="code" dir="auto">Print 1</p>
<p id="par_id4" class="paragraphintable"><img src="z" alt="icon"></p>
<p class="howtogetheader">no id</p>
<p id="par_id2" class="paragraph">The same id<br>again.</p>
<p id="bm_module">other</p>
"""


def test_elements_of_a_page() -> None:
    assert read_page(PAGE) == {
        ("hd_id1", 0): "Columns",
        ("par_id2", 0): "Sets the number & width of columns.",
        ("par_id2", 1): "The same id again.",
    }


SWITCH = (
    'Choose <span id="swlnsys1" class="switchinline"><span hidden="true" id="m" class="MAC"><span '
    'class="emph">Preferences</span></span>{default}</span> now.'
)
DEFAULT = '<span hidden="true" id="d"><span class="emph">Tools - Options</span></span>'


def test_of_alternatives_the_general_one_is_taken() -> None:
    assert element_text(SWITCH.format(default=DEFAULT)) == "Choose Tools - Options now."
    # Without a general one, the first.
    other = '<span hidden="true" class="WIN">Settings</span>'
    assert element_text(SWITCH.format(default=other)) == "Choose Preferences now."
    assert element_text(SWITCH.format(default="")) == "Choose Preferences now."
    assert element_text("type <span>&lt;?&gt;</span> times") == "type <?> times"


SPANS = [
    f"<span{attributes}>"
    for attributes in ("", ' class="switchinline"', ' hidden="true"', ' hidden="true" class="MAC"')
]
TAGS = ["a ", "</span>", "<br>", "</p>", "<", "&amp;", "<b>", *SPANS]


@given(st.lists(st.sampled_from(TAGS), max_size=20))
def test_no_markup_crashes(parts: list[str]) -> None:
    assert isinstance(element_text("".join(parts)), str)
    read_page('<p id="par_id1">' + "".join(parts) + "</p>")


def page(*texts: str) -> bytes:
    lines = [f'<p id="par_id{n}" class="paragraph">{text}</p>' for n, text in enumerate(texts)]
    return "\n".join(lines).encode()


@pytest.fixture
def packages(apt: FakeApt) -> FakeApt:
    """Four languages of one page and of another that English lacks."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg-deb on this machine")
    texts = {
        "en-us": page("Enter the width here.", "Shift+F4", "Opens a new file.", "Yes"),
        "de": page("Geben Sie die Breite ein.", "Umschalt+F4", "Opens a new file.", "Ja"),
        "fr": page("Saisissez la largeur ici.", "Maj+F4", "Ouvre un fichier."),
        "zh-cn": page("输入宽度。", "Shift+F4", "「Opens a new file」 now", "是"),
    }
    for name, data in texts.items():
        root = f"usr/share/libreoffice/help/{name}"
        files = {
            f"{root}/text/swriter/01.html": data,
            f"{root}/text/{name}.html": page("A page that only one language has."),
            f"{root}/noscript.html": page("Needs a script to work."),
            f"usr/share/doc/{name}/text/a.html": data,
        }
        (apt.mirror / f"libreoffice-help-{name}.deb").write_bytes(make_deb(files))
    return apt


@pytest.mark.parametrize(
    ("language", "pairs"),
    [
        ("de", {("Enter the width here.", "Geben Sie die Breite ein.")}),
        (
            "fr",
            {
                ("Enter the width here.", "Saisissez la largeur ici."),
                ("Opens a new file.", "Ouvre un fichier."),
            },
        ),
        ("zh", {("Enter the width here.", "输入宽度。")}),
    ],
)
def test_corpus(
    packages: FakeApt, tmp_path: Path, language: str, pairs: set[tuple[str, str]]
) -> None:
    corpus = open_corpus(f"libreoffice-en-{language}", None, tmp_path / "cache")
    assert every(corpus) == pairs
    assert (corpus.task.source_lang, corpus.task.target_lang) == ("en", language)
    assert [side.lang for side in corpus.pipeline.sides] == ["en", language]
    assert corpus.pipeline.subword.kind == "bytes"
    english = (packages.mirror / "libreoffice-help-en-us.deb").read_bytes()
    assert sha256(english).hexdigest() in corpus.digests.values()
    assert len(corpus.digests) == 2
