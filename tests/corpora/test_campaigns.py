"""IWSLT: lines to learn from, every 23rd for validation. WMT: archives, packages, Chinese."""

import gzip
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lightconv.corpora import campaigns, open_corpus
from lightconv.corpora.campaigns import CAMPAIGNS, Seen, clean_chinese
from lightconv.data.config import BPEConfig
from lightconv.data.text import Corpus
from lightconv.paper.recipes import RECIPES
from tests.corpora.packing import Files, lines, pack, write_folder

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
    """60 sentences: 20 has too many words, 30 an odd ratio, 40 an empty side; 21 just fits."""
    text = [f" {language} number {n} of many ! " for n in range(60)]
    text[20], text[21] = "long " * 176, "long " * 175
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
    pytest.importorskip("sacremoses")
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
    assert valid[1] == ("de number 46 of many !", "en number 46 of many !")
    assert list(corpus.splits["train"]()) == [pair for pair in pairs if pair not in valid]
    assert list(corpus.splits["valid"]()) == valid, "readers begin anew"
    assert list(pickle.loads(pickle.dumps(corpus.splits["valid"]))()) == valid
    assert corpus.examples == {"train": 57, "valid": 2}
    assert any("59 of 62 pairs" in message for message in messages)


def test_lines_about_a_talk_anywhere_in_a_line(tmp_path: Path) -> None:
    """As `grep -v` on each file by itself: what is left must be parallel."""
    content = files()
    about = {
        "de": ["Mehr: <url>http://example.org</url>", "und <talkid>7</talkid>", "Ein <b> & url>"],
        "en": ["a, <keywords>b", "An <b> & url>"],
    }
    for la in ("de", "en"):
        content[f"de-en/train.tags.de-en.{la}"] += lines(*about[la])
    found = [
        pair
        for split in ("train", "valid")
        for pair in open_files(tmp_path, content).splits[split]()
    ]
    assert ("Ein <b> & url>", "An <b> & url>") in found
    assert len(found) == 60
    assert not any("http" in text or "keywords" in text for pair in found for text in pair)
    content["de-en/train.tags.de-en.de"] += lines("Noch eine <url>")
    content["de-en/train.tags.de-en.en"] += lines("One more")
    with pytest.raises(ValueError, match=r"has 63 lines and .* has 64, expected the same"):
        open_files(tmp_path, content)


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
        patch.setattr(campaigns, "Steps", refuse)
        assert list(open_files(tmp_path, files()).splits["train"]()) == first
    (cached,) = (tmp_path / "cache").iterdir()
    cached.write_bytes(cached.read_bytes()[:-3])
    assert list(open_files(tmp_path, files()).splits["train"]()) == first


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


def parallel(folder: str, stem: str, pair: str, count: int) -> dict[str, str]:
    """Files STEM.LANG of two languages, as in `de-en`."""
    return {
        f"{folder}/{stem}.{lang}": lines(*(f"{stem} {lang} {n}" for n in range(count)))
        for lang in pair.split("-")
    }


def held_out(folder: str, stem: str, pair: str, count: int) -> dict[str, str]:
    """Source and reference of a test set as .sgm."""
    return {
        f"{folder}/{stem}-{role}.{lang}.sgm": lines(
            '<refset setid="x" srclang="any">',
            *(f'<seg id="{n}">{stem} &amp; {lang} {n}</seg>' for n in range(count)),
            "</refset>",
        )
        for role, lang in zip(("src", "ref"), pair.split("-"), strict=True)
    }


def pack_all(folder: Path, archives: dict[str, Any]) -> Path:
    for name, files in archives.items():
        pack(folder / name, files)
    return folder


def opened(name: str, path: Path) -> Corpus:
    return open_corpus(name, path, path.parent / "cache")


def counts(corpus: Corpus) -> dict[str, int]:
    return {split: sum(1 for _ in read()) for split, read in corpus.splits.items()}


# --- En-De


@pytest.fixture
def en_de(tmp_path: Path) -> Path:
    """The archives of 2016; the test set of 2014 as it was and shortened, under one name."""
    europarl = parallel("training", "europarl-v7.de-en", "de-en", 5)
    archives = {
        "training-parallel-europarl-v7.tgz": europarl
        | parallel("training", "europarl-v7.fr-en", "fr-en", 9),
        "training-parallel-commoncrawl.tgz": parallel(".", "commoncrawl.de-en", "de-en", 4),
        "training-parallel-nc-v11.tgz": parallel("nc", "news-commentary-v11.de-en", "de-en", 3),
        "dev.tgz": held_out("dev", "newstest2013", "en-de", 2),
        "test-filtered.tgz": held_out("test", "newstest2014-deen", "en-de", 1),
        "test-full.tgz": held_out("test", "newstest2014-deen", "en-de", 6),
    }
    return pack_all(tmp_path / "wmt16", archives)


def test_en_de_from_the_campaign(en_de: Path) -> None:
    corpus = opened("wmt16-en-de", en_de)
    assert counts(corpus) == {"train": 12, "valid": 2, "test": 6}
    train = list(corpus.splits["train"]())
    assert train[0] == ("europarl-v7.de-en en 0", "europarl-v7.de-en de 0")
    assert train[5] == ("commoncrawl.de-en en 0", "commoncrawl.de-en de 0")
    assert train[11] == ("news-commentary-v11.de-en en 2", "news-commentary-v11.de-en de 2")
    assert list(corpus.splits["valid"]())[1] == ("newstest2013 & en 1", "newstest2013 & de 1")
    assert list(pickle.loads(pickle.dumps(corpus.splits["train"]))()) == train
    assert len(corpus.digests) == 6
    assert (corpus.tokenized, corpus.codes) == (False, None)


def test_en_de_unpacked_with_plain_test_files(tmp_path: Path) -> None:
    files = {
        **parallel("training", "europarl-v7.de-en", "de-en", 1),
        **parallel(".", "commoncrawl.de-en", "de-en", 1),
        **parallel("nc", "news-commentary-v11.de-en", "de-en", 1),
        **parallel("dev", "newstest2013", "de-en", 2),
        **parallel("dev", "newstest2014", "de-en", 3),
    }
    corpus = opened("wmt16-en-de", write_folder(tmp_path / "loose", files))
    assert counts(corpus) == {"train": 3, "valid": 2, "test": 3}
    assert len(corpus.digests) == 10


def test_en_de_is_prepared_like_the_package(en_de: Path) -> None:
    corpus = opened("wmt16-en-de", en_de)
    assert corpus.task == RECIPES["wmt-en-de-dynamicconv"].task
    sides = [(side.lang, side.normalize, side.tokenize) for side in corpus.pipeline.sides]
    assert sides == [("en", "none", "moses"), ("de", "none", "moses")]
    assert corpus.pipeline.subword == BPEConfig(merges=32_000, share_vocab=True, most=32_764)
    assert (corpus.filters.min_len, corpus.filters.max_len) == (1, 80)


# --- Google's package

SEGMENTED = {
    "train.tok.clean.bpe.32000.en": lines("It &apos;s a te@@ st .", "to@@ k@@ en", "a@@"),
    "train.tok.clean.bpe.32000.de": lines("Es ist ein T@@ est .", "Wort", "b"),
    "newstest2013.tok.bpe.32000.en": lines("one"),
    "newstest2013.tok.bpe.32000.de": lines("eins"),
    "newstest2014.tok.bpe.32000.en": lines("tw@@ o", "three"),
    "newstest2014.tok.bpe.32000.de": lines("zwei", "dr@@ ei"),
    "bpe.32000": lines("#version: 0.2", "e n", "e n</w>"),
    "vocab.bpe.32000": lines("the", "."),
}


def test_the_package_keeps_its_codes(tmp_path: Path) -> None:
    corpus = opened("wmt16-en-de", pack(tmp_path / "wmt16_en_de.tar.gz", SEGMENTED))
    words = [("It &apos;s a test .", "Es ist ein Test ."), ("token", "Wort"), ("a", "b")]
    assert list(corpus.splits["train"]()) == words
    assert counts(corpus) == {"train": 3, "valid": 1, "test": 2}
    assert corpus.tokenized
    assert corpus.codes and corpus.codes.read_text() == SEGMENTED["bpe.32000"]
    assert corpus.filters.max_len is None, "the package was cleaned when it was made"
    assert corpus.pipeline == CAMPAIGNS["wmt16-en-de"].pipeline
    loose = opened("wmt16-en-de", write_folder(tmp_path / "loose", SEGMENTED))
    assert loose.codes == tmp_path / "loose" / "bpe.32000"


def test_an_incomplete_package(tmp_path: Path) -> None:
    files = {name: text for name, text in SEGMENTED.items() if name != "bpe.32000"}
    with pytest.raises(ValueError, match=r"lacks bpe\.32000 \(wmt16_en_de\.tar\.gz\)"):
        opened("wmt16-en-de", pack(tmp_path / "a.tar.gz", files))


# --- En-Fr


def test_en_fr(tmp_path: Path) -> None:
    giga = parallel(".", "giga-fren.release2.fixed", "fr-en", 3)
    dev = [held_out("dev", f"newstest{year}", "en-fr", year - 2009) for year in (2012, 2013)]
    archives = {
        "training-parallel-europarl-v7.tgz": parallel("a", "europarl-v7.fr-en", "fr-en", 2),
        "training-parallel-commoncrawl.tgz": parallel(".", "commoncrawl.fr-en", "fr-en", 2),
        "training-parallel-un.tgz": parallel("un", "undoc.2000.fr-en", "fr-en", 2),
        "training-parallel-nc-v9.tgz": parallel("a", "news-commentary-v9.fr-en", "fr-en", 2),
        "training-giga-fren.tar": {
            f"{name}.gz": gzip.compress(text.encode()) for name, text in giga.items()
        },
        "dev.tgz": dev[0] | dev[1],
        "test-full.tgz": held_out("t", "newstest2014-fren", "en-fr", 5),
    }
    corpus = opened("wmt14-en-fr", pack_all(tmp_path / "wmt14", archives))
    assert counts(corpus) == {"train": 11, "valid": 7, "test": 5}
    stem = "giga-fren.release2.fixed"
    assert list(corpus.splits["train"]())[-1] == (f"{stem} en 2", f"{stem} fr 2")
    valid = list(corpus.splits["valid"]())
    assert valid[2] == ("newstest2012 & en 2", "newstest2012 & fr 2")
    assert valid[3] == ("newstest2013 & en 0", "newstest2013 & fr 0")
    assert corpus.task == RECIPES["wmt-en-fr-dynamicconv"].task
    for side in corpus.pipeline.sides:
        assert side.normalize == side.tokenize == "moses" and side.split_hyphens
    assert corpus.pipeline.subword == BPEConfig(merges=40_000, share_vocab=True, most=39_996)
    assert (corpus.filters.max_len, corpus.filters.max_ratio) == (175, 1.5)


# --- Zh-En


def chinese(name: str, count: int) -> str:
    return lines(*(f"{name} 中文 {n}" for n in range(count)))


def test_zh_en(tmp_path: Path) -> None:
    names = [("casia2015", "casia2015", "ch"), ("casict2011", "casict-A", "ch")]
    names += [("casict2011", "casict-B", "ch"), ("casict2015", "casict2015", "ch")]
    names += [("datum2015", "datum", "ch"), ("neu2017", "NEU", "cn")]
    names += [("datum2017", f"Book{n}", "cn") for n in range(1, 21)]
    archives: dict[str, dict[str, str]] = {}
    for home, stem, end in names:
        files = archives.setdefault(f"{home}.zip", {})
        files[f"{home}/{stem}_{end}.txt"] = chinese(stem, 2)
        files[f"{home}/{stem}_en.txt"] = lines(f"{stem} English 0", f"{stem} English 1")
    archives["training-parallel-nc-v12.tgz"] = {
        "training/news-commentary-v12.zh-en.zh": "一 二\r\n一 二\r\nlatin\r\n一 二\r\n",
        "training/news-commentary-v12.zh-en.en": "one two\none two\nlatin\nOne two\n",
    }
    dev = held_out("dev", "newsdev2017-zhen", "zh-en", 2)
    archives["dev.tgz"] = dev | held_out("dev", "newsdev2017-enzh", "en-zh", 9)
    archives["test.tgz"] = held_out("test", "newstest2017-zhen", "zh-en", 3)
    folder = pack_all(tmp_path / "wmt17", archives)
    united: Files = {
        "en-zh/UNv1.0.en-zh.zh": chinese("UN", 3).encode() + b"\xff\xe4\xb8\x80\n",
        "en-zh/UNv1.0.en-zh.en": lines("UN 0", "UN 1", "UN 2", "broken"),
        "en-zh/UNv1.0.en-zh.ids": "x\n",
    }
    whole = pack(tmp_path / "UNv1.0.en-zh.tar.gz", united).read_bytes()
    (folder / "UNv1.0.en-zh.tar.gz.00").write_bytes(whole[:200])
    (folder / "UNv1.0.en-zh.tar.gz.01").write_bytes(whole[200:])

    corpus = opened("wmt17-zh-en", folder)
    with pytest.warns(UserWarning, match=r"UNv1\.0\.en-zh\.zh: replaced broken bytes in 1 lines"):
        train = list(corpus.splits["train"]())
    # Commentary: one pair twice, one without Chinese. 26 files of CWMT with two pairs each.
    assert len(train) == 2 + 4 + 26 * 2
    assert train[:2] == [("一二", "one two"), ("一二", "One two")]
    assert train[2:5] == [(f"UN中文{n}", f"UN {n}") for n in range(3)]
    assert train[5] == ("\ufffd一", "broken")
    assert train[-1] == ("NEU中文1", "NEU English 1")
    valid = list(corpus.splits["valid"]())
    assert valid[1] == ("newsdev2017-zhen & zh 1", "newsdev2017-zhen & en 1")
    assert sum(1 for _ in corpus.splits["test"]()) == 3
    assert corpus.task == RECIPES["wmt-zh-en-dynamicconv"].task
    assert [side.tokenize for side in corpus.pipeline.sides] == ["jieba", "moses"]
    assert corpus.pipeline.subword == BPEConfig(merges=32_000, joint=False)
    assert (corpus.filters.min_len, corpus.filters.max_len) == (3, 70)


def test_few_texts_are_taken_for_others() -> None:
    seen = Seen(bits=20)
    assert [seen.add(text) for text in ("a", "b", "a", "", "", "b", "c")] == [1, 1, 0, 1, 0, 0, 1]
    # 43 bits for each text, as for 25 million in 2**30.
    assert all(seen.add(f"text {number}") for number in range(2**20 // 43))
    full = Seen(bits=10)
    wrong = sum(not full.add(f"text {number}") for number in range(1000))
    assert wrong > 400, "a filter that is too small does forget: the test sees it"


def test_chinese_pairs() -> None:
    pairs = {
        ("你好 ，世界 。", "Hello, world."): ("你好，世界。", "Hello, world."),
        ("你好，世界。", " Hello, world.\x07"): None,  # the same again
        ("你好，世界。", "Hello again."): ("你好，世界。", "Hello again."),
        ("no Chinese", "no Chinese"): None,
        ("你好", "你好"): None,
        ("", "empty"): None,
        ("联合国 大会 New York 第 5 次 会议", "x"): ("联合国大会New York第5次会议", "x"),
        ("中\x01文", "y"): ("中文", "y"),
    }
    assert list(clean_chinese(partial(iter, pairs))) == [pair for pair in pairs.values() if pair]


# --- Errors


def test_all_that_is_missing_is_named_at_once(en_de: Path, tmp_path: Path) -> None:
    (en_de / "training-parallel-nc-v11.tgz").unlink()
    (en_de / "test-full.tgz").unlink()  # the shortened test set remains
    home = r"\(training-parallel-nc-v11\.tgz\)"
    with pytest.raises(ValueError, match=rf"v11\.de-en\.en {home}.*newstest2014-deen-src\.en\.sgm"):
        opened("wmt16-en-de", en_de)
    wrong = write_folder(tmp_path / "wrong", {"holiday.txt": "x"})
    with pytest.raises(ValueError, match=r"and 57 more, expected a folder with .*neu2017\.zip"):
        opened("wmt17-zh-en", wrong)
