"""Damaged, truncated or foreign files of a split: refused, whatever they hold."""

import random
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lightconv.data import Store
from lightconv.data.layout import HEADER_BYTES, _unpack
from tests.data.stores import VOCAB, sentences, write_pairs, write_text

PAIRS = [sentences(30, seed=1), sentences(30, seed=2, vocab=400)]
NAMES = [f"train.{side}{suffix}" for side in VOCAB for suffix in (".bin", ".idx")]


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
    with pytest.raises(ValueError, match=match) as caught:
        Store.open(tmp_path, "train")
    assert name in str(caught.value)
    assert "Run `lightconv prepare` again" in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    write_pairs(tmp_path, PAIRS)
    (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=rf"no {name}, expected .* `lightconv prepare`"):
        Store.open(tmp_path, "train")


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    write_pairs(tmp_path, PAIRS)
    with pytest.raises(ValueError, match=r"there is no split 'test' in .* `lightconv prepare`"):
        Store.open(tmp_path, "test")
    with pytest.raises(ValueError, match=r"there is no folder .* `lightconv prepare`"):
        Store.open(tmp_path / "none", "train")


def test_files_of_two_preparations_are_refused(tmp_path: Path) -> None:
    write_pairs(tmp_path / "one", PAIRS)
    write_pairs(tmp_path / "two", [side[::-1] for side in PAIRS])
    for name in NAMES:
        here = tmp_path / name.replace(".", "-")
        write_pairs(here, PAIRS)
        (here / name).write_bytes((tmp_path / "two" / name).read_bytes())
        with pytest.raises(ValueError, match="of another preparation"):
            Store.open(here, "train")


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    write_pairs(tmp_path / "one", PAIRS)
    write_pairs(tmp_path / "two", PAIRS)
    path = tmp_path / "two" / NAMES[0]
    path.unlink()
    path.symlink_to(tmp_path / "one" / NAMES[0])
    with pytest.raises(ValueError, match="leaves its folder"):
        Store.open(tmp_path / "two", "train")


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
            Store.open(tmp_path, "train").verify()
        overwrite(path, intact)
    Store.open(tmp_path, "train").verify()


def use(folder: Path) -> None:
    """Everything that reads a split."""
    store = Store.open(folder, "train")
    for index in range(len(store)):
        store[index]
    for name in store.sides:
        side = store.side(name)
        side.lengths()
        side.take(np.arange(len(store)))
        side.take(np.arange(len(store)), most=3, keep="end")
        places = len(side.tokens) + len(store)
        for begin in range(0, places, 7):
            side.stream(begin, min(begin + 7, places), 2)
    store.verify()


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


def test_any_header_is_an_error_or_sound(tmp_path: Path) -> None:
    write_pairs(tmp_path, PAIRS)
    heads = {name: (tmp_path / name).read_bytes()[:HEADER_BYTES] for name in NAMES}
    rng = random.Random(0)
    sound = 0
    for _ in range(10_000):
        name = rng.choice(NAMES)
        data = bytes(mutate(rng, bytearray(heads[name]))[:HEADER_BYTES])
        try:
            header = _unpack(tmp_path / name, data)
        except ValueError as error:
            assert name in str(error)
        else:
            assert header.size == HEADER_BYTES + header.items * header.item
            assert header.pack()[:-24] == data[:-24]  # all but what fills it up, and its CRC
            sound += 1
    assert 1000 < sound < 9000


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
            use(tmp_path)
        except ValueError:
            refused += 1
        overwrite(tmp_path / name, intact[name])
    assert 0.9 * count < refused <= count


def test_wrong_offsets_are_an_error_wherever_they_are_read(tmp_path: Path) -> None:
    text = [[5, 6], [7], [], [8, 9]]
    path = tmp_path / "train.text.idx"
    for wrong in ([0, 2, 1, 3, 5], [0, 9, 3, 3, 5], [0, 2**63, 3, 3, 5], [1, 2, 3, 3, 5]):
        write_text(tmp_path, text)
        data = bytearray(path.read_bytes())
        data[HEADER_BYTES:] = np.array(wrong, dtype="<u8").tobytes()
        path.write_bytes(data)
        reads: list[Callable[[Store], object]] = [
            lambda store: store.lengths("text"),
            lambda store: [store[i] for i in range(4)],
            lambda store: store.side("text").take(np.arange(4)),
            lambda store: store.side("text").stream(0, 9, 2),
        ]
        for read in reads:
            with pytest.raises(ValueError, match=r"train\.text\.idx.*offsets that do not rise"):
                read(Store.open(tmp_path, "train"))


def test_an_offset_behind_the_end_is_an_error_for_its_sentence_alone(tmp_path: Path) -> None:
    write_text(tmp_path, [[5, 6], [7], [8, 9]])
    path = tmp_path / "train.text.idx"
    path.write_bytes(path.read_bytes()[:HEADER_BYTES] + np.array([0, 6, 3, 5], "<u8").tobytes())
    store = Store.open(tmp_path, "train")
    with pytest.raises(ValueError, match="offsets that do not rise from 0 on"):
        store[0]
    assert store[2][0].tolist() == [8, 9]


def test_an_id_that_the_vocabulary_does_not_have_is_an_error(tmp_path: Path) -> None:
    write_text(tmp_path, [[5, 6], [7]])
    path = tmp_path / "train.text.bin"
    path.write_bytes(path.read_bytes()[:-2] + (300).to_bytes(2, "little"))
    side = Store.open(tmp_path, "train").side("text")
    with pytest.raises(ValueError, match=r"train\.text\.bin.*id 300, expected less than 300"):
        side.take(np.array([1]))
    with pytest.raises(ValueError, match="id 300"):
        side.stream(0, 5, 2)
    side.take(np.array([0]))
