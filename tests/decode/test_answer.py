"""Long texts are cut where people would, nothing is lost, and every part fits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightconv.decode.answer import Output, cut, join_outputs, join_sentences


def words(most: int):  # type: ignore[no-untyped-def]
    return lambda text: len(text.split()) <= most


def test_a_text_that_fits_stays_whole() -> None:
    assert cut("One. Two.", words(2)) == ["One. Two."]
    assert cut("  One. ", words(2)) == ["One."]
    assert cut(" ", words(2)) == []


def test_sentences_come_before_spaces_and_spaces_before_letters() -> None:
    text = 'He said "no." She said yes. They went home late.'
    assert cut(text, words(6)) == ['He said "no." She said yes.', "They went home late."]
    assert cut("a b c d e f", words(3)) == ["a b c", "d e f"]
    assert cut("abcdefgh", lambda text: len(text) <= 3) == ["ab", "cd", "ef", "gh"]
    chinese = "今天很好。明天也好。"
    assert cut(chinese, lambda text: len(text) <= 5) == ["今天很好。", "明天也好。"]


def test_a_sentence_end_far_from_the_middle_is_no_good_place() -> None:
    assert cut("A. b c d e f g h", words(5)) == ["A. b c", "d e f g h"]


def test_one_character_is_never_cut() -> None:
    assert cut("漢字", lambda text: False) == ["漢", "字"]


@given(st.text(alphabet="ab .!?。\t\u00a0漢", max_size=80), st.integers(1, 9))
def test_nothing_is_lost_but_white_space(text: str, most: int) -> None:
    parts = cut(text, lambda part: len(part) <= most)
    assert all(0 < len(part) <= most for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())


@pytest.mark.parametrize("end", [". ", "! ", "? ", '." ', ".) "])
def test_ends_of_sentences(end: str) -> None:
    text = f"aa bb{end}cc dd"
    assert cut(text, words(3)) == [f"aa bb{end.strip()}", "cc dd"]


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
