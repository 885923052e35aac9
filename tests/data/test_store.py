"""A split on disk: read as it was written, also after a kill; damaged files are refused."""

import os
import random
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightconv.data import Store, StoreWriter
from lightconv.data.store import HEADER_BYTES, Header
from tests.data.stores import VOCAB, Sentence, sentences, write_pairs, write_text

PAIRS = [sentences(30, seed=1), sentences(30, seed=2, vocab=400)]
NAMES = [f"train.{side}{suffix}" for side in VOCAB for suffix in (".bin", ".idx")]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


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
    store = Store(folder, "train")
    assert contents(store) == [[list(pair[side]) for pair in pairs] for side in (0, 1)]
    assert len(store) == writer.examples == len(pairs)
    assert store.sides == ("source", "target")
    assert store.vocab == (300, 400)
    assert store.tokens == tuple(sum(len(pair[side]) for pair in pairs) for side in (0, 1))
    for side, name in enumerate(VOCAB):
        assert store.column(name).lengths().tolist() == [len(pair[side]) for pair in pairs]
    assert store.digest == writer.digest
    store.verify()
    # The same files, written at once.
    write_pairs(folder / "whole", [[list(pair[side]) for pair in pairs] for side in (0, 1)])
    for name in NAMES:
        assert (folder / "whole" / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize(("vocab", "dtype"), [(65536, "<u2"), (65537, "<u4")])
def test_the_files_are_what_the_layout_says(tmp_path: Path, vocab: int, dtype: str) -> None:
    with StoreWriter(tmp_path, "valid", {"text": vocab}) as writer:
        writer.append([[7, vocab - 1], [], [8]])
    assert names(tmp_path) == ["valid.text.bin", "valid.text.idx"]
    tokens = np.fromfile(tmp_path / "valid.text.bin", dtype=dtype, offset=128)
    assert tokens.tolist() == [7, vocab - 1, 8]
    offsets = np.fromfile(tmp_path / "valid.text.idx", dtype="<u8", offset=128)
    assert offsets.tolist() == [0, 2, 2, 3]
    assert Store(tmp_path, "valid")[0][0].dtype == np.dtype(dtype)


def test_an_example_by_its_number(tmp_path: Path) -> None:
    store = write_pairs(tmp_path, PAIRS)
    assert [side.tolist() for side in store[-1]] == [side[-1] for side in PAIRS]
    assert not store[3][0].flags.owndata
    for index in (30, -31):
        with pytest.raises(IndexError):
            store[index]
    other = write_pairs(tmp_path / "other", [PAIRS[0], [*PAIRS[1][:-1], [5]]])
    assert other.digest != store.digest
    with pytest.raises(ValueError, match="has the sides source, target, no 'text'"):
        store.column("text")


@pytest.mark.parametrize(
    ("sides", "match"),
    [
        (([[5], [6, 300]], [[1], [2]]), r"id 300 \(source of example 31\), expected 0 to 299"),
        (([[5]], [[-1]]), r"id -1 \(target of example 30\), expected 0 to 399"),
        (([[5]], [[1], [2]]), "1 and 2 sentences, expected the same number for each"),
        (([[5]],), "1 sentences, expected the same number for each of source, target"),
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
            header = Header(suffix, item, examples, tokens, 32768, bytes(32), bytes(32))
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
        store = Store(tmp_path, "train")
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
            found = contents(Store(folder, "train"))
        except ValueError as error:
            assert "lightconv prepare" in str(error)
            outcomes.add("refused")
        else:
            assert found in ([old, PAIRS] if present else [PAIRS])
            outcomes.add("old" if found == old else "new")
        # And the next writer is not disturbed by what is left.
        assert contents(write_pairs(folder, PAIRS)) == PAIRS
        assert names(folder) == sorted(NAMES)
        point += 1
    assert point > 8
    assert outcomes == ({"old", "refused", "new"} if present else {"refused", "new"})


def test_two_writers_do_not_mix(tmp_path: Path) -> None:
    for name in NAMES:  # left by one that was killed
        (tmp_path / f".{name}.new").write_bytes(bytes(100_000))
    with StoreWriter(tmp_path, "train", VOCAB) as writer:
        with pytest.raises(ValueError, match="another process is writing it"):
            StoreWriter(tmp_path, "train", VOCAB)
        write_pairs(tmp_path, PAIRS, "valid")
        writer.append(*PAIRS)
    with pytest.raises(KeyboardInterrupt), StoreWriter(tmp_path, "train", VOCAB) as writer:
        writer.append([[5]], [[6]])
        raise KeyboardInterrupt
    for split in ("train", "valid"):
        assert contents(Store(tmp_path, split)) == PAIRS
    assert names(tmp_path) == sorted([*NAMES, *(name.replace("train", "valid") for name in NAMES)])


def repair(data: bytearray) -> bytearray:
    """Makes the header's CRC-32 right for whatever it says."""
    data[124:128] = zlib.crc32(bytes(data[:124])).to_bytes(4, "little")
    return data


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda data: data[:-1], r"\d+ bytes, expected \d+ as its header says"),
        (lambda data: data + b"\0", r"\d+ bytes, expected \d+ as its header says"),
        (lambda data: data[:100], "begins with b'LC[A-Z]*', expected .* a whole header"),
        (lambda data: b"", "begins with b''"),
        (lambda data: b"PK\3\4" + data[4:], r"begins with b'PK"),
        (lambda data: repair(data[:8] + b"\2" + data[9:]), "version 2 of the format, expected 1"),
        (lambda data: data[:40] + b"\xff" + data[41:], "does not match its checksum"),
        (lambda data: repair(data[:12] + b"\1" + data[13:]), "numbers of 1 bytes, expected"),
    ],
)
def test_damage_names_the_file_and_the_remedy(
    tmp_path: Path, name: str, change: Callable[[bytearray], bytes], match: str
) -> None:
    write_pairs(tmp_path, PAIRS)
    path = tmp_path / name
    path.write_bytes(change(bytearray(path.read_bytes())))
    with pytest.raises(ValueError, match=rf"{name}.*{match}.*Run `lightconv prepare` again"):
        Store(tmp_path, "train")


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_missing_or_from_elsewhere(tmp_path: Path, name: str) -> None:
    write_pairs(tmp_path, PAIRS)
    write_pairs(tmp_path / "other", [side[::-1] for side in PAIRS])
    path, other = tmp_path / name, tmp_path / "other" / name
    path.unlink()
    with pytest.raises(ValueError, match=rf"no {name}, expected .* `lightconv prepare`"):
        Store(tmp_path, "train")
    path.write_bytes(other.read_bytes())
    with pytest.raises(ValueError, match="of another preparation"):
        Store(tmp_path, "train")
    other.unlink()
    other.symlink_to(path)
    with pytest.raises(ValueError, match="leaves its folder"):
        Store(tmp_path / "other", "train")


@pytest.mark.parametrize(("folder", "what"), [("", "split 'test' in"), ("none", "folder")])
def test_no_split(tmp_path: Path, folder: str, what: str) -> None:
    write_pairs(tmp_path, PAIRS)
    with pytest.raises(ValueError, match=rf"there is no {what} .* `lightconv prepare`"):
        Store(tmp_path / folder, "test")


def overwrite(path: Path, data: bytes) -> None:
    """Like write_bytes, but a file that is never empty: some disks flush those that were."""
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    write_pairs(tmp_path, PAIRS)
    rng = random.Random(0)
    for _ in range(400):
        path = tmp_path / rng.choice(NAMES)
        intact = path.read_bytes()
        data = bytearray(intact)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        overwrite(path, data)
        with pytest.raises(ValueError, match=path.name):
            Store(tmp_path, "train").verify()
        overwrite(path, intact)
    Store(tmp_path, "train").verify()


def mutate(rng: random.Random, data: bytearray) -> bytearray:
    for _ in range(rng.randint(1, 3)):
        kind = rng.randrange(4)
        # Headers are a fraction of the bytes, but half of the changes.
        place = rng.randrange(rng.choice([min(HEADER_BYTES, len(data)), len(data)]) or 1)
        if kind == 0:
            data[place : place + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            value = rng.choice([0, 1, 2**16, 2**31, 2**32, 2**63, 2**64 - 1, rng.getrandbits(64)])
            place = place // 8 * 8
            data[place : place + 8] = value.to_bytes(8, "little")
        elif kind == 2:
            del data[place:]
        else:
            data[place:place] = rng.randbytes(rng.choice([1, 8]))
        if rng.random() < 0.7 and len(data) >= HEADER_BYTES:
            repair(data)
    return data


@pytest.mark.parametrize("count", [2000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_no_damage_is_worse_than_an_error(tmp_path: Path, count: int) -> None:
    write_pairs(tmp_path, [side[:6] for side in PAIRS])
    intact = {name: (tmp_path / name).read_bytes() for name in NAMES}
    rng = random.Random(0)
    refused = 0
    for _ in range(count):
        name = rng.choice(NAMES)
        overwrite(tmp_path / name, mutate(rng, bytearray(intact[name])))
        try:
            store = Store(tmp_path, "train")
            for index in range(len(store)):
                store[index]
            for side in store.sides:
                store.column(side).lengths()
                store.column(side).take(np.arange(len(store)))
            store.verify()
        except ValueError:
            refused += 1
        overwrite(tmp_path / name, intact[name])
    assert 0.9 * count < refused <= count


def write_offsets(folder: Path, offsets: list[int]) -> Store:
    """A text of sentences with ids 5 to 9, and these offsets."""
    write_text(folder, [[5, 6], [7], [], [8, 9]])
    path = folder / "train.text.idx"
    path.write_bytes(path.read_bytes()[:HEADER_BYTES] + np.array(offsets, "<u8").tobytes())
    return Store(folder, "train")


READS: list[Callable[[Store], object]] = [
    lambda store: store.column("text").lengths(),
    lambda store: [store[i] for i in range(4)],
    lambda store: store.column("text").take(np.arange(4)),
]


@pytest.mark.parametrize("read", READS, ids=["lengths", "examples", "take"])
def test_wrong_offsets_are_an_error_wherever_they_are_read(
    tmp_path: Path, read: Callable[[Store], object]
) -> None:
    for wrong in ([0, 2, 1, 3, 5], [0, 9, 3, 3, 5], [0, 2**63, 3, 3, 5], [1, 2, 3, 3, 5]):
        with pytest.raises(ValueError, match=r"train\.text\.idx.*offsets that do not rise"):
            read(write_offsets(tmp_path, wrong))


def test_damage_of_a_sentence_is_an_error_for_it_alone(tmp_path: Path) -> None:
    store = write_offsets(tmp_path, [0, 6, 3, 3, 5])
    with pytest.raises(ValueError, match="offsets that do not rise from 0 on"):
        store[0]
    assert store[3][0].tolist() == [8, 9]
    with pytest.raises(ValueError, match="offsets that do not rise from 1 on"):
        write_offsets(tmp_path, [0, 2**63, 3, 3, 5])[1]
    write_text(tmp_path, [[5, 6], [7]])
    path = tmp_path / "train.text.bin"
    path.write_bytes(path.read_bytes()[:-2] + (300).to_bytes(2, "little"))
    side = Store(tmp_path, "train").column("text")
    with pytest.raises(ValueError, match=r"train\.text\.bin.*id 300, expected less than 300"):
        side.take(np.array([1]))
    side.take(np.array([0]))
