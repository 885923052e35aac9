"""Billion Word: shards. CNN-DailyMail: stories by the SHA-1 of their address, and JSON lines."""

import gzip
import hashlib
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightconv.corpora import open_corpus
from lightconv.corpora.news import parse_records, parse_story, summary_text
from lightconv.data.config import BPEConfig, WordsConfig
from lightconv.data.vocabulary import Vocabulary
from lightconv.data.words import Steps
from lightconv.models.config import LanguageModelConfig, Seq2SeqConfig
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


ADDRESSES = {
    "all_train.txt": [f"http://web.archive.org/web/1id_/http://example.org/{n}" for n in range(5)],
    "all_val.txt": ["http://example.org/val"],
    "all_test.txt": ["http://example.org/test/1", "http://example.org/test/2"],
}


def story_name(address: str) -> str:
    return f"{hashlib.sha1(address.encode()).hexdigest()}.story"


def story(address: str) -> str:
    return lines(
        f"Article of {address} .", "@highlight", f"About {address[-4:]} .", "@highlight", "x"
    )


def stories(*, archives: bool, folder: Path) -> Path:
    """Stories of CNN and of the Daily Mail by turns, and one that no list has."""
    cnn: dict[str, str] = {"cnn/stories/" + story_name("nobody"): story("nobody")}
    mail: dict[str, str] = {}
    for texts in ADDRESSES.values():
        for number, address in enumerate(texts):
            home, prefix = (mail, "dailymail") if number % 2 else (cnn, "cnn")
            home[f"{prefix}/stories/{story_name(address)}"] = story(address)
    lists = {f"url_lists/{name}": lines(*texts) for name, texts in ADDRESSES.items()}
    write_folder(folder, lists)
    if not archives:
        return write_folder(folder, cnn | mail)
    pack(folder / "cnn_stories.tgz", cnn)
    pack(folder / "dailymail_stories.tgz", mail)
    return folder


def test_a_story() -> None:
    text = [
        "(CNN) -- A cat sat on a mat .",
        "",
        "A caption without an end",
        "  It said: \u201cMeow\u201d  ",
        "@highlight",
        "",
        "NEW: Cat sits",
        "@highlight",
        "It says Meow!",
    ]
    assert parse_story(text) == (
        "(CNN) -- A cat sat on a mat . A caption without an end . It said: “Meow”",
        "NEW: Cat sits . ¶ It says Meow!",
    )
    assert parse_story(["@highlight", "only this"]) == ("", "only this .")


@pytest.mark.parametrize("archives", [True, False], ids=["archives", "folders"])
def test_stories_go_to_their_splits(archives: bool, tmp_path: Path) -> None:
    messages: list[str] = []
    path = stories(archives=archives, folder=tmp_path / "data")
    corpus = open_corpus("cnn-dailymail", path, tmp_path, messages.append)
    found = {split: list(read()) for split, read in corpus.splits.items()}
    assert found["valid"] == [("Article of http://example.org/val .", "About /val . ¶ x .")]
    for split, name in (("train", "all_train.txt"), ("test", "all_test.txt")):
        assert {article for article, _ in found[split]} == {
            f"Article of {address} ." for address in ADDRESSES[name]
        }
        assert len(found[split]) == len(ADDRESSES[name])
    assert list(pickle.loads(pickle.dumps(corpus.splits["test"]))()) == found["test"]
    assert "train: 5 stories" in messages
    assert set(corpus.digests) >= {f"url_lists/{name}" for name in ADDRESSES}
    assert ("cnn_stories.tgz" in corpus.digests) == archives


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        ("dailymail_stories.tgz", r"lacks 2 of the 5 stories of all_train\.txt, \w+\.story"),
        ("url_lists/all_val.txt", r"lacks all_val\.txt, expected a folder with"),
    ],
)
def test_missing_stories_and_lists(removed: str, message: str, tmp_path: Path) -> None:
    path = stories(archives=True, folder=tmp_path / "data")
    (path / removed).unlink()
    with pytest.raises(ValueError, match=message):
        open_corpus("cnn-dailymail", path, tmp_path)


def test_the_papers_preparation(tmp_path: Path) -> None:
    path = stories(archives=False, folder=tmp_path / "data")
    corpus = open_corpus("cnn-dailymail", path, tmp_path)
    recipe = RECIPES["cnn-dailymail-dynamicconv"]
    assert corpus.task == recipe.task
    assert [side.truncate for side in corpus.pipeline.sides] == [400, None]
    assert isinstance(recipe.model, Seq2SeqConfig)
    rows = recipe.model.source_vocab
    assert corpus.pipeline.subword == BPEConfig(merges=30_000, share_vocab=True, most=rows - 4)


# --- The anonymised copy: markers for names, words in lower case

MARKED = (
    "@entity1 -- a cat sat on @entity2 's mat , said \u2018 @entity12 \u2019 of u.s. @entity0 ."
)
NAMES = lines("@entity0:Rome", "@entity1:Ada B.", "@entity2:Bo-Lin", "@entity12:Cy : D")


def question(address: str, text: str, answer: str) -> str:
    """As DeepMind's script writes it: five parts between empty lines, no newline at the end."""
    return "\n\n".join([address, MARKED, text, answer, NAMES.rstrip("\n")])


def summary_file(address: str, *highlights: str) -> str:
    """As of Cheng and Lapata: a label after three tabs behind every sentence of the article."""
    article = lines(*(f"{MARKED}\t\t\t{label}" for label in (1, 0))).rstrip("\n")
    return "\n\n".join([address, article, lines(*highlights).rstrip("\n"), NAMES.rstrip("\n")])


def anonymous(folder: Path, kind: str) -> Path:
    """One article for each split, of CNN or of the Daily Mail, with `HIGHLIGHTS`."""
    cnn: dict[str, str] = {}
    mail: dict[str, str] = {}
    told: dict[str, str] = {}
    for number, split in enumerate(("training", "validation", "test")):
        address = f"http://web.archive.org/web/{number}id_/http://example.org/{split}"
        home = mail if number % 2 else cnn
        root = "dailymail" if number % 2 else "cnn"
        if kind == "summary":
            text = summary_file(address, *HIGHLIGHTS)
            home[f"neuralsum/{root}/{split}/{number}.summary"] = text
            continue
        asked = [
            ("in @entity0 , bo-lin 's mat is @placeholder 's seat now", "@entity1"),
            ("in @placeholder , bo-lin 's mat is @entity1 's seat now", "@entity0"),
            ("NEW : @placeholder says : meow".lower(), "@entity12"),
        ]
        for place, (text, answer) in enumerate(asked):
            content = question(address, text, answer)
            home[f"{root}/questions/{split}/{9 - place}{number}.question"] = content
        told[f"{root}/stories/{story_name(address)}"] = lines(
            "Ada B. -- A cat sat.",
            *("@highlight", "", "NEW: Cy : D says: meow", "@highlight", "", "Cats are everywhere"),
            *("@highlight", "", "In Rome, Bo-Lin's mat is Ada's seat now"),
        )
    pack(folder / "cnn.tgz", cnn)
    pack(folder / "dailymail.tgz", mail)
    if told:
        pack(folder / "cnn_stories.tgz", told)
    return folder


HIGHLIGHTS = (
    "new : @entity12 says : meow",
    "cats are everywhere",
    "in @entity0 , bo-lin 's mat is @entity1 's seat now",
)


@pytest.mark.parametrize("kind", ["summary", "question"])
def test_the_anonymised_copy(kind: str, tmp_path: Path) -> None:
    corpus = open_corpus("cnn-dailymail", anonymous(tmp_path / "data", kind), tmp_path)
    article = " ".join([MARKED] * (2 if kind == "summary" else 1))
    for split in ("train", "valid", "test"):
        assert list(corpus.splits[split]()) == [(article, " ¶ ".join(HIGHLIGHTS))]
    assert next(pickle.loads(pickle.dumps(corpus.splits["test"]))())[0] == article
    recipe = RECIPES["cnn-dailymail-dynamicconv"]
    assert corpus.task == recipe.task
    source, target = (Steps(side) for side in corpus.pipeline.sides)
    assert source.apply(article) == article, "markers and words stay as they are"
    assert target.undo(target.apply(HIGHLIGHTS[0])) == HIGHLIGHTS[0]
    many = " ".join(f"@entity{n}" for n in range(500))
    assert source.apply(many).split() == [f"@entity{n}" for n in range(400)], "400 words are 400"
    assert isinstance(corpus.pipeline.subword, BPEConfig)


@pytest.mark.parametrize("marked", [True, False])
def test_markers_are_found_in_stories_and_json_lines(marked: bool, tmp_path: Path) -> None:
    name = "@entity3" if marked else "Rome"
    record = json.dumps({"article": f"the mayor of {name} .", "highlights": f"{name} votes"})
    files = {f"{split}.jsonl": f"{record}\n" for split in ("train", "val", "test")}
    told: list[str] = []
    path = write_folder(tmp_path / "json", files)
    corpus = open_corpus("cnn-dailymail", path, tmp_path, told.append)
    assert {side.tokenize for side in corpus.pipeline.sides} == {"none" if marked else "moses"}
    assert any("@entity1" in text for text in told) == marked
    path = stories(archives=True, folder=tmp_path / "data")
    if marked:
        address = ADDRESSES["all_val.txt"][0]
        text = lines("by @entity0 .", "@highlight", "@entity0 wins")
        write_folder(path, {story_name(address): text})  # loose files come first
    corpus = open_corpus("cnn-dailymail", path, tmp_path)
    assert {side.tokenize for side in corpus.pipeline.sides} == {"none" if marked else "moses"}
    if marked:
        assert list(corpus.splits["valid"]()) == [("by @entity0 .", "@entity0 wins .")]


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        ("cnn_stories.tgz", r"lacks 1 of the 1 stories of the questions, \w+\.story among"),
        ("dailymail.tgz", r"lacks validation/\*\.question, expected a folder with"),
    ],
)
def test_parts_of_the_anonymised_copy_are_missing(
    removed: str, message: str, tmp_path: Path
) -> None:
    path = anonymous(tmp_path / "data", "question")
    (path / removed).unlink()
    with pytest.raises(ValueError, match=message):
        open_corpus("cnn-dailymail", path, tmp_path)


def test_a_broken_question_is_named(tmp_path: Path) -> None:
    path = anonymous(tmp_path / "data", "question")
    write_folder(path, {"cnn/questions/validation/x.question": "http://a\n\nonly an article\n"})
    with pytest.raises(
        ValueError, match=r"x\.question has 2 parts between empty lines, expected 5"
    ):
        open_corpus("cnn-dailymail", path, tmp_path)


# --- JSON lines


def records(split: str, count: int) -> str:
    return lines(
        *(
            json.dumps({"article": f"{split}\n{n}", "highlights": f"a {n}\nb {n}", "id": str(n)})
            for n in range(count)
        )
    )


def test_json_lines(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "json", {"validation.jsonl": records("valid", 2)})
    (folder / "train.jsonl.gz").write_bytes(gzip.compress(records("train", 3).encode()))
    pack(folder / "rest.tgz", {"x/test.json": records("test", 1)})
    corpus = open_corpus("cnn-dailymail", folder, tmp_path)
    assert list(corpus.splits["valid"]()) == [(f"valid {n}", f"a {n} ¶ b {n}") for n in (0, 1)]
    assert len(list(corpus.splits["train"]())) == 3
    assert list(corpus.splits["test"]()) == [("test 0", "a 0 ¶ b 0")]
    assert set(corpus.digests) == {"validation.jsonl", "train.jsonl.gz", "rest.tgz"}


def test_a_bad_record_is_named(tmp_path: Path) -> None:
    files = {f"{split}.jsonl": records(split, 2) for split in ("train", "val", "test")}
    files["train.jsonl"] += "{broken\n"
    corpus = open_corpus("cnn-dailymail", write_folder(tmp_path / "json", files), tmp_path)
    with pytest.raises(ValueError, match=r"train\.jsonl, line 3: not JSON"):
        list(corpus.splits["train"]())


def test_neither_stories_nor_json_lines(tmp_path: Path) -> None:
    wrong = write_folder(tmp_path / "wrong", {"train.jsonl": records("a", 1), "x.txt": "x"})
    with pytest.raises(ValueError, match=r"lacks validation\.jsonl, test\.jsonl, expected a"):
        open_corpus("cnn-dailymail", wrong, tmp_path)


@pytest.mark.parametrize(
    "record",
    [
        {"id": "1", "article": "One.\nTwo.", "highlights": "A b .\nC d ."},
        {"document": "One.\r\n\r\nTwo.", "summary": ["A b .", "C d ."]},
        {"text": ["One.", "Two."], "summary": "<s> A b . </s> <s> C d . </s>"},
    ],
)
def test_all_ways_to_say_the_same(record: dict[str, Any]) -> None:
    assert list(parse_records([json.dumps(record)], "x")) == [("One. Two.", "A b . ¶ C d .")]


def test_blank_lines_and_pilcrows() -> None:
    blank = ["", json.dumps({"article": "", "highlights": ""}), "  "]
    assert list(parse_records(blank, "x")) == [("", "")]
    assert summary_text(["a ¶ b", "", "  ", "c\u2028d"]) == "a b ¶ c d"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"x, line 2: not JSON \(.*\), expected \{\"article\": ..., \"highlights\": ...\}"),
        ("[" * 100_000, "x, line 2: not JSON"),
        ("[1, 2]", r"x, line 2: '\[1, 2\]', expected"),
        ('{"title": "a", "body": "b"}', "x, line 2: fields body, title, expected"),
        ("{}", r"x, line 2: fields \(none\), expected"),
        ('{"article": 3, "highlights": "a"}', "x, line 2, article: '3', expected text"),
        ('{"article": "a", "highlights": ["b", 4]}', "x, line 2, highlights: .* expected text"),
        (r'{"article": "\ud800", "highlights": "a"}', "x, line 2, article: a lone surrogate"),
    ],
)
def test_lines_that_are_none(line: str, message: str) -> None:
    good = '{"article": "a", "highlights": "b"}'
    with pytest.raises(ValueError, match=message):
        list(parse_records([good, line], "x"))


@given(st.text(max_size=60) | st.recursive(st.integers() | st.text(), st.lists).map(json.dumps))
def test_any_line_is_an_example_or_an_error(line: str) -> None:
    try:
        found = list(parse_records([line], "x"))
    except ValueError as error:
        assert str(error).startswith("x, line 1")
    else:
        assert found == []


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=5))
def test_a_summary_is_one_line_that_can_be_taken_apart(sentences: list[str]) -> None:
    line = summary_text(sentences)
    assert "\n" not in line
    assert len(line.splitlines()) <= 1
    kept = [" ".join(text.replace("¶", " ").split()) for text in sentences]
    assert [part.strip() for part in line.split("¶") if part] == [text for text in kept if text]
