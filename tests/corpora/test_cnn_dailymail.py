"""CNN-DailyMail: stories by the SHA-1 of their address, or JSON lines; one split each."""

import hashlib
import json
import pickle
from pathlib import Path

import pytest

from lightconv.corpora import cnn_dailymail, open_corpus
from lightconv.corpora.cnn_dailymail import parse_story
from lightconv.data.config import BPEConfig
from lightconv.models.config import Seq2SeqConfig
from lightconv.paper.recipes import RECIPES
from tests.corpora.packing import lines, write_folder, write_gzip, write_tar

STORY = lines(
    "(CNN) -- A cat sat on a mat .",
    "",
    "A caption without an end",
    "  It said: \u201cMeow\u201d  ",
    "",
    "@highlight",
    "",
    "NEW: Cat sits",
    "",
    "@highlight",
    "",
    "It says Meow!",
)
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
    write_tar(folder / "cnn_stories.tgz", cnn)
    write_tar(folder / "dailymail_stories.tgz", mail)
    return folder


def test_a_story() -> None:
    assert parse_story(iter(STORY.splitlines())) == (
        "(CNN) -- A cat sat on a mat . A caption without an end . It said: “Meow”",
        "NEW: Cat sits . ¶ It says Meow!",
    )
    assert parse_story(iter(["@highlight", "only this"])) == ("", "only this .")


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


def test_a_story_that_is_not_there(tmp_path: Path) -> None:
    path = stories(archives=True, folder=tmp_path / "data")
    (path / "dailymail_stories.tgz").unlink()
    name = story_name(ADDRESSES["all_train.txt"][1])
    with pytest.raises(ValueError, match=rf"lacks 2 of the 5 stories of all_train\.txt, {name}"):
        open_corpus("cnn-dailymail", path, tmp_path)


def test_stories_without_lists(tmp_path: Path) -> None:
    path = stories(archives=False, folder=tmp_path / "data")
    (path / "url_lists" / "all_val.txt").unlink()
    with pytest.raises(ValueError, match=r"lacks all_val\.txt, expected a folder with"):
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
    write_gzip(folder / "train.jsonl.gz", records("train", 3))
    write_tar(folder / "rest.tgz", {"x/test.json": records("test", 1)})
    corpus = open_corpus("cnn-dailymail", folder, tmp_path)
    assert list(corpus.splits["valid"]()) == [
        ("valid 0", "a 0 ¶ b 0"),
        ("valid 1", "a 1 ¶ b 1"),
    ]
    assert len(list(corpus.splits["train"]())) == 3
    assert list(corpus.splits["test"]()) == [("test 0", "a 0 ¶ b 0")]
    assert set(corpus.digests) == {"validation.jsonl", "train.jsonl.gz", "rest.tgz"}


def test_a_bad_record_is_named(tmp_path: Path) -> None:
    files = {f"{split}.jsonl": records(split, 2) for split in ("train", "val", "test")}
    files["train.jsonl"] += "{broken\n"
    corpus = open_corpus("cnn-dailymail", write_folder(tmp_path / "json", files), tmp_path)
    with pytest.raises(ValueError, match=r"train\.jsonl, line 3: no JSON"):
        list(corpus.splits["train"]())


def test_neither_stories_nor_json_lines(tmp_path: Path) -> None:
    wrong = write_folder(tmp_path / "wrong", {"train.jsonl": records("a", 1), "x.txt": "x"})
    with pytest.raises(ValueError, match=r"lacks validation\.jsonl and story files, expected a"):
        open_corpus("cnn-dailymail", wrong, tmp_path)
    with pytest.raises(ValueError, match=r"cnn-dailymail needs --from PATH: a folder with cnn_st"):
        cnn_dailymail.articles(None, tmp_path, lambda _: None)


def test_the_papers_preparation(tmp_path: Path) -> None:
    path = stories(archives=False, folder=tmp_path / "data")
    corpus = open_corpus("cnn-dailymail", path, tmp_path)
    recipe = RECIPES["cnn-dailymail-dynamicconv"]
    assert corpus.task == recipe.task
    assert [side.truncate for side in corpus.pipeline.sides] == [400, None]
    assert isinstance(recipe.model, Seq2SeqConfig)
    rows = recipe.model.source_vocab
    assert corpus.pipeline.subword == BPEConfig(merges=30_000, share_vocab=True, most=rows - 4)
