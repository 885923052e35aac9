"""IWSLT'14: which lines are learned from, every 23rd of the kept for validation, five test sets."""

import pickle
from pathlib import Path

import pytest

from lightconv.corpora import iwslt, open_corpus
from lightconv.data.text import Corpus
from lightconv.paper.recipes import RECIPES
from tests.corpora.packing import Files, lines, pack, write_folder

pytest.importorskip("sacremoses")

# The lines about a talk differ between languages.
ABOUT = {
    "de": lines(
        "<url>http://example.org/1</url>",
        "<speaker>Ada B.</speaker>",
        "<title>Ada B.: Bienen &amp; Blumen</title>",
        "<description>TED Talk: Bienen.</description>",
        '<reviewer href="x">R. S.</reviewer>',
    ),
    "en": lines(
        "<keywords>talks, bees</keywords>",
        "<talkid>1</talkid>",
        '<translator href="x">T. U.</translator>',
        '<translator href="y">V. W.</translator>',
        "<title>Ada B.: Bees &amp; flowers</title>",
        "<description>TED Talk: Bees.</description>",
    ),
}
TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")


def xml(name: str, language: str) -> str:
    """Two sentences, the first with a curly quote and an entity."""
    return lines(
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<refset setid="{name}" srclang="german" trglang="english">',
        "<title>not a segment</title>",
        f'<seg id="1"> {name} isn’t {language} &amp; more </seg>',
        f'<seg id="2"> {name} two {language} </seg>',
        "</refset>",
    )


def talk(language: str) -> list[str]:
    """60 sentences: 20 has too many words, 30 an odd ratio, 40 is empty on one side."""
    text = [f" {language} number {n} of many ! " for n in range(60)]
    text[20] = "long " * 176
    text[30] = "one two three four" if language == "de" else "one two three four five six seven"
    text[31] = "one two three four" if language == "de" else "one two three four five six"
    text[40] = "" if language == "de" else "something"
    return text


def files() -> dict[str, str]:
    found = {f"de-en/train.tags.de-en.{la}": ABOUT[la] + lines(*talk(la)) for la in ("de", "en")}
    for name in TESTS:
        for la in ("de", "en"):
            found[f"de-en/IWSLT14.{name}.de-en.{la}.xml"] = xml(name, la)
    found["de-en/README"] = "about\n"
    return found


def open_files(tmp_path: Path, content: Files, messages: list[str] | None = None) -> Corpus:
    path = pack(tmp_path / "de-en.tgz", content)
    said = [] if messages is None else messages
    return open_corpus("iwslt14-de-en", path, tmp_path / "cache", said.append)


def test_train_and_valid_by_hand(tmp_path: Path) -> None:
    messages: list[str] = []
    corpus = open_files(tmp_path, files(), messages)
    # Title, description and 60 sentences, without three.
    kept = [*range(20), *range(21, 30), *range(31, 40), *range(41, 60)]
    pairs = [
        ("Ada B.: Bienen &amp; Blumen", "Ada B.: Bees &amp; flowers"),
        ("TED Talk: Bienen.", "TED Talk: Bees."),
        *((talk("de")[n].strip(), talk("en")[n].strip()) for n in kept),
    ]
    assert len(pairs) == 59
    valid = [pairs[22], pairs[45]]
    assert list(corpus.splits["valid"]()) == valid
    assert valid[0] == ("de number 21 of many !", "en number 21 of many !")
    assert list(corpus.splits["train"]()) == [pair for pair in pairs if pair not in valid]
    assert list(corpus.splits["valid"]()) == valid, "readers begin anew"
    assert list(pickle.loads(pickle.dumps(corpus.splits["valid"]))()) == valid
    assert corpus.examples == {"train": 57, "valid": 2}
    assert any("59 of 62 pairs" in message for message in messages)


def test_the_test_set_is_five_in_order(tmp_path: Path) -> None:
    found = list(open_files(tmp_path, files()).splits["test"]())
    assert len(found) == 10
    assert found[0] == ("TED.dev2010 isn't de & more", "TED.dev2010 isn't en & more")
    assert [source.split()[0] for source, _ in found[::2]] == list(TESTS)


def test_the_papers_preparation(tmp_path: Path) -> None:
    corpus = open_files(tmp_path, files())
    assert corpus.task == RECIPES["iwslt-de-en-dynamicconv"].task
    assert [side.lang for side in corpus.pipeline.sides] == ["de", "en"]
    assert all(s.tokenize == "moses" and s.lowercase for s in corpus.pipeline.sides)
    assert corpus.pipeline.subword.merges == 10_000  # type: ignore[union-attr]
    assert corpus.pipeline.subword.joint  # type: ignore[union-attr]
    assert not corpus.pipeline.subword.share_vocab  # type: ignore[union-attr]
    assert (corpus.filters.max_len, corpus.filters.max_ratio) == (175, 1.5)
    assert list(corpus.digests) == ["de-en.tgz"]


def test_words_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = list(open_files(tmp_path, files()).splits["train"]())

    def refuse(*_: object) -> None:
        raise AssertionError("counted again")

    with monkeypatch.context() as patch:
        patch.setattr(iwslt, "Steps", refuse)
        assert list(open_files(tmp_path, files()).splits["train"]()) == first
    (cached,) = (tmp_path / "cache").iterdir()
    cached.write_bytes(cached.read_bytes()[:-3])
    assert list(open_files(tmp_path, files()).splits["train"]()) == first


def test_lengths_and_ratios() -> None:
    assert all(iwslt.is_kept(*pair) for pair in [(1, 1), (175, 175), (2, 3), (3, 2)])
    assert not any(iwslt.is_kept(*pair) for pair in [(0, 1), (0, 0), (176, 175), (2, 4)])


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    content = files()
    del content["de-en/IWSLT14.TED.tst2011.de-en.en.xml"]
    with pytest.raises(ValueError, match=r"lacks IWSLT14\.TED\.tst2011\.de-en\.en\.xml, expected"):
        open_files(tmp_path, content)
    wrong = write_folder(tmp_path / "wrong", {"notes.txt": "x"})
    with pytest.raises(
        ValueError, match=r"lacks train\.tags\.de-en\.de, .* expected de-en\.tgz of"
    ):
        open_corpus("iwslt14-de-en", wrong, tmp_path / "cache")


def test_talks_of_different_length(tmp_path: Path) -> None:
    content = files() | {"de-en/train.tags.de-en.de": ABOUT["de"] + lines(*talk("de")[:-2])}
    with pytest.raises(ValueError, match=r"train\.tags\.de-en\.de has 60 lines and .* has 62"):
        open_files(tmp_path, content)
    assert not (tmp_path / "cache").exists()
