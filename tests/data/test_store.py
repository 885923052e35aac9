"""A split on the disk: what is written is read, also after a process was killed."""

import os
import pickle
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightconv.data import Store, StoreWriter
from lightconv.data.layout import Header
from tests.data.stores import VOCAB, Sentence, sentences, write_pairs

PAIRS = [sentences(30, seed=1), sentences(30, seed=2, vocab=400)]
NAMES = [f"train.{side}{suffix}" for side in VOCAB for suffix in (".bin", ".idx")]


def contents(store: Store) -> list[list[Sentence]]:
    """All sentences, side by side, read one by one."""
    examples = [store[i] for i in range(len(store))]
    return [[example[side].tolist() for example in examples] for side in range(len(store.sides))]


@settings(max_examples=50, deadline=None)
@given(
    pairs=st.lists(st.tuples(*[st.lists(st.integers(0, 299), max_size=9)] * 2), max_size=40),
    size=st.integers(1, 41),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[Sentence, Sentence]], size: int
) -> None:
    folder = tmp_path_factory.mktemp("store")
    with StoreWriter(folder, "train", VOCAB) as writer:
        for begin in range(0, len(pairs), size):
            part = pairs[begin : begin + size]
            # Lists and arrays alike.
            writer.append([source for source, _ in part], [np.array(t, int) for _, t in part])
    store = Store.open(folder, "train")
    assert contents(store) == [[list(pair[side]) for pair in pairs] for side in (0, 1)]
    assert len(store) == writer.examples == len(pairs)
    assert store.sides == ("source", "target")
    assert store.vocab == (300, 400)
    assert store.tokens == tuple(sum(len(pair[side]) for pair in pairs) for side in (0, 1))
    for side, name in enumerate(VOCAB):
        assert store.lengths(name).tolist() == [len(pair[side]) for pair in pairs]
    assert store.digest == writer.digest
    store.verify()


@pytest.mark.parametrize(("vocab", "dtype"), [(65536, "<u2"), (65537, "<u4")])
def test_the_files_are_what_the_layout_says(tmp_path: Path, vocab: int, dtype: str) -> None:
    with StoreWriter(tmp_path, "valid", {"text": vocab}) as writer:
        writer.append([[7, vocab - 1], [], [8]])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["valid.text.bin", "valid.text.idx"]
    tokens = np.fromfile(tmp_path / "valid.text.bin", dtype=dtype, offset=128)
    assert tokens.tolist() == [7, vocab - 1, 8]
    offsets = np.fromfile(tmp_path / "valid.text.idx", dtype="<u8", offset=128)
    assert offsets.tolist() == [0, 2, 2, 3]
    assert Store.open(tmp_path, "valid")[0][0].dtype == np.dtype(dtype)


def test_the_same_examples_are_the_same_files(tmp_path: Path) -> None:
    whole = write_pairs(tmp_path / "whole", PAIRS)
    with StoreWriter(tmp_path / "parts", "train", VOCAB) as writer:
        for begin in (0, 7, 14, 21, 28):
            writer.append(*(side[begin : begin + 7] for side in PAIRS))
    for name in NAMES:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()
    other = write_pairs(tmp_path / "other", [PAIRS[0], [*PAIRS[1][:-1], [5]]])
    assert other.digest != whole.digest == writer.digest


def test_an_example_by_its_number(tmp_path: Path) -> None:
    store = write_pairs(tmp_path, PAIRS)
    assert [side.tolist() for side in store[-1]] == [side[-1] for side in PAIRS]
    assert not store[3][0].flags.owndata
    for index in (30, -31):
        with pytest.raises(IndexError):
            store[index]
    with pytest.raises(ValueError, match="has the sides source, target, no 'text'"):
        store.lengths("text")
    again = pickle.loads(pickle.dumps(store))
    assert contents(again) == PAIRS


@pytest.mark.parametrize(
    ("sides", "match"),
    [
        (([[5], [6, 300]], [[1], [2]]), r"id 300 \(source of example 31\), expected 0 to 299"),
        (([[5]], [[-1]]), r"id -1 \(target of example 30\), expected 0 to 399"),
        (([[5]], [[1], [2]]), "1 and 2 sentences, expected as many for each"),
        (([[5]],), "1 sentences, expected as many for each of source, target"),
    ],
)
def test_what_cannot_be_stored_leaves_nothing(
    tmp_path: Path, sides: tuple[list[Sentence], ...], match: str
) -> None:
    writer = StoreWriter(tmp_path, "train", VOCAB)
    writer.append(*PAIRS)
    with pytest.raises(ValueError, match=match), writer:
        writer.append(*sides)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("split", "vocab", "match"),
    [
        ("train", {"source": 9}, "sides source, expected source and target, or text"),
        ("train", {"target": 9, "source": 9}, "sides target, source, expected"),
        ("train", {}, "sides none, expected"),
        ("../train", VOCAB, "split='../train' must be a plain word"),
        ("", VOCAB, "split='' must"),
        ("train", {"text": 0}, "vocabulary of 0 ids"),
    ],
)
def test_nonsense_is_not_written(
    tmp_path: Path, split: str, vocab: dict[str, int], match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        StoreWriter(tmp_path / "new", split, vocab)
    assert not (tmp_path / "new").exists()


def test_memory_does_not_grow_with_what_is_written(tmp_path: Path) -> None:
    before = resident()
    with StoreWriter(tmp_path, "train", {"text": 70000}) as writer:
        ids = [np.arange(50000)] * 4
        for _ in range(100):
            writer.append(ids)
    assert (tmp_path / "train.text.bin").stat().st_size > 80e6
    assert resident() - before < 40e6


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_opening_costs_nothing(tmp_path: Path) -> None:
    examples, tokens = 36_000_000, 1_000_000_000
    for side in VOCAB:
        for suffix, item in ((".bin", 2), (".idx", 8)):
            header = Header(
                suffix=suffix,
                item=item,
                examples=examples,
                tokens=tokens,
                vocab=32768,
                payload=bytes(32),
                split=bytes(32),
            )
            with (tmp_path / f"train.{side}{suffix}").open("wb") as file:
                file.write(header.pack())
                file.truncate(header.size)
                if suffix == ".idx":
                    file.seek(header.size - 8)
                    file.write(tokens.to_bytes(8, "little"))
    before = resident()
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        store = Store.open(tmp_path, "train")
        seconds.append(time.perf_counter() - began)
    assert (len(store), store.tokens) == (examples, (tokens, tokens))
    assert min(seconds) < 0.05
    assert resident() - before < 20e6


# What is left after a process was killed. A child here does nothing that a thread could hamper.
forks = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def kill_at(point: int, action: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Runs `action` in a child that dies before its `point`-th change of the disk."""
    child = os.fork()
    if child == 0:
        left = [point]

        def counted(function: Callable[..., object]) -> Callable[..., object]:
            def call(*args: object, **options: object) -> object:
                left[0] -= 1
                if left[0] < 0:
                    os._exit(9)
                return function(*args, **options)

            return call

        for name in ("fsync", "replace", "open", "truncate", "unlink"):
            monkeypatch.setattr(os, name, counted(getattr(os, name)))
        try:
            action()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@forks
@pytest.mark.parametrize("present", [False, True])
def test_a_writer_killed_anywhere_leaves_a_whole_split_or_none(
    tmp_path: Path, present: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = [side[:10] for side in PAIRS]
    outcomes = set()
    point = 0
    killed = True
    while killed:
        folder = tmp_path / str(point)
        if present:
            write_pairs(folder, old)
        killed = kill_at(point, lambda folder=folder: write_pairs(folder, PAIRS), monkeypatch)
        try:
            found = contents(Store.open(folder, "train"))
        except ValueError as error:
            assert "lightconv prepare" in str(error)
            outcomes.add("refused")
        else:
            assert found in ([old, PAIRS] if present else [PAIRS])
            outcomes.add("old" if found == old else "new")
        # And the next writer is not disturbed by what is left.
        assert contents(write_pairs(folder, PAIRS)) == PAIRS
        assert sorted(path.name for path in folder.iterdir()) == sorted(NAMES)
        point += 1
    assert point > 8
    assert outcomes == ({"old", "refused", "new"} if present else {"refused", "new"})


@forks
def test_kill_9_while_writing(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        with StoreWriter(tmp_path, "train", VOCAB) as writer:
            while True:
                writer.append(*PAIRS)
    time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with pytest.raises(ValueError, match="there is no split 'train'"):
        Store.open(tmp_path, "train")


def test_two_writers_do_not_mix(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, "train", VOCAB) as writer:
        with pytest.raises(ValueError, match="another process is writing it"):
            StoreWriter(tmp_path, "train", VOCAB)
        with StoreWriter(tmp_path, "valid", VOCAB) as other:
            other.append(*PAIRS)
        writer.append(*PAIRS)
    assert contents(Store.open(tmp_path, "train")) == PAIRS


def test_what_a_killed_writer_left_is_written_over(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / f".{name}.new").write_bytes(bytes(100_000))
    assert contents(write_pairs(tmp_path, PAIRS)) == PAIRS
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(NAMES)


def test_a_failed_writer_leaves_the_split_before(tmp_path: Path) -> None:
    write_pairs(tmp_path, PAIRS)
    with pytest.raises(KeyboardInterrupt), StoreWriter(tmp_path, "train", VOCAB) as writer:
        writer.append([[5]], [[6]])
        raise KeyboardInterrupt
    assert contents(Store.open(tmp_path, "train")) == PAIRS
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(NAMES)
