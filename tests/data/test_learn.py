"""Codes and vocabularies learned from text: against the definition, and the same every time."""

import os
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from lightconv.data.config import BPEConfig, BytesConfig, WordsConfig
from lightconv.data.subword import (
    BYTE_LETTERS,
    END,
    Codes,
    frequent,
    learn,
    learn_codes,
    read_blocks,
)
from tests.data.examples import Notes, learn_lines, make_lines, make_words
from tests.data.test_subword import Pair, first_symbols, merge_everywhere, segment_plainly


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
        assert pairs[merge] == max(pairs.values())
        words = {word: merge_everywhere(symbols, merge) for word, symbols in words.items()}


def test_a_pair_that_stands_once_is_not_merged() -> None:
    assert learn_codes(Counter({"ab": 1, "cd": 2}), 10, END).merges == (("c", "d" + END),)
    assert learn_codes(Counter({"ab": 5}), 10).merges == (("a", "b"),)
    assert learn_codes(Counter(), 10, END) == learn_codes(Counter({"a": 9}), 10) == Codes(())


# One of the last two would be too many of four, so none is learned from.
@pytest.mark.parametrize(("most", "learned"), [(2, "ab"), (4, "ab cd ef"), (5, "ab cd ef gh ij")])
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


def test_of_equally_frequent_pairs_the_first_by_its_symbols_is_merged() -> None:
    letters = "qwertyuiopasdfghjklzxcvbnm"
    codes = learn_codes(Counter({f"0{letter}": 7 for letter in letters}), 26, END)
    assert codes.merges == tuple(("0", letter + END) for letter in sorted(letters))


@pytest.mark.parametrize("before", [None, "true"])
def test_the_environment_stays_as_it_was(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "TOKENIZERS_PARALLELISM"
    monkeypatch.setenv(name, before) if before else monkeypatch.delenv(name, raising=False)
    learn_codes(Counter({"ab": 5}), 10)
    assert os.environ.get(name) == before


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
