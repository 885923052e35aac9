"""Texts in, answers out, around searches that are known by heart."""

import random
from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightconv.data.config import BPEConfig, PipelineConfig, SideConfig
from lightconv.data.pipeline import Pipeline
from lightconv.data.subword import Codes
from lightconv.data.vocabulary import Vocabularies, Vocabulary
from lightconv.decode.answer import Alignment, Output, cut, join_outputs, join_sentences
from lightconv.decode.options import TextOptions
from lightconv.decode.translator import Translator
from tests.decode.fakes import WORDS, Reverse, words_pipeline


def translator(
    search: Reverse | None = None, hooks: dict[str, Any] | None = None, **options: Any
) -> Translator:
    return Translator(search or Reverse(), words_pipeline(), TextOptions(**options), **hooks or {})


def translate(texts: list[str], **options: Any) -> list[str]:
    return [answer.text for answer in translator(**options).answers(texts)]


def test_answers_come_in_the_order_of_the_texts() -> None:
    lines = ["a b c", "", "d", "  ", "a b c d a", "a zebra"]
    assert translate(lines) == ["c b a", "", "d", "", "a d c b a", "<unk> a"]


@given(st.lists(st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join), max_size=30))
def test_any_texts_any_windows_any_batches(lines: list[str]) -> None:
    chosen = random.Random(len(lines))
    expected = [" ".join(reversed(line.split())) for line in lines]
    for _ in range(3):
        options = {
            name: chosen.randint(1, 20) for name in ("window", "max_tokens", "max_sentences")
        }
        assert translate(lines, **options) == expected


def test_batches_hold_texts_of_about_one_length_and_no_more_than_asked_for() -> None:
    search = Reverse()
    lines = ["a", "a b c d", "b", "c", "d c b a", "d"]
    list(translator(search, max_tokens=10).answers(lines))
    # With EOS the long ones take 5 positions each, the short ones 2.
    assert [sorted(map(len, batch)) for batch in search.batches] == [[4, 4], [1, 1, 1, 1]]
    list(translator(search, max_sentences=1).answers(lines))
    assert len(search.batches) == 2 + len(lines)
    # A text longer than a batch is one by itself.
    assert translate(["a b c d", "a"], max_tokens=2) == ["d c b a", "a"]


def test_an_endless_stream_is_taken_a_window_at_a_time() -> None:
    asked = []

    def lines() -> Iterator[str]:
        for number in count():
            asked.append(number)
            yield "a b"

    answers = translator(window=4).answers(lines())
    assert [answer.line for answer in islice(answers, 6)] == [1, 2, 3, 4, 5, 6]
    assert len(asked) == 8


def test_what_an_answer_holds() -> None:
    (answer,) = translator(n_best=2).answers(["a c"])
    assert answer.line == 1 and answer.source == "a c" and answer.parts == 1
    assert answer.sentences == 1 and answer.seconds > 0.0
    best, second = answer.outputs
    assert best == Output("c a", -2.0, [6, 4, 2], ["c", "a", "</s>"], [-1.0] * 3)
    assert second.text == "a c"
    plain = answer.plain()
    assert plain["text"] == "c a" and plain["score"] == -2.0 and plain["logprob"] == -3.0
    assert [each["text"] for each in plain["outputs"]] == ["c a", "a c"]
    (empty,) = translator().answers([""])
    assert empty.outputs == [] and empty.plain()["text"] == "" and empty.parts == 0


def test_ends_of_lines_are_no_part_of_a_text() -> None:
    answers = translator().answers(["a b\n", "c\r\n", "\n"])
    found = [(answer.source, answer.text) for answer in answers]
    assert found == [("a b", "b a"), ("c", "c"), ("", "")]


# --- Too long


def test_a_long_text_is_answered_in_parts_with_a_warning() -> None:
    warned: list[str] = []
    found = translator(hooks={"warn": warned.append}, max_source=3, n_best=2)
    answers = list(found.answers(["a", "a b . c d .", "b c d"]))
    assert [answer.text for answer in answers] == ["a", ". b a . d c", "d c b"]
    assert warned == ["line 2: 6 tokens, expected at most 3; answered in 2 parts"]
    long = answers[1]
    assert long.parts == 2 and long.outputs[1].text == "a b . c d ."
    assert long.outputs[0].tokens.count("</s>") == 2
    assert long.outputs[0].score == -3.0


def test_parts_of_languages_without_spaces() -> None:
    found = Translator(Reverse(), words_pipeline(lang="zh_CN"), TextOptions(max_source=1))
    with pytest.warns(UserWarning, match="line 1: 2 tokens"):
        (answer,) = found.answers(["a b"])
    assert answer.text == "ab"


@pytest.mark.parametrize(
    "too_long, said, kept", [("start", "first", "b a"), ("end", "last", "d c")]
)
def test_a_long_text_is_cut(too_long: str, said: str, kept: str) -> None:
    with pytest.warns(UserWarning, match=f"line 1: 4 tokens.*only the {said} 2 are read"):
        assert translate(["a b c d"], max_source=2, too_long=too_long) == [kept]


# --- Prefixes, alignments, subwords


def test_outputs_begin_with_their_prefixes() -> None:
    found = translator(hooks={"warn": lambda text: None}, max_source=3)
    texts, prefixes = ["a b", "", "a b . c d .", "c"], ["d d", "d", "c", ""]
    answers = list(found.answers(texts, prefixes))
    # Only the first part of a long text begins so; an empty text has no answer.
    assert [answer.text for answer in answers] == ["d d b a", "", "c . b a . d c", "c"]
    assert [answer.source for answer in answers] == texts


def mirror(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[Alignment]:
    """The alignment of what `Reverse` says first."""
    return [
        [(len(source) - 1 - t, t) for t in range(len(target))]
        for source, target in zip(sources, targets, strict=True)
    ]


def test_alignments_count_the_tokens_of_all_parts() -> None:
    found = translator(hooks={"align": mirror, "warn": lambda text: None}, max_source=3)
    short, empty, long = found.answers(["a c", "", "a b . c d ."])
    assert short.outputs[0].alignment == [(1, 0), (0, 1)] and short.outputs[0].pairs() == "1-0 0-1"
    assert short.plain()["alignment"] == [(1, 0), (0, 1)]
    assert short.plain()["source_tokens"] == ["a", "c"]
    assert "alignment" not in empty.plain()
    output = long.outputs[0]
    assert output.alignment is not None and long.parts == 2
    assert [(long.read[s], output.tokens[t]) for s, t in output.alignment] == [
        (word, word) for word in (".", "b", "a", ".", "d", "c")
    ]
    assert "alignment" not in next(translator().answers(["a"])).plain()


def test_subwords_are_left_as_they_are() -> None:
    assert translate(["a ."], subwords=True) == [". a"]
    pieces = Pipeline(
        PipelineConfig(sides=(SideConfig(lang="en"),) * 2, subword=BPEConfig(merges=1)),
        [Codes((("b", "c</w>"),))],
        Vocabularies(Vocabulary.of(("a@@", "bc", "bc@@")), Vocabulary.of(("a@@", "bc", "bc@@"))),
    )
    for subwords, expected in ((False, ["bc a"]), (True, ["bc a@@"])):
        found = Translator(Reverse(), pieces, TextOptions(subwords=subwords))
        assert [answer.text for answer in found.answers(["abc"])] == expected


# --- Odd input


def test_no_output_breaks_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline of bytes can decode to anything."""
    found = translator()
    monkeypatch.setattr(found.pipeline, "decode", lambda side, ids: "a\nb\r\nc\u2028d")
    assert next(found.answers(["a"])).text == "a b  c\u2028d"


@pytest.mark.parametrize(
    "texts, prefixes, message",
    [
        ("a b", None, "one text, expected a list of texts"),
        (b"a b", None, "one text, expected a list of texts"),
        (["a", 3], None, r"texts\[1\] is int"),
        (["a"], "c", "expected a list of prefixes"),
        (["a", "b"], ["c"], "2 texts and 1 prefixes"),
        (["a", "a b c d e"], None, r"line 2: 5 tokens, expected at most 4\. .*--strict"),
    ],
)
def test_wrong_texts(texts: Any, prefixes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(translator(max_source=4, strict=True).answers(texts, prefixes))


def test_a_prompt_is_part_of_its_answer() -> None:
    pipeline = words_pipeline(sides=1)
    found = Translator(Reverse(), pipeline, TextOptions(answer_empty=True), continues=True)
    answers = list(found.answers(["a b", ""]))
    assert [answer.text for answer in answers] == ["a b b a", ""]
    assert answers[1].parts == 1


def test_draws_depend_on_the_line_only() -> None:
    search = Reverse()
    list(translator(search, window=2).answers(["a", "b c", "d"]))
    lines = {1: [4], 2: [5, 6], 3: [7]}
    for numbers, sources in zip(search.numbers, search.batches, strict=True):
        assert sources == [lines.pop(number) for number in numbers]
    assert not lines


def test_progress_counts_lines() -> None:
    shown: list[int] = []
    found = translator(hooks={"show": shown.append}, window=3)
    list(found.answers(["a", "", "b c", "d"]))
    assert shown == [2, 3, 4], "the empty line is answered first"


# --- Long texts are cut where people would, nothing is lost, and every part fits


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
