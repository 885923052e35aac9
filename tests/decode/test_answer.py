"""Long texts are cut where people would, nothing is lost, and every part fits."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightconv.decode.answer import Output, cut, join_outputs, join_sentences


# A text that fits stays whole. Sentences come before spaces, and spaces before letters. A sentence
# end far from the middle is not a good place. One character is never cut.
@pytest.mark.parametrize(
    "text, unit, most, parts",
    [
        ("One. Two.", str.split, 2, ["One. Two."]),
        ("  One. ", str.split, 2, ["One."]),
        (" ", str.split, 2, []),
        ('A "no." She is. They went late.', str.split, 4, ['A "no." She is.', "They went late."]),
        ("a b c d e f", str.split, 3, ["a b c", "d e f"]),
        ("abcdefgh", str, 3, ["ab", "cd", "ef", "gh"]),
        ("今天很好。明天也好。", str, 5, ["今天很好。", "明天也好。"]),
        ("A. b c d e f g h", str.split, 5, ["A. b c", "d e f g h"]),
        ("漢字", str, 0, ["漢", "字"]),
        *(
            (f"aa bb{e} cc dd", str.split, 3, [f"aa bb{e}", "cc dd"])
            for e in (".", "!", "?", '."', ".)")
        ),
    ],
)
def test_places_to_cut(text: str, unit: Any, most: int, parts: list[str]) -> None:
    assert cut(text, lambda part: len(unit(part)) <= most) == parts


@given(st.text(alphabet="ab .!?。\t\u00a0漢", max_size=80), st.integers(1, 9))
def test_nothing_is_lost_but_white_space(text: str, most: int) -> None:
    parts = cut(text, lambda part: len(part) <= most)
    assert all(0 < len(part) <= most for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())


def test_scores_of_parts_are_a_mean_and_missing_ones_are_the_last() -> None:
    def output(text: str, score: float) -> Output:
        return Output(text, score, [1], [text], [score])

    parts = [[output("a", -1.0), output("b", -2.0)], [output("c", -3.0)]]
    joined = join_outputs(parts, "+", [1, 1])
    assert [(each.text, each.score) for each in joined] == [("a+c", -2.0), ("b+c", -2.5)]
    assert joined[1].logprobs == [-2.0, -3.0]


def test_summaries_lose_their_marks() -> None:
    assert join_sentences("One . ¶ Two . ¶ Three .") == "One . Two . Three ."
    assert join_sentences("§¶ stays") == "§¶ stays"
