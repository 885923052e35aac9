"""Merging by codes against a plain version of the algorithm, and the files of codes."""

import random
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightconv.data.codes import Codes

Pairs = list[tuple[str, str]]


def merge_plainly(symbols: list[str], merges: Pairs) -> list[str]:
    """The definition: look at all pairs, merge the one that stands first in the list, repeat."""
    while True:
        here = [merges.index(pair) for pair in pairwise(symbols) if pair in merges]
        if not here:
            return symbols
        left, right = merges[min(here)]
        merged: list[str] = []
        for symbol in symbols:
            if merged and merged[-1] == left and symbol == right:
                merged[-1:] = [left + right, ""]  # the mark keeps it from being merged again
            else:
                merged.append(symbol)
        symbols = [symbol for symbol in merged if symbol]


# Few letters and any pairs of short strings: chains, overlaps, two ways to make one symbol.
SYMBOL = st.text("ab", min_size=1, max_size=3)


@given(st.lists(st.tuples(SYMBOL, SYMBOL), max_size=12), st.text("ab", max_size=16))
def test_merging_is_what_the_definition_says(merges: Pairs, text: str) -> None:
    assert Codes(merges).merge(list(text)) == merge_plainly(list(text), merges)


def test_merges_build_on_each_other() -> None:
    draw = random.Random(0)
    for _ in range(2000):
        text = draw.choices("abc", k=draw.randint(2, 12))
        merges: Pairs = []
        symbols = text.copy()
        while len(symbols) > 1:  # so that all of these merges fit the text
            place = draw.randrange(len(symbols) - 1)
            merges.append((symbols[place], symbols[place + 1]))
            symbols[place : place + 2] = ["".join(symbols[place : place + 2])]
        for _ in range(draw.randint(0, 3)):
            draw.shuffle(merges)
        assert Codes(merges).merge(text) == merge_plainly(text, merges)


def test_all_places_of_a_pair_are_merged_before_the_next() -> None:
    # "ab" is made twice; only then "ab a" would fit, and no "a" is left for it.
    codes = Codes([("ab", "a"), ("a", "b")])
    assert codes.merge(list("abab")) == ["ab", "ab"]
    assert codes.merge(list("aba")) == ["aba"]
    assert Codes([("x", "x")]).merge(list("xxxxx")) == ["xx", "xx", "x"]


def test_of_a_pair_listed_twice_the_first_counts() -> None:
    assert Codes([("a", "b"), ("b", "c"), ("a", "b")]).merge(list("abc")) == ["ab", "c"]


def test_a_page_without_spaces_takes_no_minutes() -> None:
    letters = "abcdefgh"
    merges = [(a, b) for a in letters for b in letters] + [
        (a + b, c + d) for a in letters for b in letters for c in letters for d in letters
    ]
    random.Random(0).shuffle(merges)
    page = random.Random(1).choices(letters, k=100_000)
    start = time.process_time()
    assert "".join(Codes(merges).merge(page)) == "".join(page)
    assert time.process_time() - start < 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "codes.txt"


def test_files(path: Path) -> None:
    codes = Codes([("a", "b</w>"), ("é", "漢"), ("#version:", "x")])
    assert codes.to_text() == "#version: 0.2\na b</w>\né 漢\n#version: x\n"
    first = Codes([("a", "</w>")], "0.1")
    for each in (codes, first, Codes([])):
        path.write_text(each.to_text())
        assert Codes.load(path) == each
    path.write_text("a b\nab </w>\n")
    assert Codes.load(path) == Codes([("a", "b"), ("ab", "</w>")], "0.1")
    path.write_text("a b</w> 120\nc d 7\n")
    assert Codes.load(path) == Codes([("a", "b</w>"), ("c", "d")])
    path.write_bytes(b"#version: 0.2\r\na b \r\n")
    assert Codes.load(path) == Codes([("a", "b")])
    path.write_bytes(b"#version: 0.2.0\na \xc2\x85\n")
    assert Codes.load(path) == Codes([("a", "\x85")])


@pytest.mark.parametrize(
    "data, message",
    [
        (b"#version: 0.3\na b\n", r"'#version: 0\.3', expected #version: 0\.2 or 0\.1"),
        (b"#version: 0.2\na b\nab\n", r"line 3: 'ab', expected two symbols"),
        (b"#version: 0.2\na b 3\n", r"line 2"),
        (b"#version: 0.2\na b\n\n", r"line 3"),
        (b"a b 3\nc d\n", r"line 2"),
        (b"a b x\n", r"line 1"),
        (b"", r"is empty"),
        (b"#version: 0.2\na \xff\n", r"line 2: byte 0xff"),
    ],
)
def test_what_is_no_file_of_codes(path: Path, data: bytes, message: str) -> None:
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message) as raised:
        Codes.load(path)
    assert str(path) in str(raised.value)
