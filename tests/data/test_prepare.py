"""Preparation: what is stored is what was read, whatever happens on the way."""

import itertools
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lightconv.data import work
from lightconv.data.config import (
    BPEConfig,
    BytesConfig,
    FilterConfig,
    PipelineConfig,
    SideConfig,
    TaskConfig,
    WordsConfig,
)
from lightconv.data.corpora.synthetic import Settings, make
from lightconv.data.corpus import Corpus, Example
from lightconv.data.origin import PrepareConfig
from lightconv.data.prepare import prepare
from lightconv.data.prepared import Prepared
from lightconv.data.store import Store
from tests.data.samples import make_lines, make_words

TASK = TaskConfig(kind="translation", corpus="own", source_lang="de", target_lang="en", metric="x")
LM_TASK = TaskConfig(kind="language_model", corpus="own", metric="perplexity")
SIDES = (SideConfig(lang="de"), SideConfig(lang="en"))
WORDS = PipelineConfig(sides=SIDES, subword=WordsConfig())
BYTES = PipelineConfig(sides=SIDES, subword=BytesConfig(vocab=300))


def corpus(
    train: Sequence[Example],
    valid: Sequence[Example] = (("a b", "x"),),
    pipeline: PipelineConfig = WORDS,
    **fields: Any,
) -> Corpus:
    given: dict[str, Any] = {
        "task": TASK if len(pipeline.sides) == 2 else LM_TASK,
        "pipeline": pipeline,
        "splits": {"train": partial(iter, train), "valid": partial(iter, valid)},
    }
    return Corpus(**given | fields)


def sentences(count: int, seed: int = 0) -> list[Example]:
    words = make_words(200, seed)
    return list(
        zip(make_lines(count, words, seed), make_lines(count, words, seed + 1), strict=True)
    )


def ids(store: Store) -> list[tuple[list[int], ...]]:
    return [tuple(side.tolist() for side in store[i]) for i in range(len(store))]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


class Notes:
    """A display that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.shown: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def show(self, what: str, done: int, total: int | None = None) -> None:
        self.shown.append(what)

    def end(self) -> None:
        pass


# --- What is stored


def test_words_get_their_ids_by_hand(tmp_path: Path) -> None:
    train = [("b a b", "x"), ("b a c", "y y"), ("a b", "y")]
    found = prepare(corpus(train, [("c b z", "x y q")]), tmp_path / "out")
    # b 4 times, a 3 times, c once; y 3 times, x once; four special tokens, <unk> is 3.
    assert ids(found.store("train")) == [
        ([4, 5, 4], [5]),
        ([4, 5, 6], [4, 4]),
        ([5, 4], [4]),
    ]
    assert ids(found.store("valid")) == [([6, 4, 3], [5, 4, 3])]
    assert found.vocab_sizes == (7, 6)
    assert found.sides == ("source", "target")
    assert found.splits == ("train", "valid")
    assert found.task == TASK
    assert found.references("valid") == ["x y q"]
    assert list(found.texts("valid", "source")) == ["c b z"]
    assert (tmp_path / "out" / "vocab.source.txt").read_text().split()[4:] == ["b", "a", "c"]
    found.verify()
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "nothing else is left"
    assert not list((tmp_path / "out").glob("train.*.txt")), "its text is where it came from"


def test_any_text_comes_back_from_bytes(tmp_path: Path) -> None:
    odd = ["漢字 😀", "tab\tand\u2028line", " two  spaces ", "a\rb", "\ufeffmark", "ﬁ e\u0301"]
    train = [(text, text[::-1]) for text in odd] + sentences(50)
    found = prepare(corpus(train, train, BYTES), tmp_path / "out")
    for split in ("train", "valid"):
        texts = [
            tuple(found.pipeline.decode(side, each) for side, each in enumerate(example))
            for example in ids(found.store(split))
        ]
        assert texts == train
    assert found.references("valid") == [target for _, target in train]


def test_a_newline_in_a_text_cannot_shift_lines(tmp_path: Path) -> None:
    found = prepare(corpus([("a", "b")], [("one\ntwo", "x"), ("three", "y\n")]), tmp_path / "out")
    assert list(found.texts("valid", "source")) == ["one two", "three"]
    assert found.references("valid") == ["x", "y "]
    assert len(found.store("valid")) == 2


def test_language_modelling_keeps_empty_lines_where_it_is_told_to(tmp_path: Path) -> None:
    pipeline = PipelineConfig(sides=SIDES[:1], subword=WordsConfig())
    text = [("a b",), ("",), ("a",)]
    kept = prepare(corpus(text, text, pipeline, filters=FilterConfig(min_len=0)), tmp_path / "kept")
    assert ids(kept.store("train")) == ids(kept.store("valid")) == [([4, 5],), ([],), ([4],)]
    assert kept.vocab_sizes == (6, 6)
    assert kept.sides == ("text",)
    assert kept.references("valid") == ["a b", "", "a"]
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
    learned = prepare(
        given,
        tmp_path / "learned",
        config=PrepareConfig(
            pipeline=replace(pipeline, subword=BPEConfig(merges=5)), filters=FilterConfig()
        ),
    )
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
    train = [("ab ba", "x"), ("ab cd ef", "x")]
    pipeline = PipelineConfig(sides=SIDES, subword=BPEConfig(merges=1))
    by_words = FilterConfig(unit="words", max_len=2)
    found = prepare(corpus(train, train, pipeline, filters=by_words), tmp_path / "words")
    assert [len(source) for source, _ in ids(found.store("train"))] == [4], "of two words"
    assert set("".join(found.pipeline.vocabularies().source.tokens[4:])) == set("ab@")
    by_tokens = FilterConfig(unit="tokens", max_len=4)
    found = prepare(corpus(train, train, pipeline, filters=by_tokens), tmp_path / "tokens")
    assert len(found.store("train")) == 1, "of five tokens is too long"
    assert {"c@@", "e@@"} <= set(found.pipeline.vocabularies().source.tokens)


@pytest.mark.parametrize(
    ("train", "filters", "message"),
    [
        ([("", "x"), ("a", "")], FilterConfig(), r"2 examples read, dropped: empty 2\. Change"),
        (
            [("a a", "x"), ("", "x")],
            FilterConfig(max_len=1),
            r"nothing is left of split 'train' .*: 2 examples read, dropped: empty 1, long 1",
        ),
        ([("a", "x")], FilterConfig(min_len=2, unit="words"), r"dropped: short 1"),
        ([], FilterConfig(), "split 'train' has no examples"),
    ],
)
def test_nothing_left(
    tmp_path: Path, train: list[Example], filters: FilterConfig, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        prepare(corpus(train, filters=filters), tmp_path / "out")
    assert list(tmp_path.iterdir()) == [], "nothing is left on the disk either"


def test_validation_without_examples(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="split 'valid' has no examples"):
        prepare(corpus([("a", "b")], []), tmp_path / "out")


def test_examples_must_have_their_sides(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="an example has 1 texts, expected source and target"):
        prepare(corpus([("a",)]), tmp_path / "out")
    with pytest.raises(ValueError, match=r"pipeline\.sides has 1, expected 2 for own"):
        config = PrepareConfig(pipeline=replace(WORDS, sides=SIDES[:1]), filters=FilterConfig())
        prepare(corpus([("a", "b")]), tmp_path / "out", config=config)


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


# --- Stopped and started again


def two_splits(calls: list[str], broken: str | None = None) -> Corpus:
    """A corpus that says which split is read, and may fail in the middle of one."""

    def read(split: str, examples: list[Example]) -> Iterator[Example]:
        calls.append(split)
        yield from examples[:-1]
        if split == broken:
            raise OSError("the disk is gone")
        yield examples[-1]

    examples = {"train": sentences(1200), "valid": sentences(20, 5), "test": sentences(20, 9)}
    splits = {split: partial(read, split, each) for split, each in examples.items()}
    return corpus([], pipeline=BYTES, splits=splits, digests={"file": "0" * 64})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a preparation leaves that nobody stops."""
    out = tmp_path_factory.mktemp("whole") / "out"
    prepare(two_splits([]), out)
    return contents(out)


@pytest.mark.parametrize("stop", range(8))
def test_a_restart_goes_on_after_every_stage(
    tmp_path: Path, whole: dict[str, bytes], stop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, done = tmp_path / "out", []
    finish = work.Work.finish

    def finish_and_die(self: work.Work, stage: str, found: Any) -> None:
        if len(done) == stop:
            raise KeyboardInterrupt
        finish(self, stage, found)
        done.append(stage)

    with monkeypatch.context() as patched:
        patched.setattr(work.Work, "finish", finish_and_die)
        if stop == 7:  # all stages are done, but the name
            patched.setattr(work.Work, "publish", lambda self: (_ for _ in ()).throw(OSError()))
        with pytest.raises(OSError if stop == 7 else KeyboardInterrupt):
            prepare(two_splits([]), out)
    assert not out.exists()
    calls: list[str] = []
    notes = Notes()
    prepare(two_splits(calls), out, display=notes)
    assert contents(out) == whole
    texts = ["text of train", "text of valid", "text of test"]
    stages = [*texts, "vocabulary", "ids of train", "ids of valid", "ids of test"]
    assert done == stages[:stop]
    assert calls == [name.removeprefix("text of ") for name in texts[stop:]]
    assert notes.notes == ([f"going on after: {', '.join(done)}"] if done else [])
    assert list(tmp_path.iterdir()) == [out]


def test_a_stage_that_broke_is_done_again(tmp_path: Path, whole: dict[str, bytes]) -> None:
    out = tmp_path / "out"
    with pytest.raises(OSError, match="the disk is gone"):
        prepare(two_splits([], broken="valid"), out)
    calls: list[str] = []
    prepare(two_splits(calls), out)
    assert calls == ["valid", "test"]
    assert contents(out) == whole


def test_other_settings_or_inputs_start_anew(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(OSError, match="the disk is gone"):
        prepare(two_splits([], broken="valid"), out)
    given = two_splits(calls := [])
    config = PrepareConfig(
        pipeline=replace(BYTES, subword=BytesConfig(vocab=290)), filters=FilterConfig()
    )
    notes = Notes()
    found = prepare(replace(given, digests={"file": "1" * 64}), out, config=config, display=notes)
    assert calls == ["train", "valid", "test"]
    assert found.vocab_sizes == (290, 290)
    (note,) = notes.notes
    assert note.startswith("begun before with other settings or inputs, starting anew: ")
    assert "pipeline.subword.vocab: 300 -> 290" in note and "inputs.file" in note


def test_two_processes_give_what_one_gives(
    tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightconv.data.prepare.WORTH_PROCESSES", 0)
    given = two_splits([])
    prepare(given, tmp_path / "out", processes=2)
    assert contents(tmp_path / "out") == whole


def test_two_at_a_time_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def read() -> Iterator[Example]:
        with pytest.raises(ValueError, match=r"another process prepares .*out\. Wait"):
            prepare(corpus([("a", "b")]), out)
        yield ("a", "b")

    prepare(corpus([], splits={"train": read, "valid": partial(iter, [("a", "b")])}), out)
    assert out.exists()


def test_killed_at_any_time(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = (
        "import sys; from lightconv.data.corpora.synthetic import Settings, make\n"
        "from lightconv.data.prepare import prepare\n"
        "prepare(make('synthetic-translation', Settings(train=3000)), sys.argv[1], processes=1)"
    )
    draw = random.Random(1)
    for _ in range(5):
        process = subprocess.Popen([sys.executable, "-c", code, str(out)])
        time.sleep(draw.uniform(0.2, 0.9))
        process.send_signal(signal.SIGKILL)
        process.wait()
    if not out.exists():
        subprocess.run([sys.executable, "-c", code, str(out)], check=True)
    again = prepare(make("synthetic-translation", Settings(train=3000)), tmp_path / "again")
    assert contents(out) == contents(again.folder)


# --- The output


def test_what_exists_is_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(corpus([("a", "b")]), out)
    with pytest.raises(ValueError, match=r"out exists\. Choose another folder, or say --overwrite"):
        prepare(corpus([("a", "b")]), out)
    found = prepare(corpus([("c c d", "b b")]), out, overwrite=True)
    # With the words of this text, not with those of the one before it.
    assert ids(found.store("train")) == [([4, 4, 5], [4, 4])]
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_is_not_ours_is_never_replaced(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("mine")
    elif kind == "folder":
        out.mkdir()
        (out / "thesis.tex").write_text("mine")
    else:
        out.symlink_to(tmp_path)
    with pytest.raises(ValueError, match="is no prepared folder, so it is not overwritten"):
        prepare(corpus([("a", "b")]), out, overwrite=True)


def test_an_empty_folder_may_be_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    prepare(corpus([("a", "b")]), tmp_path / "out", overwrite=True)


def test_until_the_new_folder_is_there_the_old_one_is(tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(corpus([("a", "b")]), out)
    old = contents(out)
    with pytest.raises(OSError, match="the disk is gone"):
        prepare(two_splits([], broken="test"), out, overwrite=True)
    assert contents(out) == old
    # Killed between the two renames: the old one is put back by whoever comes next.
    hidden = tmp_path / ".out.prepare"
    out.rename(hidden / "replaced")
    with pytest.raises(ValueError, match=r"'train' has no examples"):
        prepare(corpus([]), out)
    assert contents(out) == old


def test_long_texts_go_to_processes_a_few_at_a_time() -> None:
    from lightconv.data.extract import MOST_CHARACTERS, pieces

    long = "x" * (MOST_CHARACTERS // 2)
    sizes = [len(piece) for piece in pieces([(long, "y")] * 7)]
    assert sizes == [2, 2, 2, 1]
    assert [len(piece) for piece in pieces([("x", "y")] * 2500)] == [1000, 1000, 500]


def test_open_gives_what_prepare_gave(tmp_path: Path) -> None:
    made = prepare(corpus([("a", "b")]), tmp_path / "out")
    found = Prepared.open(tmp_path / "out")
    assert found.contents == made.contents
    assert found.pipeline.config == WORDS


MEASURED = """
import resource, sys
from pathlib import Path
from lightconv.data.corpora.own import own_corpus
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
        with (tmp_path / f"{times}").open("w") as file:
            for _ in range(times):
                file.write(text)
        arguments = (tmp_path / f"{times}", tmp_path / "valid", tmp_path / f"out{times}")
        command = [sys.executable, "-c", MEASURED, *map(str, arguments)]
        peaks.append(int(subprocess.run(command, capture_output=True, check=True).stdout))
    assert peaks[1] < peaks[0] + 20
