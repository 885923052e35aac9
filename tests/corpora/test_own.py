"""One's own files: three kinds, what is held out, and every bad file of the table."""

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from lightconv.corpora.own import looks_tokenized, own_corpus
from lightconv.data.config import (
    BytesConfig,
    FilterConfig,
    TaskKind,
)
from lightconv.data.text import Corpus
from tests.corpora.packing import lines, write_folder


def translation(folder: Path, kind: TaskKind = "translation", **options: Any) -> Corpus:
    given: dict[str, Any] = {"train": folder / "train", "valid": folder / "valid"}
    return own_corpus(kind, **given | {"source_lang": "de", "target_lang": "en"} | options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(
        tmp_path / "text",
        {
            "train.de": lines("eins", "zwei", ""),
            "train.en": lines("one", "two", "three"),
            "valid.de": lines("vier"),
            "valid.en": "four",
            "test.v2.de": lines("fünf"),
            "test.v2.en": lines("five"),
        },
    )


def test_parallel_files(folder: Path) -> None:
    corpus = translation(folder, test=folder / "test.v2")
    assert {split: list(read()) for split, read in corpus.splits.items()} == {
        "train": [("eins", "one"), ("zwei", "two"), ("", "three")],
        "valid": [("vier", "four")],
        "test": [("fünf", "five")],
    }
    assert list(corpus.splits) == ["train", "valid", "test"]
    assert (corpus.task.kind, corpus.task.source_lang) == ("translation", "de")
    assert corpus.task.target_lang == "en"
    assert corpus.digests["train/train.de"] == hashlib.sha256(b"eins\nzwei\n\n").hexdigest()
    assert len(corpus.digests) == 6


def test_what_is_not_said_is_chosen(folder: Path) -> None:
    corpus = translation(folder)
    assert "test" not in corpus.splits
    assert corpus.pipeline.subword == BytesConfig(vocab=8000)
    assert [side.lang for side in corpus.pipeline.sides] == ["de", "en"]
    assert corpus.filters == FilterConfig(max_len=250, max_ratio=9.0)


@pytest.mark.parametrize(
    "text, tokenised",
    [
        (["A cat sat .", "Why ?", "Two cats ran ."], True),
        (["it &apos;s late"] + ["so it is"] * 9, True),
        (["a well @-@ known cat"] * 3, True),
        (["A cat sat.", "Why?", "Two cats ran ."], False),
        (["no marks at all"] * 50 + ["one ."], False),
        ([""], False),
    ],
)
def test_the_look_of_tokenised_text(text: list[str], tokenised: bool) -> None:
    assert looks_tokenized(text) == tokenised


def test_compressed_files(folder: Path) -> None:
    for name in ("train.de", "valid.en"):
        path = folder / name
        (folder / f"{name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert list(translation(folder).splits["train"]())[1] == ("zwei", "two")
    assert list(translation(folder).splits["valid"]()) == [("vier", "four")]


def test_text_for_language_modelling(tmp_path: Path) -> None:
    write_folder(tmp_path, {"a.txt": "one\u2028line\n\nthree", "b.txt": "x\n"})
    corpus = own_corpus("language_model", train=tmp_path / "a.txt", valid=tmp_path / "b.txt")
    assert list(corpus.splits["train"]()) == [("one\u2028line",), ("",), ("three",)]
    assert corpus.examples == {"train": 3, "valid": 1}
    assert len(corpus.pipeline.sides) == 1
    assert corpus.task.metric == "perplexity"


def test_summaries_as_json_lines_and_as_two_files(tmp_path: Path) -> None:
    record = json.dumps({"document": "A text.\nMore.", "summary": ["Short.", "Shorter."]})
    write_folder(
        tmp_path,
        {
            "train.jsonl": f"{record}\n",
            "dev.source": "A text. More.\n",
            "dev.target": "Short. ¶ S\n",
        },
    )
    corpus = own_corpus("summarization", train=tmp_path / "train.jsonl", valid=tmp_path / "dev")
    assert list(corpus.splits["train"]()) == [("A text. More.", "Short. ¶ Shorter.")]
    assert list(corpus.splits["valid"]()) == [("A text. More.", "Short. ¶ S")]
    assert [side.truncate for side in corpus.pipeline.sides] == [400, None]


# --- Nothing to validate on


def test_held_out_lines(tmp_path: Path) -> None:
    text = [f"line {n % 4000}" for n in range(8000)]
    write_folder(tmp_path, {"a.txt": lines(*text)})
    messages: list[str] = []
    corpus = own_corpus("language_model", train=tmp_path / "a.txt", progress=messages.append)
    train = [line for (line,) in corpus.splits["train"]()]
    valid = [line for (line,) in corpus.splits["valid"]()]
    assert sorted(train + valid) == sorted(text)
    assert not set(train) & set(valid), "equal lines stay together"
    assert 300 <= len(valid) <= 500, "a twentieth"
    assert "held out 5.0%" in messages[0]


def test_pairs_with_one_source_stay_together(tmp_path: Path) -> None:
    sources = [f"line {n % 100}" for n in range(2000)]
    write_folder(tmp_path, {"train.de": lines(*sources), "train.en": lines(*map(str, range(2000)))})
    splits = translation(tmp_path, valid=None).splits
    train, valid = ({source for source, _ in splits[split]()} for split in ("train", "valid"))
    assert train and valid and not train & valid


def test_of_a_long_text_about_two_thousand_are_held_out(tmp_path: Path) -> None:
    write_folder(tmp_path, {"a.txt": lines(*map(str, range(200_000)))})
    corpus = own_corpus("language_model", train=tmp_path / "a.txt")
    assert 1800 <= sum(1 for _ in corpus.splits["valid"]()) <= 2200


# --- Bad input


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("translation", "dev", r"dev\.de does not exist.*/dev stands for dev\.de and dev\.en"),
        ("summarization", "dev", r"dev\.source does not exist.*or a \.jsonl file"),
        ("summarization", "a.jsonl", r"a\.jsonl, line 1: fields article, expected"),
        ("language_model", "nothing.txt", r"nothing\.txt does not exist"),
    ],
)
def test_bad_files(folder: Path, kind: TaskKind, name: str, message: str) -> None:
    write_folder(folder, {"a.jsonl": '{"article": 1}\n'})
    with pytest.raises(ValueError, match=message):
        list(translation(folder, kind, train=folder / name, valid=None).splits["train"]())
    with pytest.raises(ValueError, match="both 'de'"):
        translation(folder, target_lang="de")
