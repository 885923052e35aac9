"""Subwords: words, BPE of words and of bytes, files of codes, learned codes; by plain versions."""

import contextlib
import io
import random
import sys
import time
from collections import Counter
from itertools import pairwise, product
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from subword_nmt.learn_bpe import learn_bpe

from lightconv.data.config import BPEConfig, BytesConfig, WordsConfig
from lightconv.data.subword import (
    BYTE_LETTERS,
    END,
    BytePieces,
    Codes,
    WholeWords,
    WordPieces,
    frequent,
    learn,
    learn_codes,
    read_blocks,
    to_letters,
)
from tests.data.examples import Notes, learn_lines, make_lines, make_words

Pair = tuple[str, str]
Ranks = dict[Pair, int]


def first_symbols(word: str, *, end_apart: bool) -> list[str]:
    return [*word, "</w>"] if end_apart else [*word[:-1], word[-1] + "</w>"]


def merge_everywhere(symbols: list[str], pair: Pair) -> list[str]:
    merged, place = [], 0
    while place < len(symbols):
        found = tuple(symbols[place : place + 2]) == pair
        merged.append("".join(pair) if found else symbols[place])
        place += 1 + found
    return merged


def merge_plainly(symbols: list[str], ranks: Ranks) -> list[str]:
    """The definition: all places of the pair that stands first in the list, until none fits."""
    while len(symbols) > 1:
        best = min(pairwise(symbols), key=lambda pair: ranks.get(pair, sys.maxsize))
        if best not in ranks:
            break
        symbols = merge_everywhere(symbols, best)
    return symbols


def segment_plainly(word: str, ranks: Ranks, *, end_apart: bool = False) -> list[str]:
    """What subword-nmt is documented to do with a word, without any thought of speed."""
    symbols = merge_plainly(first_symbols(word, end_apart=end_apart), ranks)
    symbols[-1] = symbols[-1].removesuffix("</w>")
    if not symbols[-1]:
        symbols.pop()
    return [symbol + "@@" for symbol in symbols[:-1]] + [symbols[-1]]


def learn_plainly(texts: list[list[str]], count: int) -> list[Pair]:
    """Merges of the most frequent pair of its time, as the algorithm is published."""
    merges: list[Pair] = []
    while len(merges) < count:
        pairs = Counter(pair for symbols in texts for pair in pairwise(symbols))
        best = max(sorted(pairs), key=lambda pair: pairs[pair])
        merges.append(best)
        texts = [merge_everywhere(s, best) if best[0] in s else s for s in texts]
    return merges


def strange_words(count: int, seed: int = 0) -> list[str]:
    """Words of letters of many scripts, with repetitions, marks and what codes do not know."""
    draw = random.Random(seed)
    parts = ["a", "b", "ab", "ba", "é", "e\u0301", "ß", "漢", "字", "😀", "👩\u200d👧", "</w>", "<"]
    parts += ["/w>", "@@", "\u00ad", "\ufeff", "\uffff", "ا", "ן", *make_words(30, seed)]
    return ["".join(draw.choices(parts, k=draw.randint(1, 12))) for _ in range(count)]


@pytest.mark.parametrize("version", ["0.1", "0.2"])
def test_segments_are_those_of_the_plain_algorithm(version: Literal["0.1", "0.2"]) -> None:
    apart = version == "0.1"
    words = make_words(5000) + strange_words(3000)
    texts = [first_symbols(word, end_apart=apart) for word in words[::8] + strange_words(500, 1)]
    merges = learn_plainly(texts, 300)
    pieces = WordPieces(Codes((*merges, merges[0]), version))  # of two equal ones the first counts
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    known = 0
    for word in [*words, "a", "</w>", "<", "@@", "x</w>", "aaaaaaaaa", "\ud800a\udfff", "</w></w>"]:
        expected = segment_plainly(word, ranks, end_apart=apart)
        assert pieces.segment(word) == expected
        known += len(expected) == 1
    assert known > 50


def test_bytes_are_merged_as_the_plain_algorithm_does() -> None:
    units = [*make_words(1500), *strange_words(3000), " Haus", "\n\n", " 漢字漢字漢字", "aaaaaaa"]
    merges = learn_plainly([list(to_letters(unit)) for unit in units[::6]], 300)
    pieces = BytePieces(Codes(tuple(merges)))
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    for unit in units:
        assert pieces.segment(unit) == merge_plainly(list(to_letters(unit)), ranks)


def test_without_merges_every_letter_is_a_token() -> None:
    for version in ("0.1", "0.2"):
        assert WordPieces(Codes((), version)).segment("aß漢") == ["a@@", "ß@@", "漢"]
    assert BytePieces(Codes(())).segment("é") == list(to_letters("é"))


def test_a_page_without_spaces_takes_no_minutes() -> None:
    letters = "abcdefgh"
    pairs = [a + b for a in letters for b in letters]
    merges = [*product(letters, letters), *product(pairs, pairs)]
    random.Random(0).shuffle(merges)
    page = "".join(random.Random(1).choices(letters, k=100_000))
    start = time.process_time()
    assert "".join(WordPieces(Codes(tuple(merges))).segment(page)).replace("@@", "") == page
    assert time.process_time() - start < 20


def test_joining_undoes_segments() -> None:
    words = make_words(500)
    pieces = WordPieces(Codes((("b", "a"), ("e", "n</w>"), ("ba", "en</w>"))))
    tokens = [token for word in words for token in pieces.segment(word)]
    assert pieces.join(tokens) == " ".join(words)
    assert pieces.split(f"  {pieces.join(tokens)}\u3000\n") == words
    # As models may end or begin, and as subword-nmt's sed would leave it.
    assert pieces.join(["a@@", "b", "c@@"]) == "ab c"
    assert pieces.join(["a@@", "<unk>", "c"]) == "a<unk> c"
    assert pieces.join([]) == ""
    whole = WholeWords()
    assert whole.split(" a  b\u00a0c\n") == ["a", "b", "c"]
    assert (whole.segment("ab"), whole.join(["a", "b"])) == (["ab"], "a b")


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
    split = BytePieces(Codes(())).split
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


MERGES = [(BYTE_LETTERS[a], BYTE_LETTERS[b]) for a in range(0, 256, 3) for b in range(256)]
random.Random(0).shuffle(MERGES)
PIECES = BytePieces(Codes(tuple(MERGES)))


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_bytes_give_back_any_text(text: str) -> None:
    tokens = [token for unit in PIECES.split(text) for token in PIECES.segment(unit)]
    assert PIECES.join(tokens) == text


def test_bytes_that_are_no_text_are_shown() -> None:
    assert PIECES.join([to_letters("é")[0], "a"]) == "\ufffda"
    assert PIECES.join(["a", "<unk>"]) == "a<unk>"
    with pytest.raises(ValueError, match=r"'\\ud800' cannot be written as UTF-8"):
        PIECES.segment("a\ud800")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "codes.txt"


def test_files(path: Path) -> None:
    codes = Codes((("a", "b</w>"), ("é", "漢"), ("#version:", "x")))
    assert codes.to_text() == "#version: 0.2\na b</w>\né 漢\n#version: x\n"
    for each in (codes, Codes((("a", "</w>"),), "0.1"), Codes(())):
        path.write_text(each.to_text())
        assert Codes.load(path) == each


@pytest.mark.parametrize(
    ("data", "codes", "longer"),
    [
        ("#version: 0.2\nl o\nlo w</w>\n", Codes((("l", "o"), ("lo", "w</w>"))), "lo@@ w@@ e"),
        ("l o 12\nlo w</w> 7\n", Codes((("l", "o"), ("lo", "w</w>"))), "lo@@ w@@ e"),
        ("#version: 0.2\r\nl o \r\n", Codes((("l", "o"),)), "lo@@ w@@ e"),
        ("#version: 0.2.0\nl \x85\n", Codes((("l", "\x85"),)), "l@@ o@@ w@@ e"),
        (
            "l o\nlo w\nlow </w>\n",
            Codes((("l", "o"), ("lo", "w"), ("low", "</w>")), "0.1"),
            "low@@ e",
        ),
    ],
)
def test_files_of_all_kinds(path: Path, data: str, codes: Codes, longer: str) -> None:
    path.write_bytes(data.encode())
    assert Codes.load(path) == codes
    pieces = WordPieces(Codes.load(path))
    assert pieces.segment("lowe") == longer.split()
    assert pieces.segment("l") == ["l"]
    if len(codes.merges) > 1:
        assert pieces.segment("low") == ["low"]


@pytest.mark.parametrize(
    "data, message",
    [
        (b"#version: 0.3\na b\n", r"expected #version: 0\.2 or 0\.1"),
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
    with pytest.raises(ValueError, match=rf"{path}.*{message}"):
        Codes.load(path)


def count(lines: list[str]) -> Counter[str]:
    return Counter(word for line in lines for word in line.split())


def test_each_merge_is_the_most_frequent_pair_of_its_time() -> None:
    counts = count(make_lines(2000, make_words(300)))
    codes = learn_codes(counts, 150, END)
    assert len(codes.merges) == 150
    words = {word: first_symbols(word, end_apart=False) for word in counts}
    for merge in codes.merges:
        pairs: Counter[Pair] = Counter()
        for word, symbols in words.items():
            for pair in pairwise(symbols):
                pairs[pair] += counts[word]
        assert merge == max(pairs, key=lambda pair: (pairs[pair], pair))
        words = {word: merge_everywhere(symbols, merge) for word, symbols in words.items()}


def test_merges_are_those_of_subword_nmt() -> None:
    """On real text, the documents of this project, until no pair occurs twice."""
    root = Path(__file__).parents[2]
    texts = [path.read_text() for path in (root / "README.md", *sorted(root.glob("docs/*.md")))]
    counts = Counter(" ".join(texts).split())
    codes = learn_codes(counts, 100_000, END)
    assert len(codes.merges) > 5000
    assert codes.to_text() == learned_by_subword_nmt(counts)


@pytest.mark.parametrize("letters", ["a", "ab", "abc", "aé漢", "</w>", "ab</w>"])
def test_merges_of_odd_words_are_those_of_subword_nmt(letters: str) -> None:
    """Pairs that overlap, symbols that several merges make, and letters that spell the end."""
    draw = random.Random(letters)
    for _ in range(40):
        counts = Counter({letters[0] * 2: 2})
        for _ in range(draw.randint(1, 30)):
            counts["".join(draw.choices(letters, k=draw.randint(1, 14)))] += draw.randint(1, 6)
        assert learn_codes(counts, 100_000, END).to_text() == learned_by_subword_nmt(counts)


def learned_by_subword_nmt(counts: Counter[str]) -> str:
    words = io.StringIO("".join(f"{word} {count}\n" for word, count in counts.items()))
    found = io.StringIO()
    with contextlib.redirect_stderr(io.StringIO()):
        learn_bpe(words, found, 100_000, is_dict=True)
    return found.getvalue()


def test_a_pair_that_stands_once_is_not_merged() -> None:
    assert learn_codes(Counter({"ab": 1, "cd": 2}), 10, END).merges == (("c", "d" + END),)
    assert learn_codes(Counter({"ab": 5}), 10).merges == (("a", "b"),)
    assert learn_codes(Counter(), 10, END) == learn_codes(Counter({"a": 9}), 10) == Codes(())


# One of the last two would be too many of four, so none is learned from.
@pytest.mark.parametrize(("most", "learned"), [(2, "ab"), (4, "ab ef cd"), (5, "ab ef cd ij gh")])
def test_of_too_many_words_the_most_frequent_are_learned_from(
    most: int, learned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightconv.data.subword.MOST_WORDS", most)
    codes = learn_codes(Counter({"ab": 9, "cd": 5, "ef": 5, "gh": 2, "ij": 2}), 10)
    assert codes.merges == tuple(map(tuple, learned.split()))


def test_the_order_of_the_words_does_not_matter() -> None:
    items = list(count(make_lines(500, make_words(400))).items())
    first = learn_codes(Counter(dict(items)), 300, END)
    for seed in range(5):
        random.Random(seed).shuffle(items)
        assert learn_codes(Counter(dict(items)), 300, END) == first


def test_of_equally_frequent_pairs_the_larger_is_merged() -> None:
    letters = "qwertyuiopasdfghjklzxcvbnm"
    codes = learn_codes(Counter({f"0{letter}": 7 for letter in letters}), 26, END)
    assert codes.merges == tuple(("0", letter + END) for letter in sorted(letters, reverse=True))


def test_one_code_and_a_vocabulary_for_each_side() -> None:
    words = make_words(900)
    source, target = make_lines(800, words[:600], 1), make_lines(800, words[300:], 2)
    learned = learn_lines(BPEConfig(merges=200), source, target)
    assert [len(codes.merges) for codes in learned.codes] == [200]
    # One code learned from the two sides together is the code of one text with all lines.
    assert learned.codes == (learn_codes(count(source + target), 200, END),)
    ranks = {pair: rank for rank, pair in enumerate(learned.codes[0].merges)}
    for lines, vocabulary in zip((source, target), learned.vocabularies, strict=True):
        tokens: Counter[str] = Counter()
        for word, times in count(lines).items():
            for token in segment_plainly(word, ranks):
                tokens[token] += times
        expected = sorted(tokens, key=lambda token: (-tokens[token], token))
        assert vocabulary.tokens == ("<s>", "<pad>", "</s>", "<unk>", *expected)
    assert learned.vocabularies.source != learned.vocabularies.target


def test_codes_and_vocabularies_shared_and_apart() -> None:
    words = make_words(300)
    source, target = make_lines(200, words[:200], 1), make_lines(200, words[100:], 2)
    shared = learn_lines(BPEConfig(merges=50, share_vocab=True), source, target)
    assert shared.vocabularies.source is shared.vocabularies.target
    assert shared == learn_lines(BPEConfig(merges=50), source + target)
    apart = learn_lines(BPEConfig(merges=50, joint=False), source, target)
    alone = [learn_lines(BPEConfig(merges=50), side) for side in (source, target)]
    assert apart.codes == (*alone[0].codes, *alone[1].codes)
    assert list(apart.vocabularies) == [each.vocabularies.source for each in alone]
    with pytest.raises(ValueError, match=r"share_vocab=true needs joint=true"):
        BPEConfig(merges=5, joint=False, share_vocab=True)


def test_byte_vocabularies_have_all_bytes_and_the_size_asked_for() -> None:
    lines = make_lines(500, make_words(500))
    learned = learn_lines(BytesConfig(vocab=400), lines, lines)
    vocabulary = learned.vocabularies.source
    assert vocabulary is learned.vocabularies.target
    assert len(vocabulary) == 400
    assert vocabulary.tokens[4:260] == tuple(BYTE_LETTERS)
    assert vocabulary.tokens[260:] == tuple(a + b for a, b in learned.codes[0].merges)
    apart = learn_lines(BytesConfig(vocab=260, joint=False), lines, ["xyz"] * 500)
    assert [len(codes.merges) for codes in apart.codes] == [0, 0]
    assert apart.vocabularies.sizes() == (260, 260)
    with pytest.raises(ValueError, match=r"vocab=259 must be at least 260"):
        BytesConfig(vocab=259)


def test_word_vocabularies() -> None:
    lines = ["b a b", "c </s> b <unk> a", "é d\0"]
    learned = learn_lines(WordsConfig(), lines)
    assert learned.codes == ()
    assert learned.vocabularies.source is learned.vocabularies.target
    for config, words in (
        (WordsConfig(), ("b", "a", "c", "é")),
        (WordsConfig(min_count=2), ("b", "a")),
        (WordsConfig(most=3), ("b", "a", "c")),
    ):
        assert learn_lines(config, lines).vocabularies.source.tokens[4:] == words
    # Ties are in the order of the strings.
    assert frequent(Counter("zzbbaac")).tokens[4:] == ("a", "b", "z", "c")


def test_progress_and_processes(tmp_path: Path) -> None:
    lines = make_lines(2500, make_words(100))
    paths = [tmp_path / name for name in ("source", "target")]
    for path, texts in zip(paths, (lines, lines[::-1]), strict=True):
        path.write_text("".join(f"{line}\n" for line in texts))
    blocks = list(read_blocks(paths))
    assert [side.count(b"\n") for block in blocks for side in block] == [1000] * 4 + [500] * 2
    notes = Notes()
    learned = learn(BPEConfig(merges=20), blocks, display=notes, total=2500)
    assert notes.shown == ["counting words"] * 3 + ["learning the vocabulary"]
    assert learned == learn_lines(BPEConfig(merges=20), lines, lines[::-1])
    assert learned == learn(BPEConfig(merges=20), iter(blocks), processes=2, display=notes)


def test_nothing_to_learn_from_is_an_error() -> None:
    for lines in ([], [""], ["  ", "\t"]):
        with pytest.raises(ValueError, match="no text to learn from"):
            learn_lines(BPEConfig(merges=5), lines, lines)
