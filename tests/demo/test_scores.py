"""Which texts are shown, and the floor of summaries."""

from pathlib import Path

from lightconv.corpora.synthetic import Settings, make
from lightconv.data.prepare import prepare
from lightconv.demo.scores import SHOWN, choose, lead_floor


def test_texts_at_even_distances() -> None:
    texts = ["one two"] * 5 + [" ".join(["w"] * 8)] * 60 + [" ".join(["w"] * 50)] * 5
    assert choose(texts, most=18) == [5, 15, 25, 35, 45, 55]
    assert choose(["a b"] * 3, most=18) == [0, 1, 2]  # none is of moderate length
    assert len(choose(texts, most=100)) == SHOWN


def test_the_first_words(tmp_path: Path) -> None:
    corpus = make("synthetic-summary", Settings(train=40, valid=6, test=6))
    prepared = prepare(corpus, tmp_path / "data", processes=1)
    counts = [len(text.split()) for text in prepared.references("valid")]
    most = round(sum(counts) / len(counts))
    found = lead_floor(prepared, "test", 4)
    assert len(found.plain) == 4
    for lead, source in zip(found.plain, prepared.texts("test", "source"), strict=False):
        assert source.startswith(lead)
        assert 1 <= len(lead.split()) <= most
        assert lead.endswith((".", "!", "?")) or len(lead.split()) == most
