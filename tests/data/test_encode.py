"""One side: what is remembered changes nothing."""

import pytest

from lightconv.data import encode
from lightconv.data.codes import Codes
from lightconv.data.config import SideConfig
from lightconv.data.encode import Coder
from lightconv.data.subword import WordPieces
from lightconv.data.vocabulary import Vocabulary
from tests.data.samples import make_lines, make_words


def coder() -> Coder:
    pieces = WordPieces(Codes([("b", "a"), ("e", "n</w>")]))
    words = make_words(100)
    tokens = dict.fromkeys(token for word in words[:90] for token in pieces.segment(word))
    return Coder(SideConfig(lang="de"), pieces, Vocabulary.of(tokens))


def test_memory_is_bounded_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = make_lines(200, make_words(100))
    expected = [coder().encode(line) for line in lines]
    monkeypatch.setattr(encode, "MOST_REMEMBERED", 5)
    monkeypatch.setattr(encode, "LONGEST_REMEMBERED", 8)
    bounded = coder()
    assert [bounded.encode(line) for line in lines] == expected
    assert 0 < len(bounded._ids) <= 5
    assert max(map(len, bounded._ids)) <= 8


def test_results_can_be_changed_without_harm() -> None:
    one = coder()
    first = one.encode("baba")
    first.append(99)
    assert one.encode("baba") == first[:-1]
