"""Words and ids: the special ones, both file formats, and files that are neither."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from lightconv.data import BOS, EOS, PAD, UNK, Vocabularies, Vocabulary, load_vocabularies
from lightconv.models import Seq2SeqConfig

SPECIAL_LINES = "<s>\n<pad>\n</s>\n<unk>\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dict.txt"


def test_special_tokens_have_the_ids_of_the_original() -> None:
    assert (BOS, PAD, EOS, UNK) == (0, 1, 2, 3)
    assert {field.name: field.default for field in fields(Seq2SeqConfig)}["pad"] == PAD
    assert Vocabulary.of([]).tokens == ("<s>", "<pad>", "</s>", "<unk>")


def test_encode_and_decode() -> None:
    vocabulary = Vocabulary.of(["the", "cat", "@@x"])
    assert vocabulary.encode(["cat", "dog", "the", "</s>"]) == [5, 3, 4, 2]
    assert vocabulary.decode([5, 3, 4, 2, 6]) == ["cat", "<unk>", "the", "</s>", "@@x"]
    assert len(vocabulary) == 7
    for wrong in (7, -1):
        with pytest.raises(ValueError, match=rf"id {wrong} must be from 0 to 6"):
            vocabulary.decode([wrong])


def test_a_file_is_one_token_per_line_in_the_order_of_ids(path: Path) -> None:
    # With everything that str.splitlines or Python's text mode would cut at.
    words = ["b", "a", "é", "a \r\x0b\x0c\x1c\x1d\x1e", "\x85", "\u2028\u2029", "\u3000\r"]
    Vocabulary.of(words).save(path)
    assert path.read_bytes().decode() == SPECIAL_LINES + "".join(f"{word}\n" for word in words)
    assert Vocabulary.load(path) == Vocabulary.of(words)
    assert Vocabulary.load(path).encode(["é", "a", "b"]) == [6, 5, 4]


def test_a_dictionary_of_fairseq(path: Path) -> None:
    path.write_bytes(b"the 1061396\n, 7\ntwo words 3\nmadeupword0000 0\n")
    expected = Vocabulary.of(["the", ",", "two words", "madeupword0000"])
    assert Vocabulary.from_fairseq(path) == expected


def test_the_overwrite_flag_adds_a_second_id_which_is_the_one_in_use(path: Path) -> None:
    path.write_text("a 3\nb 2\na 1 #fairseq:overwrite\n<unk> 1 #fairseq:overwrite\n")
    vocabulary = Vocabulary.from_fairseq(path)
    assert vocabulary.tokens[4:] == ("a", "b", "a", "<unk>")
    assert vocabulary.encode(["a", "<unk>", "never"]) == [6, 7, 3]
    assert vocabulary.decode([4, 6]) == ["a", "a"]
    vocabulary.save(path)
    assert Vocabulary.load(path).encode(["a", "b"]) == [6, 5]


LOAD, FAIRSEQ = Vocabulary.load, Vocabulary.from_fairseq


@pytest.mark.parametrize(
    ("read", "data", "message"),
    [
        (FAIRSEQ, "a 3\nb\n", r"line 2: 'b', expected a symbol, a space and its count"),
        (FAIRSEQ, "a 3\n\nb 1\n", r"line 2: ''"),
        (FAIRSEQ, "a 3\n 4\n", r"line 2"),
        (FAIRSEQ, "a 3\nb x\n", r"line 2: 'b x'"),
        (FAIRSEQ, "a 3\nb ²\n", r"line 2"),
        (FAIRSEQ, "a 3\nb 2\na 1\n", r"line 3: 'a' for the second time.*#fairseq:overwrite"),
        (FAIRSEQ, "<pad> 3\n", r"line 1: '<pad>' for the second time"),
        (FAIRSEQ, "", r"is empty"),
        (FAIRSEQ, "a 3\nb\0 1\n", r"line 2: a NUL character"),
        (FAIRSEQ, b"a 3\n\xe4 1\n", r"line 2: byte 0xe4 is not UTF-8.*iconv"),
        (FAIRSEQ, "a 3\n".encode("utf-16"), r"is UTF-16"),
        (FAIRSEQ, None, r"does not exist"),
        (LOAD, b"a 3\n\xe4 1\n", r"line 2: byte 0xe4 is not UTF-8.*iconv"),
        (LOAD, "a 3\n".encode("utf-16"), r"is UTF-16"),
        (LOAD, "a 3\nb 2\n", r"must be <s> <pad> .*, got 'a 3 b 2'.*lightconv import fairseq"),
        (LOAD, "<s>\n<pad>\n", r"must be <s> <pad> </s> <unk>, got '<s> <pad>'"),
        (LOAD, SPECIAL_LINES + "a\n\nb\n", r"token 5 must be a line"),
        (LOAD, SPECIAL_LINES.replace("\n", "\r\n"), r"'<s>\\r"),
        (LOAD, None, r"does not exist"),
    ],
)
def test_bad_files_name_the_line(
    path: Path, read: Callable[[Path], Vocabulary], data: str | bytes | None, message: str
) -> None:
    if data is not None:
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    with pytest.raises(ValueError, match=rf"dict\.txt.*{message}"):
        read(path)
    with pytest.raises(ValueError, match="is not a file"):
        read(path.parent)


@pytest.mark.parametrize(
    ("data", "warning"),
    [
        (b"a 3\r\nb 2\r\n", "dropped the CR of 2 lines"),
        (b"\xef\xbb\xbfa 3\nb 2\n", "byte order mark"),
    ],
)
def test_marks_of_other_systems_are_dropped(path: Path, data: bytes, warning: str) -> None:
    path.write_bytes(data)
    with pytest.warns(UserWarning, match=warning):
        assert Vocabulary.from_fairseq(path) == Vocabulary.of("ab")


@pytest.mark.parametrize("words", [["a\nb"], [""], ["a", "\n"]])
def test_tokens_that_no_line_can_hold_are_refused(words: list[str]) -> None:
    with pytest.raises(ValueError, match="must be a line that is not empty"):
        Vocabulary.of(words)


def test_folders_hold_one_vocabulary_or_two(tmp_path: Path) -> None:
    source, target = Vocabulary.of("ab"), Vocabulary.of("cde")
    shared = {"vocab.txt": (SPECIAL_LINES + "a\nb\n").encode()}
    assert Vocabularies(source, source).files() == source.files() == shared
    for name, text in Vocabularies(source, target).files().items():
        (tmp_path / name).write_bytes(text)
    assert {path.name for path in tmp_path.iterdir()} == {"vocab.source.txt", "vocab.target.txt"}
    assert load_vocabularies(tmp_path) == (source, target)
    assert load_vocabularies(tmp_path).sizes() == (6, 7)
    (tmp_path / "vocab.source.txt").unlink()
    with pytest.raises(ValueError, match=r"has no vocabulary: vocab\.source\.txt missing"):
        load_vocabularies(tmp_path)
    source.save(tmp_path / "vocab.txt")
    both = load_vocabularies(tmp_path)
    assert both.source is both.target
    assert both.sizes() == source.sizes() == (6, 6)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "vocab.txt").symlink_to("../vocab.txt")
    with pytest.raises(ValueError, match="link that leaves its folder"):
        load_vocabularies(tmp_path / "model")
