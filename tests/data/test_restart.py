"""The work folder: preparation that is stopped, killed and started again, and its output."""

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lightconv.corpora.synthetic import Settings, make
from lightconv.data.config import BytesConfig, FilterConfig, PrepareConfig
from lightconv.data.prepare import Work, prepare
from lightconv.data.prepared import Origin
from lightconv.data.text import Corpus, Example
from tests.data.examples import BYTES, LM_TASK, WORDS, Notes, contents, corpus, ids, sentences

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
    do = Work.do

    def do_and_die(self: Work, stage: str, function: Any) -> None:
        if len(done) == stop:
            function()
            raise KeyboardInterrupt
        do(self, stage, function)
        done.append(stage)

    with monkeypatch.context() as patched:
        patched.setattr(Work, "do", do_and_die)
        if stop == 7:  # all stages are done, but the name
            patched.setattr(Work, "publish", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            prepare(two_splits([]), out)
    assert not out.exists()
    # As a process leaves it that is killed while it writes a file.
    (tmp_path / ".out.prepare" / "result" / ".manifest.json.0123abcd.new").touch()
    calls: list[str] = []
    notes = Notes()
    prepare(two_splits(calls), out, display=notes)
    assert contents(out) == whole
    texts = ["text of train", "text of valid", "text of test"]
    stages = [*texts, "vocabulary", "ids of train", "ids of valid", "ids of test"]
    assert done == stages[:stop]
    assert calls == [name.removeprefix("text of ") for name in texts[stop:]]
    assert notes.notes == ([f"resuming after: {', '.join(done)}"] if done else [])
    assert list(tmp_path.iterdir()) == [out]


def test_a_stage_that_broke_is_done_again(tmp_path: Path, whole: dict[str, bytes]) -> None:
    out, notes = tmp_path / "out", Notes()
    with pytest.raises(OSError, match="the disk is gone"):
        prepare(two_splits([], broken="valid"), out)
    prepare(two_splits(calls := []), out)
    assert calls == ["valid", "test"]
    assert contents(out) == whole
    # Other settings or inputs start anew.
    with pytest.raises(OSError, match="the disk is gone"):
        prepare(two_splits([], broken="valid"), out, overwrite=True)
    given = replace(two_splits(calls := []), digests={"file": "1" * 64})
    small = replace(BYTES, subword=BytesConfig(vocab=290))
    config = PrepareConfig(pipeline=small, filters=FilterConfig())
    found = prepare(given, out, config=config, display=notes, overwrite=True)
    assert calls == ["train", "valid", "test"]
    assert found.vocab_sizes == (290, 290)
    (note,) = notes.notes
    assert note.startswith("begun with other settings or inputs, starting anew: ")
    assert "pipeline.subword.vocab: 300 -> 290" in note and "inputs.file" in note


def test_two_processes_give_what_one_gives(
    tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightconv.data.prepare.WORTH_PROCESSES", 0)
    prepare(two_splits([]), tmp_path / "out", processes=2)
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
        "import sys; from lightconv.corpora.synthetic import Settings, make\n"
        "from lightconv.data.prepare import prepare\n"
        "prepare(make('synthetic-translation', Settings(train=3000)), sys.argv[1], processes=1)"
    )
    draw, command = random.Random(1), [sys.executable, "-c", code, str(out)]
    for _ in range(5):
        process = subprocess.Popen(command)
        time.sleep(draw.uniform(0.2, 0.9))
        process.kill()
        process.wait()
    if not out.exists():
        subprocess.run(command, check=True)
    again = prepare(make("synthetic-translation", Settings(train=3000)), tmp_path / "again")
    assert contents(out) == contents(again.folder)


# --- The output


def test_what_exists_is_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()  # empty: it may be filled
    prepare(corpus([("a", "b")]), out, overwrite=True)
    with pytest.raises(ValueError, match=r"out exists\. Choose another folder, or use --overwrite"):
        prepare(corpus([("a", "b")]), out)
    found = prepare(corpus([("c c d", "b b")]), out, overwrite=True)
    # With the words of this text, not with those of the one before it.
    assert ids(found.store("train")) == [([4, 4, 5], [4, 4])]
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    "occupy",
    [
        lambda out: out.write_text("mine"),
        lambda out: (out.mkdir(), (out / "thesis.tex").touch()),
        lambda out: out.symlink_to(out.parent),
    ],
    ids=["file", "folder", "link"],
)
def test_what_is_not_ours_is_never_replaced(
    tmp_path: Path, occupy: Callable[[Path], object]
) -> None:
    occupy(tmp_path / "out")
    with pytest.raises(ValueError, match="is not a prepared folder, so it is not overwritten"):
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


# --- The work folder itself

ORIGIN = Origin(task=LM_TASK, pipeline=WORDS, filters=FilterConfig(), inputs={"a/b.txt": "0" * 64})


@contextmanager
def opened(out: Path, origin: Origin = ORIGIN) -> Iterator[Work]:
    work = Work(out, origin)
    with work.opened():
        yield work


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """With a work folder beside it that has one stage done."""
    out = tmp_path / "deep" / "out"
    with opened(out) as work:
        (work.folder / "scratch").write_text("x")
        (work.result / "file").write_text("x")
        work.do("first", lambda: {"count": 3})
        work.do("first", lambda: {"count": 4})  # it is finished
        assert work.stages == {"first": {"count": 3}}
    return out


@pytest.mark.parametrize("record", ["{", "[]", None, '{"origin": {}, "stages": {"first": {}}}'])
def test_a_record_that_cannot_be_read_starts_anew(out: Path, record: str | None) -> None:
    with opened(out) as work:
        assert work.stages == {"first": {"count": 3}}
    path = work.folder / "state.json"
    path.unlink()
    if record is not None:
        path.write_text(record)
    with opened(out) as work:
        assert work.stages == {}
        assert not (work.folder / "scratch").exists()


def test_a_mistake_leaves_nothing_a_failure_all(out: Path) -> None:
    with pytest.raises(OSError, match="full"), opened(out):
        raise OSError("full")
    with pytest.raises(ValueError, match="bad"), opened(out) as work:
        assert work.stages
        raise ValueError("bad")
    assert list(out.parent.iterdir()) == []
