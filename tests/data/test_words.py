"""Steps from text to words: what the Moses scripts are known to print, and the way back."""

import random
import subprocess
import sys
from dataclasses import replace

import pytest

from lightconv.data.config import PipelineConfig, SideConfig, TaskConfig, WordsConfig
from lightconv.data.words import Steps, check_packages

MOSES = SideConfig(lang="en", tokenize="moses")


def test_without_steps_a_text_stays_as_it_is() -> None:
    steps = Steps(SideConfig(lang="en"))
    for text in ("", "  a \r b\0\u2028", "É&apos;"):
        assert steps.apply(text) == text
        assert steps.undo(text) == text


# What tokenizer.perl -l LANG prints.
@pytest.mark.parametrize(
    "lang, text, words",
    [
        ("en", "Hello, world!", "Hello , world !"),
        ("en", "It's 5,300 dollars.", "It &apos;s 5,300 dollars ."),
        ("en", 'He said "no" (twice).', "He said &quot; no &quot; ( twice ) ."),
        ("en", "Mr. Smith lives in the U.S. now.", "Mr. Smith lives in the U.S. now ."),
        ("en", "well-known facts & <b>", "well-known facts &amp; &lt; b &gt;"),
        ("en", "a [b] | c", "a &#91; b &#93; &#124; c"),
        ("en", "wait... what", "wait ... what"),
        ("de", "Das ist z.B. der 3. Versuch.", "Das ist z.B. der 3. Versuch ."),
        ("de", "Wie geht's?", "Wie geht &apos; s ?"),
        ("fr", "L'homme n'est pas là.", "L&apos; homme n&apos; est pas là ."),
        ("en", "  two\u00a0 spaces\t", "two spaces"),
        ("en", "", ""),
    ],
)
def test_moses_words(lang: str, text: str, words: str) -> None:
    steps = Steps(SideConfig(lang=lang, tokenize="moses"))
    assert steps.apply(text) == words
    # The way back is a guess; where it fails, detokenizer.perl fails too.
    guesses = {"&lt; b": "well-known facts & < b >", "geht &apos;": "Wie geht 's?"}
    wrong = [guess for piece, guess in guesses.items() if piece in words]
    assert steps.undo(words) == (wrong[0] if wrong else " ".join(text.split()))


def test_hyphens_are_split_when_asked_for() -> None:
    steps = Steps(replace(MOSES, split_hyphens=True))
    assert steps.apply("a well-known state-of-the-art model - yes") == (
        "a well @-@ known state @-@ of @-@ the @-@ art model - yes"
    )
    assert steps.undo("a well @-@ known one") == "a well-known one"
    with pytest.raises(ValueError, match="split_hyphens=true needs tokenize='moses', got 'none'"):
        SideConfig(lang="en", split_hyphens=True)


def test_lower_case_comes_after_the_words_are_found() -> None:
    # A dot after "Mr" is no end of sentence; after "mr" it would be one.
    assert Steps(replace(MOSES, lowercase=True)).apply("Mr. 7") == "mr. 7"
    assert Steps(SideConfig(lang="de", lowercase=True)).apply("ÄÖ  ß") == "äö  ß"


def test_normalized_punctuation() -> None:
    steps = Steps(SideConfig(lang="en", normalize="moses"))
    assert steps.apply("“quoted” – it’s… 5\u00a0%") == '"quoted" - it\'s... 5%'
    assert steps.apply("a\u200bb\u00adc") == "a b c"  # remove-non-printing-char.perl
    assert steps.apply("boys’ club") == 'boys" club'  # as the script has it
    german = Steps(SideConfig(lang="de", normalize="moses"))
    assert german.apply("„so“ 1\u00a0000") == '"so" 1,000'


@pytest.mark.parametrize("lang", ["en", "de", "fr", "zh"])
def test_shortcuts_do_not_change_what_sacremoses_says(lang: str) -> None:
    from sacremoses import MosesTokenizer

    draw = random.Random(lang)
    pieces = ["a", "Ab", "é", "漢", "ß", "\u0301", "5", "No. ", *" -.", "...", ". ", ", ", "'s"]
    steps, theirs = Steps(SideConfig(lang=lang, tokenize="moses")), MosesTokenizer(lang)
    for _ in range(100 if lang == "zh" else 1000):  # what was slow is slower for Chinese
        text = "".join(draw.choices(pieces, k=draw.randint(0, 20)))
        assert steps.apply(text) == " ".join(theirs.tokenize(text))


def test_any_characters_are_taken() -> None:
    draw = random.Random(0)
    odd = "aB .,'\"-&<>|[]@“”…()%$5´`\u00a0\u2028\u3000漢é\u0301😀\t\0\x1c:;!?li"
    for lang in ("en", "fr", "cs", "fi", "xx"):
        steps = Steps(SideConfig(lang=lang, normalize="moses", tokenize="moses"))
        for _ in range(400):
            text = "".join(draw.choices(odd, k=draw.randint(0, 25)))
            words = steps.apply(text)
            assert words == " ".join(words.split())
            steps.undo(words)
            steps.undo(text)
    czech = Steps(SideConfig(lang="cs", tokenize="moses")).undo("ano' - li")
    assert "-li" in czech.replace(" ", "")


def test_chinese_words() -> None:
    steps = Steps(SideConfig(lang="zh", tokenize="jieba"))
    assert steps.apply("我来到北京清华大学") == "我 来到 北京 清华大学"
    mixed = "我用 Python 3 写了New York指南。"
    words = steps.apply(mixed)
    assert words == "我用 Python 3 写 了 New York 指南 。"
    assert steps.undo(words) == "我用Python 3写了New York指南。"
    assert steps.apply(" \u3000\n") == ""


def test_jieba_is_silent_and_trusts_no_cache() -> None:
    code = """
import sys, tempfile
tempfile.gettempdir = lambda: sys.exit('looked for a cache')
from lightconv.data.config import SideConfig
from lightconv.data.words import Steps
Steps(SideConfig(lang='zh', tokenize='jieba')).apply('我来到北京')
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_long_texts_keep_their_first_words() -> None:
    for most, text, kept in (
        (2, "a b c", "a b"),
        (2, " a  b  c ", " a  b"),
        (3, "a b c ", "a b c "),
        (3, "a b", "a b"),
        (1, "", ""),
        (1, "word", "word"),
        (1, "ab c", "ab"),
        (400, "w " * 401, ("w " * 400).rstrip()),
    ):
        assert Steps(SideConfig(lang="en", truncate=most)).apply(text) == kept
    assert Steps(replace(MOSES, truncate=3)).apply("Hello, world!") == "Hello , world"


@pytest.mark.parametrize(
    "side, package, extra",
    [
        (MOSES, "sacremoses", "moses"),
        (SideConfig(lang="en", normalize="moses"), "sacremoses", "moses"),
        (SideConfig(lang="zh", tokenize="jieba"), "jieba", "chinese"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, side: SideConfig, package: str, extra: str
) -> None:
    from lightconv.data import words

    config = PipelineConfig(sides=(side,), subword=WordsConfig())
    check_packages(config)
    monkeypatch.setitem(sys.modules, package, None)
    words._jieba.cache_clear()
    message = rf"needs the package {package}, .*pip install 'lightconv\[{extra}\]'"
    with pytest.raises(ValueError, match=message):
        check_packages(config)
    with pytest.raises(ValueError, match=message):
        Steps(side).apply("a")


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("corpus", ""),
        ("corpus", "my corpus"),
        ("metric", " bleu"),
        ("source_lang", ""),
        ("target_lang", "d\te"),
    ],
)
def test_names_of_a_task_are_words(field: str, name: str) -> None:
    fields = {"kind": "translation", "corpus": "toy", "metric": "bleu"}
    assert TaskConfig(**fields).source_lang is None
    with pytest.raises(ValueError, match=f"^{field}=.* must be a word without spaces$"):
        TaskConfig(**{**fields, field: name})
