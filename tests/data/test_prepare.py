"""Preparation: what is stored is what was read."""

import itertools
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightconv.data.config import (
    BPEConfig,
    FilterConfig,
    PipelineConfig,
    PrepareConfig,
    WordsConfig,
)
from lightconv.data.prepare import prepare
from lightconv.data.prepared import Prepared
from lightconv.data.subword import MOST_CHARACTERS, pieces
from lightconv.data.text import Example
from tests.data.examples import (
    BYTES,
    SIDES,
    TASK,
    WORDS,
    corpus,
    ids,
    make_lines,
    make_words,
    sentences,
)

# --- What is stored


def test_words_get_their_ids_by_hand(tmp_path: Path) -> None:
    train = [("b a b", "x"), ("b a c", "y y"), ("a b", "y")]
    found = prepare(corpus(train, [("c b z", "x y q")]), tmp_path / "out")
    # b 4 times, a 3 times, c once; y 3 times, x once; four special tokens, <unk> is 3.
    assert ids(found.store("train")) == [([4, 5, 4], [5]), ([4, 5, 6], [4, 4]), ([5, 4], [4])]
    assert ids(found.store("valid")) == [([6, 4, 3], [5, 4, 3])]
    assert found.vocab_sizes == (7, 6)
    assert found.sides == ("source", "target")
    assert found.splits == ("train", "valid")
    assert found.task == TASK
    assert found.references("valid") == ["x y q"]
    assert list(found.texts("valid", "source")) == ["c b z"]
    assert (tmp_path / "out" / "vocab.source.txt").read_text().split()[4:] == ["b", "a", "c"]
    assert Prepared.open(found.folder).contents == found.contents
    assert found.pipeline.config == WORDS
    found.verify()
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "nothing else is left"
    assert not list((tmp_path / "out").glob("train.*.txt")), "its text is where it came from"


def test_any_text_comes_back_from_bytes(tmp_path: Path) -> None:
    odd = ["漢字 😀", "tab\tand\u2028line", " two  spaces ", "a\rb", "\ufeffmark", "ﬁ e\u0301"]
    odd += [
        "</s> <s> <unk> <pad>@@ ",
        "\0\x7f\xa0\xad",
        "x" + " " * 70,
        "👩\u200d👧\ue000\U0010ffff",
    ]
    train = [(text, text[::-1]) for text in odd] + sentences(50)
    # A newline in a text cannot shift lines.
    found = prepare(corpus(train, [*train, ("one\ntwo", "y\n")], BYTES), tmp_path / "out")
    for split, expected in (("train", train), ("valid", [*train, ("one two", "y ")])):
        texts = [
            tuple(found.pipeline.decode(side, each) for side, each in enumerate(example))
            for example in ids(found.store(split))
        ]
        assert texts == expected
        assert min(min(side) for example in ids(found.store(split)) for side in example) >= 4
    for place, side in enumerate(found.sides):
        assert list(found.texts("valid", side)) == [example[place] for example in expected]


def test_language_modelling_keeps_empty_lines_where_it_is_told_to(tmp_path: Path) -> None:
    pipeline = PipelineConfig(sides=SIDES[:1], subword=WordsConfig())
    text = [("a b",), ("",), ("a",)]
    kept = prepare(corpus(text, text, pipeline, filters=FilterConfig(min_len=0)), tmp_path / "kept")
    assert ids(kept.store("train")) == ids(kept.store("valid")) == [([4, 5],), ([],), ([4],)]
    assert kept.vocab_sizes == (6, 6)
    assert kept.sides == ("text",)
    assert kept.references("valid") == ["a b", "", "a"]
    with pytest.raises(ValueError, match="has the sides text, no 'source'"):
        list(kept.texts("valid", "source"))
    dropped = prepare(corpus(text, text, pipeline), tmp_path / "dropped")
    assert len(dropped.store("train")) == 2
    assert len(dropped.store("valid")) == 3
    assert dropped.statistics()["splits"]["train"]["dropped"] == {"empty": 1}


def test_steps_make_words_once(tmp_path: Path) -> None:
    sides = tuple(replace(side, tokenize="moses", lowercase=True) for side in SIDES)
    pipeline = PipelineConfig(sides=sides, subword=WordsConfig())
    train = [("Das ist's, nicht?", "That's it, isn't it?")]
    found = prepare(corpus(train, train, pipeline), tmp_path / "out")
    words = set(found.pipeline.vocabularies().target.tokens[4:])
    assert words == {"that", "&apos;s", "it", ",", "isn", "&apos;t", "?"}
    assert found.references("valid") == ["That's it, isn't it?"], "as it was given"
    assert found.pipeline.encode(1, ["That's it, isn't it?"]) == [ids(found.store("train"))[0][1]]


def test_what_owners_tokenised_is_not_tokenised_again(tmp_path: Path) -> None:
    sides = tuple(replace(side, tokenize="moses", truncate=3) for side in SIDES)
    codes = tmp_path / "codes"
    codes.write_text("#version: 0.2\nc a</w>\n")
    pipeline = PipelineConfig(sides=sides, subword=BPEConfig(merges=99, share_vocab=True))
    text = ("ab &apos;s ca b,c", "ab")
    given = corpus([text], [text], pipeline, tokenized=True, codes=codes)
    found = prepare(given, tmp_path / "out")
    assert found.tokenized
    tokens = found.pipeline.vocabularies().source.decode(ids(found.store("train"))[0][0])
    # Of four words three, with the one merge of the file.
    assert tokens == ["a@@", "b", *(f"{letter}@@" for letter in "&apos;"), "s", "ca"]
    assert found.pipeline.config.sides == sides, "for text that comes later"
    assert found.origin.codes is not None
    other = PrepareConfig(
        pipeline=replace(pipeline, subword=BPEConfig(merges=5)), filters=FilterConfig()
    )
    learned = prepare(given, tmp_path / "learned", config=other)
    assert learned.origin.codes is None, "other subwords are learned"


# --- What is left out

FILTERED = [("a", "b"), ("", "b"), ("a", " "), ("a a a a", "b"), ("a " * 9, "b " * 9), ("a a", "b")]


def test_drops_are_counted_by_reason_in_training_only(tmp_path: Path) -> None:
    filters = FilterConfig(max_len=8, max_ratio=3.0)
    found = prepare(corpus(FILTERED, FILTERED, filters=filters), tmp_path / "out")
    splits = found.statistics()["splits"]
    assert splits["train"]["read"] == 6
    assert splits["train"]["kept"] == len(found.store("train")) == 2
    assert splits["train"]["dropped"] == {"empty": 2, "long": 1, "ratio": 1}
    assert splits["valid"]["read"] == splits["valid"]["kept"] == len(found.store("valid")) == 6
    assert splits["valid"]["dropped"] == {}
    assert splits["valid"]["sides"]["source"]["tokens"] == 1 + 0 + 1 + 4 + 9 + 2


def test_words_are_counted_before_anything_is_learned(tmp_path: Path) -> None:
    train = [("ab ba", "xy z"), ("ab cd ef", "xy z")]
    pipeline = PipelineConfig(sides=SIDES, subword=BPEConfig(merges=1))
    by_words = FilterConfig(unit="words", max_len=2)
    found = prepare(corpus(train, train, pipeline, filters=by_words), tmp_path / "words")
    assert [len(source) for source, _ in ids(found.store("train"))] == [4], "of two words"
    assert set("".join(found.pipeline.vocabularies().source.tokens[4:])) == set("ab@")
    by_tokens = FilterConfig(unit="tokens", min_len=2, max_len=4)
    found = prepare(corpus(train, train, pipeline, filters=by_tokens), tmp_path / "tokens")
    assert len(found.store("train")) == 1, "of five tokens is too long"
    assert {"c@@", "e@@"} <= set(found.pipeline.vocabularies().source.tokens)


ONE_SIDE = PrepareConfig(pipeline=replace(WORDS, sides=SIDES[:1]), filters=FilterConfig())
PAIR = [("a", "x")]


@pytest.mark.parametrize(
    ("train", "options", "message"),
    [
        ([("", "x"), ("a", "")], {}, r"2 examples read, dropped: empty 2\. Change"),
        (
            [("a a", "x"), ("", "x")],
            {"filters": FilterConfig(max_len=1)},
            r"nothing is left of split 'train' .*: 2 examples read, dropped: empty 1, long 1",
        ),
        (PAIR, {"filters": FilterConfig(min_len=2, unit="words")}, r"dropped: short 1"),
        ([], {}, "split 'train' has no examples"),
        (PAIR, {"valid": []}, "split 'valid' has no examples"),
        ([("a",)], {}, "an example has 1 texts, expected 2"),
        (PAIR, {"config": ONE_SIDE}, r"pipeline\.sides has 1, expected 2 for own"),
    ],
)
def test_unusable_examples(
    tmp_path: Path, train: list[Example], options: dict[str, Any], message: str
) -> None:
    config = options.get("config")
    options = {name: value for name, value in options.items() if name != "config"}
    with pytest.raises(ValueError, match=message):
        prepare(corpus(train, **options), tmp_path / "out", config=config)
    assert list(tmp_path.iterdir()) == [], "nothing is left on the disk either"


# --- Statistics


def test_statistics_are_those_of_the_ids(tmp_path: Path) -> None:
    found = prepare(corpus(sentences(300), sentences(40, 7)), tmp_path / "out")
    for split, about in found.statistics()["splits"].items():
        for side, name in enumerate(found.sides):
            rows = [example[side] for example in ids(found.store(split))]
            described = about["sides"][name]
            assert described["tokens"] == sum(map(len, rows))
            assert described["unknown"] == Counter(itertools.chain(*rows))[3]
            assert described["longest"] == max(map(len, rows))
            assert described["mean"] == pytest.approx(sum(map(len, rows)) / len(rows))
    assert found.statistics()["splits"]["valid"]["sides"]["source"]["unknown"] > 0


def test_long_texts_go_to_processes_a_few_at_a_time() -> None:
    long = "x" * (MOST_CHARACTERS // 2)
    sizes = [len(piece) for piece in pieces([(long, "y")] * 7)]
    assert sizes == [2, 2, 2, 1]
    assert [len(piece) for piece in pieces([("x", "y")] * 2500)] == [1000, 1000, 500]


MEASURED = """
import resource, sys
from pathlib import Path
from lightconv.corpora.own import own_corpus
from lightconv.data.prepare import prepare
corpus = own_corpus("language_model", train=Path(sys.argv[1]), valid=Path(sys.argv[2]))
prepare(corpus, sys.argv[3], processes=1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    """Megabytes for one, and for ten times as many lines of the same words."""
    text = "".join(f"{line}\n" for line in make_lines(50_000, make_words(20_000)))
    (tmp_path / "valid").write_text(text[:1000])
    peaks = []
    for times in (2, 20):
        (tmp_path / f"{times}").write_text(text * times)
        arguments = (tmp_path / f"{times}", tmp_path / "valid", tmp_path / f"out{times}")
        command = [sys.executable, "-c", MEASURED, *map(str, arguments)]
        peaks.append(int(subprocess.run(command, capture_output=True, check=True).stdout))
    assert peaks[1] < peaks[0] + 20
