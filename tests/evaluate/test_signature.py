"""Scores and their signatures as printed."""

import pytest

from lightconv import __version__
from lightconv.evaluate import Score, Signature

SIGNATURE = Signature("bleu", {"case": "mixed", "lines": 3})


def test_one_line() -> None:
    score = Score(27.318, {"bp": 0.98765, "ref_len": 12}, SIGNATURE)
    signature = f"bleu|case:mixed|lines:3|lightconv:{__version__}"
    assert str(score) == f"{signature} = 27.32 (bp 0.988, ref_len 12)"
    assert str(Score(1.0, {}, SIGNATURE)) == f"{signature} = 1.00"
    assert score.plain() == {
        "metric": "bleu",
        "value": 27.318,
        "parts": {"bp": 0.98765, "ref_len": 12},
        "signature": signature,
    }


def test_extended() -> None:
    longer = SIGNATURE.extend({"beam": 4})
    assert str(longer) == f"bleu|case:mixed|lines:3|beam:4|lightconv:{__version__}"
    assert str(SIGNATURE) == f"bleu|case:mixed|lines:3|lightconv:{__version__}"
    with pytest.raises(ValueError, match="beam is already in the signature"):
        longer.extend({"beam": 5})


@pytest.mark.parametrize("text", ["", "a b", "a|b", "a\nb"])
def test_what_would_break_the_line(text: str) -> None:
    for name, fields in ((text, {"a": "b"}), ("a", {text: "b"}), ("a", {"b": text})):
        with pytest.raises(ValueError, match="in a signature"):
            Signature(name, fields)
