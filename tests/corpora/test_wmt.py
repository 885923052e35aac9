"""WMT's archives and Google's package: which files, which lines, which splits."""

import gzip
import pickle
from pathlib import Path

import pytest

from lightconv.corpora import open_corpus, wmt
from lightconv.corpora.wmt import EN_DE, EN_FR, ZH_EN
from lightconv.data.config import BPEConfig
from lightconv.data.corpus import Corpus
from lightconv.data.subword import Codes, WordPieces
from lightconv.paper.recipes import RECIPES
from tests.corpora.packing import lines, write_folder, write_tar, write_zip


def sgm(*texts: str) -> str:
    return lines(
        '<refset setid="x" srclang="any" trglang="en">',
        '<doc docid="1" genre="news">',
        *(f'<seg id="{number}">{text}</seg>' for number, text in enumerate(texts, 1)),
        "</doc>",
        "</refset>",
    )


def parallel(stem: str, first: str, second: str, count: int) -> dict[str, str]:
    return {
        f"{stem}.{lang}": lines(*(f"{stem} {lang} {n}" for n in range(count)))
        for lang in (first, second)
    }


def held_out(stem: str, source: str, target: str, count: int) -> dict[str, str]:
    return {
        f"{stem}-src.{source}.sgm": sgm(*(f"{stem} &amp; {source} {n}" for n in range(count))),
        f"{stem}-ref.{target}.sgm": sgm(*(f"{stem} &amp; {target} {n}" for n in range(count))),
    }


def opened(name: str, path: Path) -> Corpus:
    return open_corpus(name, path, path.parent / "cache")


def counts(corpus: Corpus) -> dict[str, int]:
    return {split: sum(1 for _ in read()) for split, read in corpus.splits.items()}


def below(folder: str, files: dict[str, str]) -> dict[str, str]:
    return {f"{folder}/{name}": text for name, text in files.items()}


# --- En-De


@pytest.fixture
def en_de(tmp_path: Path) -> Path:
    """The archives of 2016; the test set of 2014 as it was and shortened, under one name."""
    folder = tmp_path / "wmt16"
    folder.mkdir()
    many = parallel("europarl-v7.de-en", "de", "en", 5) | parallel(
        "europarl-v7.fr-en", "fr", "en", 9
    )
    write_tar(folder / "training-parallel-europarl-v7.tgz", below("training", many))
    write_tar(
        folder / "training-parallel-commoncrawl.tgz", parallel("commoncrawl.de-en", "de", "en", 4)
    )
    commentary = below(
        "training-parallel-nc-v11", parallel("news-commentary-v11.de-en", "de", "en", 3)
    )
    write_tar(folder / "training-parallel-nc-v11.tgz", commentary)
    write_tar(folder / "dev.tgz", below("dev", held_out("newstest2013", "en", "de", 2)))
    write_tar(
        folder / "test-filtered.tgz", below("test", held_out("newstest2014-deen", "en", "de", 1))
    )
    write_tar(folder / "test-full.tgz", below("test", held_out("newstest2014-deen", "en", "de", 6)))
    return folder


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
    assert not corpus.tokenized
    assert corpus.codes is None


def test_en_de_unpacked_with_plain_test_files(tmp_path: Path) -> None:
    files = {
        **below("training", parallel("europarl-v7.de-en", "de", "en", 1)),
        **parallel("commoncrawl.de-en", "de", "en", 1),
        **below("nc", parallel("news-commentary-v11.de-en", "de", "en", 1)),
        **below("dev", parallel("newstest2013", "de", "en", 2)),
        **below("dev", parallel("newstest2014", "de", "en", 3)),
    }
    corpus = opened("wmt16-en-de", write_folder(tmp_path / "loose", files))
    assert counts(corpus) == {"train": 3, "valid": 2, "test": 3}
    assert len(corpus.digests) == 10


def test_en_de_is_prepared_like_the_package(en_de: Path) -> None:
    corpus = opened("wmt16-en-de", en_de)
    assert corpus.task == RECIPES["wmt-en-de-dynamicconv"].task
    assert [(s.lang, s.normalize, s.tokenize) for s in corpus.pipeline.sides] == [
        ("en", "none", "moses"),
        ("de", "none", "moses"),
    ]
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
    path = write_tar(tmp_path / "wmt16_en_de.tar.gz", SEGMENTED)
    corpus = opened("wmt16-en-de", path)
    assert list(corpus.splits["train"]()) == [
        ("It &apos;s a test .", "Es ist ein Test ."),
        ("token", "Wort"),
        ("a", "b"),
    ]
    assert counts(corpus) == {"train": 3, "valid": 1, "test": 2}
    assert corpus.tokenized
    assert corpus.codes is not None
    assert corpus.codes.read_text() == SEGMENTED["bpe.32000"]
    assert corpus.filters.max_len is None, "the package was cleaned when it was made"
    assert corpus.pipeline == EN_DE.pipeline
    loose = opened("wmt16-en-de", write_folder(tmp_path / "loose", SEGMENTED))
    assert loose.codes == tmp_path / "loose" / "bpe.32000"


def test_the_codes_cut_words_as_the_package_has_them(tmp_path: Path) -> None:
    cut = "a te@@ st to@@ k@@ en T@@ est"
    codes = lines("#version: 0.2", "t e", "t o", "s t</w>", "e n</w>", "e st</w>")
    files = SEGMENTED | {"train.tok.clean.bpe.32000.en": lines(cut, "", ""), "bpe.32000": codes}
    corpus = opened("wmt16-en-de", write_tar(tmp_path / "wmt16_en_de.tar.gz", files))
    assert corpus.codes is not None
    segmenter = WordPieces(Codes.load(corpus.codes))
    words = next(iter(corpus.splits["train"]()))[0]
    assert words == "a test token Test"
    assert [token for word in words.split() for token in segmenter.segment(word)] == cut.split()


def test_an_incomplete_package(tmp_path: Path) -> None:
    files = {name: text for name, text in SEGMENTED.items() if name != "bpe.32000"}
    with pytest.raises(ValueError, match=r"lacks bpe\.32000, expected all of wmt16_en_de"):
        opened("wmt16-en-de", write_tar(tmp_path / "a.tar.gz", files))


# --- En-Fr


def test_en_fr(tmp_path: Path) -> None:
    folder = tmp_path / "wmt14"
    folder.mkdir()
    europarl = parallel("europarl-v7.fr-en", "fr", "en", 2)
    write_tar(folder / "training-parallel-europarl-v7.tgz", below("training", europarl))
    crawl = parallel("commoncrawl.fr-en", "fr", "en", 2)
    write_tar(folder / "training-parallel-commoncrawl.tgz", crawl)
    write_tar(
        folder / "training-parallel-un.tgz",
        below("un", parallel("undoc.2000.fr-en", "fr", "en", 2)),
    )
    commentary = parallel("news-commentary-v9.fr-en", "fr", "en", 2)
    write_tar(folder / "training-parallel-nc-v9.tgz", below("training", commentary))
    giga = {
        f"{name}.gz": gzip.compress(text.encode())
        for name, text in parallel("giga-fren.release2.fixed", "fr", "en", 3).items()
    }
    write_tar(folder / "training-giga-fren.tar", giga)
    dev = held_out("newstest2012", "en", "fr", 3) | held_out("newstest2013", "en", "fr", 4)
    write_tar(folder / "dev.tgz", below("dev", dev))
    write_tar(folder / "test-full.tgz", below("t", held_out("newstest2014-fren", "en", "fr", 5)))
    corpus = opened("wmt14-en-fr", folder)
    assert counts(corpus) == {"train": 11, "valid": 7, "test": 5}
    assert list(corpus.splits["train"]())[-1] == (
        "giga-fren.release2.fixed en 2",
        "giga-fren.release2.fixed fr 2",
    )
    valid = list(corpus.splits["valid"]())
    assert valid[2:4] == [
        ("newstest2012 & en 2", "newstest2012 & fr 2"),
        ("newstest2013 & en 0", "newstest2013 & fr 0"),
    ]
    assert corpus.task == RECIPES["wmt-en-fr-dynamicconv"].task
    assert all(s.normalize == s.tokenize == "moses" for s in corpus.pipeline.sides)
    assert all(side.split_hyphens for side in corpus.pipeline.sides)
    assert corpus.pipeline.subword == BPEConfig(merges=40_000, share_vocab=True, most=39_996)
    assert (corpus.filters.max_len, corpus.filters.max_ratio) == (175, 1.5)


# --- Zh-En


def chinese(name: str, count: int) -> str:
    return lines(*(f"{name} 中文 {n}" for n in range(count)))


@pytest.fixture
def zh_en(tmp_path: Path) -> Path:
    folder = tmp_path / "wmt17"
    folder.mkdir()
    names = [("casia2015", "casia2015", "ch"), ("casict2011", "casict-A", "ch")]
    names += [("casict2011", "casict-B", "ch"), ("casict2015", "casict2015", "ch")]
    names += [("datum2015", "datum", "ch"), ("neu2017", "NEU", "cn")]
    names += [("datum2017", f"Book{n}", "cn") for n in range(1, 21)]
    homes: dict[str, dict[str, str]] = {}
    for home, stem, end in names:
        homes.setdefault(home, {})[f"{home}/{stem}_{end}.txt"] = chinese(stem, 2)
        homes[home][f"{home}/{stem}_en.txt"] = lines(f"{stem} English 0", f"{stem} English 1")
    for home, files in homes.items():
        write_zip(folder / f"{home}.zip", files)
    commentary = {
        "training/news-commentary-v12.zh-en.zh": "一 二\r\n一 二\r\nlatin\r\n一 二\r\n",
        "training/news-commentary-v12.zh-en.en": "one two\none two\nlatin\nOne two\n",
    }
    write_tar(folder / "training-parallel-nc-v12.tgz", commentary)
    united = {
        "en-zh/UNv1.0.en-zh.zh": chinese("UN", 3).encode() + b"\xff\xe4\xb8\x80\n",
        "en-zh/UNv1.0.en-zh.en": lines("UN 0", "UN 1", "UN 2", "broken"),
        "en-zh/UNv1.0.en-zh.ids": "x\n",
    }
    whole = write_tar(folder / "UNv1.0.en-zh.tar.gz", united).read_bytes()
    (folder / "UNv1.0.en-zh.tar.gz").unlink()
    (folder / "UNv1.0.en-zh.tar.gz.00").write_bytes(whole[:200])
    (folder / "UNv1.0.en-zh.tar.gz.01").write_bytes(whole[200:])
    dev = held_out("newsdev2017-zhen", "zh", "en", 2) | held_out("newsdev2017-enzh", "en", "zh", 9)
    write_tar(folder / "dev.tgz", below("dev", dev))
    write_tar(folder / "test.tgz", below("test", held_out("newstest2017-zhen", "zh", "en", 3)))
    return folder


def test_zh_en(zh_en: Path) -> None:
    corpus = opened("wmt17-zh-en", zh_en)
    with pytest.warns(UserWarning, match=r"UNv1\.0\.en-zh\.zh: replaced broken bytes in 1 lines"):
        train = list(corpus.splits["train"]())
    # Commentary: one pair twice, one without Chinese. 26 files of CWMT with two pairs each.
    assert len(train) == 2 + 4 + 26 * 2
    assert train[:2] == [("一二", "one two"), ("一二", "One two")]
    assert train[2:6] == [
        ("UN中文0", "UN 0"),
        ("UN中文1", "UN 1"),
        ("UN中文2", "UN 2"),
        ("\ufffd一", "broken"),
    ]
    assert train[-1] == ("NEU中文1", "NEU English 1")
    assert list(corpus.splits["valid"]())[1] == (
        "newsdev2017-zhen & zh 1",
        "newsdev2017-zhen & en 1",
    )
    assert sum(1 for _ in corpus.splits["test"]()) == 3


def test_zh_en_preparation(zh_en: Path) -> None:
    corpus = opened("wmt17-zh-en", zh_en)
    assert corpus.task == RECIPES["wmt-zh-en-dynamicconv"].task
    assert [side.tokenize for side in corpus.pipeline.sides] == ["jieba", "moses"]
    assert corpus.pipeline.subword == BPEConfig(merges=32_000, joint=False)
    assert (corpus.filters.min_len, corpus.filters.max_len) == (3, 70)


# --- Errors


def test_all_that_is_missing_is_named_at_once(en_de: Path, tmp_path: Path) -> None:
    (en_de / "training-parallel-nc-v11.tgz").unlink()
    with pytest.raises(
        ValueError,
        match=r"lacks news-commentary-v11\.de-en\.en \(training-parallel-nc-v11\.tgz\), news-",
    ):
        opened("wmt16-en-de", en_de)
    wrong = write_folder(tmp_path / "wrong", {"holiday.txt": "x"})
    with pytest.raises(ValueError, match=r"and 53 more, expected a folder with .*neu2017\.zip"):
        opened("wmt17-zh-en", wrong)


def test_only_the_shortened_test_set(en_de: Path) -> None:
    (en_de / "test-full.tgz").unlink()
    with pytest.raises(ValueError, match=r"lacks newstest2014-deen-src\.en\.sgm .*test-full\.tgz"):
        opened("wmt16-en-de", en_de)


def test_sides_of_different_length(en_de: Path) -> None:
    files = parallel("commoncrawl.de-en", "de", "en", 4)
    files["commoncrawl.de-en.de"] += "one more\n"
    write_tar(en_de / "training-parallel-commoncrawl.tgz", files)
    read = opened("wmt16-en-de", en_de).splits["train"]
    with pytest.raises(ValueError, match=r"commoncrawl\.de-en\.en has 4 lines and .* has 5 lines"):
        list(read())


@pytest.mark.parametrize(
    ("function", "setup"),
    [(wmt.en_de, EN_DE), (wmt.en_fr, EN_FR), (wmt.zh_en, ZH_EN)],
    ids=["en-de", "en-fr", "zh-en"],
)
def test_nothing_given(function: wmt.Open, setup: wmt.Setup, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{setup.task.corpus} needs --from PATH: a folder with"):
        function(None, tmp_path, lambda _: None)
