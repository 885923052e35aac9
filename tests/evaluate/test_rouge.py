"""ROUGE: computed by hand, by the plain definition, and with the stemmer."""

import random
import sys

import pytest

from lightconv.evaluate.metrics import METRICS
from tests.evaluate.plain import rouge_l, rouge_n

ROUGE = METRICS["rouge"]

# hypothesis, reference, ROUGE-1, -2, -L as (matches, of the hypothesis, of the reference)
BY_HAND = {
    "same": ("the cat ¶ sat", "the cat ¶ sat", (3, 3, 3), (2, 2, 2), (3, 3, 3)),
    "nothing": ("a b", "c d", (0, 2, 2), (0, 1, 1), (0, 2, 2)),
    # As one sentence, "the dog" or "the sat" would be all that is common.
    "union": ("the dog sat", "the cat sat ¶ the dog ran", (3, 3, 6), (1, 2, 5), (3, 3, 6)),
    # The example of Lin (2004): w1 w2 w3 w5 of five words.
    "union of Lin": (
        "w1 w2 w6 w7 w8 ¶ w1 w3 w8 w9 w5",
        "w1 w2 w3 w4 w5",
        (4, 10, 5),
        (1, 9, 4),
        (4, 10, 5),
    ),
    # "a" stands once in the hypothesis and is a hit in both sentences: it counts once.
    "clipped": ("a b", "a x ¶ a b", (2, 2, 4), (1, 1, 3), (2, 2, 4)),
    "order": ("b a", "a b", (2, 2, 2), (0, 1, 1), (1, 2, 2)),
    # Pairs of words go on over the end of a sentence.
    "pairs across": ("a ¶ b", "a b", (2, 2, 2), (1, 1, 1), (2, 2, 2)),
    "case and marks": ("The U.S. -- the end!", "the u s the end", (5, 5, 5), (4, 4, 4), (5, 5, 5)),
    "hyphen and number": ("a-b 3,000", "a b 3 000", (4, 4, 4), (3, 3, 3), (4, 4, 4)),
    "accents are no letters": ("café", "caf", (1, 1, 1), (0, 0, 0), (1, 1, 1)),
    "empty hypothesis": ("", "a b", (0, 0, 2), (0, 0, 1), (0, 0, 2)),
    "empty reference": ("a b", "¶", (0, 2, 0), (0, 1, 0), (0, 2, 0)),
    "newlines": ("the dog sat", "the cat sat\nthe dog ran", (3, 3, 6), (1, 2, 5), (3, 3, 6)),
    "break without spaces": ("b a", "a¶b", (2, 2, 2), (0, 1, 1), (2, 2, 2)),
    "empty sentences": ("¶ ¶ a b ¶", "a b", (2, 2, 2), (1, 1, 1), (2, 2, 2)),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_by_hand(case: str) -> None:
    hypothesis, reference, *expected = BY_HAND[case]
    score = ROUGE.score([hypothesis], [reference])
    for kind, (matches, found, wanted) in zip("12L", expected, strict=True):
        for rate, parts in {"_p": found, "_r": wanted, "": (found + wanted) / 2}.items():
            share = matches / parts if matches else 0.0
            assert score.parts[f"rouge{kind}{rate}"] == pytest.approx(100.0 * share), kind
    assert score.value == score.parts["rougeL"]


def test_mean_over_summaries() -> None:
    score = ROUGE.score(["a b", "a", "x"], ["a b", "a b c", "y"])
    assert score.value == pytest.approx((100 + 50 + 0) / 3)
    assert score.parts["rouge2"] == pytest.approx(100 / 3)


def test_equals_the_definition() -> None:
    draw = random.Random(0)

    def summary() -> list[list[str]]:
        return [draw.choices("abcdef", k=draw.randint(1, 7)) for _ in range(draw.randint(1, 4))]

    pairs = [(summary(), summary()) for _ in range(1000)]
    texts = [
        [" ¶ ".join(map(" ".join, each)) for each in side] for side in zip(*pairs, strict=True)
    ]
    rows = ROUGE.statistics(*texts)  # type: ignore[attr-defined]
    for row, (hypothesis, reference) in zip(rows, pairs, strict=True):
        assert row[0] == pytest.approx(rouge_n(hypothesis, reference, 1))
        assert row[3] == pytest.approx(rouge_n(hypothesis, reference, 2))
        assert row[6] == pytest.approx(rouge_l(hypothesis, reference))


@pytest.mark.parametrize(
    "one, other, equal",
    [
        ("running", "runs", True),
        ("nations", "national", True),  # one of Porter's own: both are "nation"
        ("apologies", "apology", True),
        ("possibly", "possible", True),  # his later rule "bli"
        ("psychologies", "psychology", True),
        # The script leaves words of three letters alone; nltk's default stemmer does not.
        ("used", "use", False),
        ("days", "day", False),
        # Equal by the script's list of irregular forms, which is not here.
        ("went", "goes", False),
        ("mice", "mouse", False),
        # Equal in the script, whose step 4 continues after a suffix: both "govern" there.
        ("governmental", "govern", False),
    ],
)
def test_stems(one: str, other: str, equal: bool) -> None:
    assert (ROUGE.score([one], [other]).value == 100.0) == equal


def test_two_references_and_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="2 references for ROUGE, expected one"):
        ROUGE.score(["a"], ["a"], ["b"])
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(ValueError, match=r"pip install 'lightconv\[rouge\]'"):
        ROUGE.score(["a"], ["a"])
