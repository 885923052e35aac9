"""Pairs once, Chinese on one side alone, and a filter that forgets nothing."""

from lightconv.corpora.chinese import Cleaner, Seen


def test_a_text_is_new_once() -> None:
    seen = Seen(bits=20)
    assert [seen.add(text) for text in ("a", "b", "a", "", "", "b", "c")] == [1, 1, 0, 1, 0, 0, 1]


def test_few_texts_are_taken_for_others() -> None:
    # 43 bits for each text, as for 25 million in 2**30.
    seen = Seen(bits=20)
    assert sum(not seen.add(f"text {number}") for number in range(2**20 // 43)) == 0
    full = Seen(bits=10)
    wrong = sum(not full.add(f"text {number}") for number in range(1000))
    assert wrong > 400, "a filter that is too small does forget: the test sees it"


def test_what_is_left_out() -> None:
    clean = Cleaner()
    assert clean("你好 ，世界 。", "Hello, world.") == ("你好，世界。", "Hello, world.")
    assert clean("你好，世界。", " Hello, world.\x07") is None, "the same again"
    assert clean("你好，世界。", "Hello again.") == ("你好，世界。", "Hello again.")
    assert clean("no Chinese", "no Chinese") is None
    assert clean("你好", "你好") is None
    assert clean("", "empty") is None


def test_spaces_between_chinese_words_go_and_others_stay() -> None:
    clean = Cleaner()
    assert clean("联合国 大会 New York 第 5 次 会议", "x") == ("联合国大会New York第5次会议", "x")
    assert clean("中\x01文", "y") == ("中文", "y")
