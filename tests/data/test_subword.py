"""Whole words, BPE of words and of bytes: against plain versions and other libraries."""

import random
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightconv.data.codes import Codes
from lightconv.data.subword import BYTE_LETTERS, BytePieces, WholeWords, WordPieces, to_letters
from tests.data.samples import make_words

Ranks = dict[tuple[str, str], int]


def segment_plainly(word: str, ranks: Ranks, *, end_apart: bool = False) -> list[str]:
    """What subword-nmt is documented to do with a word, without any thought of speed."""
    symbols = [*word, "</w>"] if end_apart else [*word[:-1], word[-1] + "</w>"]
    while len(symbols) > 1:
        best = min(pairwise(symbols), key=lambda pair: ranks.get(pair, sys.maxsize))
        if best not in ranks:
            break
        merged, place = [], 0
        while place < len(symbols):
            if tuple(symbols[place : place + 2]) == best:
                merged.append("".join(best))
                place += 2
            else:
                merged.append(symbols[place])
                place += 1
        symbols = merged
    if symbols[-1] == "</w>":
        symbols.pop()
    else:
        symbols[-1] = symbols[-1][: -len("</w>")]
    return [symbol + "@@" for symbol in symbols[:-1]] + [symbols[-1]]


def make_merges(words: list[str], *, end_apart: bool, seed: int = 0) -> list[tuple[str, str]]:
    """Pairs that fit these words, built on each other, in no good order."""
    draw = random.Random(seed)
    texts = [[*w, "</w>"] if end_apart else [*w[:-1], w[-1] + "</w>"] for w in words]
    merges: dict[tuple[str, str], None] = {}
    for symbols in texts:
        while len(symbols) > 1 and draw.random() < 0.8:
            place = draw.randrange(len(symbols) - 1)
            merges[symbols[place], symbols[place + 1]] = None
            symbols[place : place + 2] = ["".join(symbols[place : place + 2])]
    return list(merges)


@pytest.mark.parametrize("version", ["0.1", "0.2"])
def test_segments_are_those_of_the_plain_algorithm(version: str) -> None:
    words = make_words(20_000)
    merges = make_merges(words[::20], end_apart=version == "0.1")
    assert len(merges) > 1000
    pieces = WordPieces(Codes(merges, "0.1" if version == "0.1" else "0.2"))
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    for word in [*words, "a", "</w>", "@@", "x</w>"]:
        expected = segment_plainly(word, ranks, end_apart=version == "0.1")
        assert list(pieces.segment(word)) == expected


def test_joining_undoes_segments() -> None:
    words = make_words(500)
    pieces = WordPieces(Codes(make_merges(words[::2], end_apart=False)))
    tokens = [token for word in words for token in pieces.segment(word)]
    assert pieces.join(tokens) == " ".join(words)
    assert pieces.split(f"  {pieces.join(tokens)}\u3000\n") == words
    # As models may end or begin, and as subword-nmt's sed would leave it.
    assert pieces.join(["a@@", "b", "c@@"]) == "ab c"
    assert pieces.join(["a@@", "<unk>", "c"]) == "a<unk> c"
    assert pieces.join([]) == ""


def test_whole_words() -> None:
    words = WholeWords()
    assert words.split(" a  b\u00a0c\n") == ["a", "b", "c"]
    assert list(words.segment("ab")) == ["ab"]
    assert words.join(["a", "b"]) == "a b"


def test_letters_of_bytes_are_those_of_other_libraries() -> None:
    from tokenizers.decoders import ByteLevel as Decoder
    from tokenizers.pre_tokenizers import ByteLevel

    assert set(BYTE_LETTERS) == set(ByteLevel.alphabet())
    assert len(BYTE_LETTERS) == 256
    text = "a\n é漢😀\x00\x7f\xa0\xad"
    split = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    assert to_letters(text) == split[0][0]
    assert Decoder().decode([to_letters(text)]) == text
    assert to_letters("a b") == "aĠb"


def test_units_of_text_cover_every_character() -> None:
    split = BytePieces(Codes([])).split
    everything = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    for shuffled in (False, True):
        if shuffled:
            random.Random(0).shuffle(everything)
        text = "".join(everything)
        assert "".join(split(text)) == text
    assert split("Don't  go, 12%\n\n«là»!") == [
        "Don", "'t", " ", " go", ",", " 12", "%", "\n\n", "«là»", "!",
    ]  # fmt: skip
    assert split(" नमस्ते दुनिया") == [" नमस्ते", " दुनिया"]  # vowel signs are no ends of words
    assert max(map(len, split("x" * 1000 + " " * 1000 + "-" * 1000 + "1" * 1000))) <= 66


def byte_pieces() -> BytePieces:
    merges = [(BYTE_LETTERS[a], BYTE_LETTERS[b]) for a in range(0, 256, 3) for b in range(256)]
    random.Random(0).shuffle(merges)
    return BytePieces(Codes(merges))


PIECES = byte_pieces()


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_bytes_give_back_any_text(text: str) -> None:
    tokens = [token for unit in PIECES.split(text) for token in PIECES.segment(unit)]
    assert PIECES.join(tokens) == text


def test_bytes_that_are_no_text_are_shown() -> None:
    assert PIECES.join([to_letters("é")[0], "a"]) == "\ufffda"
    assert PIECES.join(["a", "<unk>"]) == "a<unk>"
    with pytest.raises(ValueError, match=r"'\\ud800' cannot be written as UTF-8"):
        PIECES.segment("a\ud800")
