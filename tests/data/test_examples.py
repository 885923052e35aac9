"""What stands in the rows of a batch, against plain lists."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightconv.data import Blocks, Pairs, Sentences, Store
from tests.data.stores import EOS, PAD, Sentence, pad, sentences, write_pairs, write_text

SOURCE, TARGET = sentences(40, seed=1), sentences(40, seed=2, vocab=400)
ROWS = np.array([7, 0, 39, 7, 12], dtype=np.uint32)
TEXT = st.lists(st.lists(st.integers(3, 299), max_size=6), min_size=1, max_size=12)


@pytest.fixture
def pairs(tmp_path: Path) -> Store:
    return write_pairs(tmp_path, [SOURCE, TARGET])


def test_pairs(pairs: Store) -> None:
    examples = Pairs(pairs)
    assert [side.tolist() for side in examples.lengths()] == [
        [len(sentence) + 1 for sentence in side] for side in (SOURCE, TARGET)
    ]
    found = examples.make(ROWS)
    source, target_in = found.inputs
    assert source.tolist() == pad([[*SOURCE[row], EOS] for row in ROWS])
    assert target_in.tolist() == pad([[EOS, *TARGET[row]] for row in ROWS])
    assert found.target.tolist() == pad([[*TARGET[row], EOS] for row in ROWS])
    assert found.rows.tolist() == ROWS.tolist()
    assert {part.dtype for part in (source, target_in, found.target, found.rows)} == {
        np.dtype(np.int64)
    }


@pytest.mark.parametrize("keep", ["start", "end"])
def test_long_sentences_are_cut(pairs: Store, keep: str) -> None:
    def cut(sentence: Sentence) -> Sentence:
        return sentence[:5] if keep == "start" else sentence[-5:]

    examples = Pairs(pairs, max_len=6, keep=keep)
    assert [side.tolist() for side in examples.lengths()] == [
        [len(cut(sentence)) + 1 for sentence in side] for side in (SOURCE, TARGET)
    ]
    found = examples.make(ROWS)
    assert found.inputs[0].tolist() == pad([[*cut(SOURCE[row]), EOS] for row in ROWS])
    assert found.inputs[1].tolist() == pad([[EOS, *cut(TARGET[row])] for row in ROWS])
    assert found.target.tolist() == pad([[*cut(TARGET[row]), EOS] for row in ROWS])


def test_special_ids_in_a_sentence_are_ids_like_others(tmp_path: Path) -> None:
    # Text may hold the words that stand for them: what ends a row is its length.
    text = [[EOS, 5], [PAD, EOS, 6, 7], [0]]
    examples = Sentences(write_text(tmp_path, text))
    found = examples.make(np.arange(3))
    assert found.inputs[0].tolist() == pad([[EOS, *sentence] for sentence in text])
    assert found.target.tolist() == pad([[*sentence, EOS] for sentence in text])


def test_empty_sentences(tmp_path: Path) -> None:
    store = write_pairs(tmp_path, [[[], []], [[], []]])
    found = Pairs(store).make(np.arange(2))
    assert [*map(np.ndarray.tolist, (*found.inputs, found.target))] == [[[EOS], [EOS]]] * 3


@settings(max_examples=50, deadline=None)
@given(text=TEXT, width=st.integers(1, 12))
def test_blocks_cut_the_running_text(
    tmp_path_factory: pytest.TempPathFactory, text: list[Sentence], width: int
) -> None:
    running = [token for sentence in text for token in (*sentence, EOS)]
    read = [EOS, *running[:-1]]
    examples = Blocks(write_text(tmp_path_factory.mktemp("text"), text), width)
    begins = range(0, len(running), width)
    expected = [running[begin : begin + width] for begin in begins]
    assert examples.lengths()[0].tolist() == [len(block) for block in expected]
    # In any order, and the short last one beside others.
    order = np.arange(len(expected))[::-1]
    found = examples.make(order)
    assert found.target.tolist() == pad(expected[::-1])
    assert found.inputs[0].tolist() == pad([read[b : b + width] for b in begins][::-1])
    for row in order:
        one = examples.make(np.array([row]))
        assert one.target.tolist() == [expected[row]]


@pytest.mark.parametrize("text", [[], [[]]])
def test_hardly_any_text(tmp_path: Path, text: list[Sentence]) -> None:
    examples = Blocks(write_text(tmp_path, text), 4)
    assert examples.lengths()[0].tolist() == [1] * len(text)
    if text:
        assert examples.make(np.array([0])).target.tolist() == [[EOS]]


def test_nonsense_is_refused(tmp_path: Path) -> None:
    store = write_text(tmp_path, [[5]])
    with pytest.raises(ValueError, match="has the sides text, no 'source'"):
        Pairs(store)
    with pytest.raises(ValueError, match="max_len=1 must be at least 2"):
        Sentences(store, max_len=1)
    with pytest.raises(ValueError, match="keep='middle' must be"):
        Sentences(store, max_len=5, keep="middle")
    with pytest.raises(ValueError, match="tokens_per_sample=0 must"):
        Blocks(store, 0)
