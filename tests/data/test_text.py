"""Lines of files: where they end, what is dropped and counted, and what is refused."""

import bz2
import gzip
import lzma
import random
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightconv.data import text
from lightconv.data.text import Notes, check_lines, first_gap, read_lines, side_by_side


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "train.de"


@pytest.mark.parametrize(
    "data, lines",
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"\n", [""]),
        (b"a\n\nb\n\n", ["a", "", "b", ""]),
        (b" a \tb \n", [" a \tb "]),
        ("ä 漢 \U0001f600\n".encode(), ["ä 漢 \U0001f600"]),
    ],
)
def test_lines(path: Path, data: bytes, lines: list[str]) -> None:
    path.write_bytes(data)
    notes = Notes()
    assert list(read_lines(path, notes)) == lines
    assert list(read_lines(str(path))) == lines
    assert notes == Notes()
    assert notes.warning() is None


# Everything that str.splitlines or Python's text mode would cut at.
@given(st.lists(st.text("ab \x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\r"), min_size=1))
def test_lines_end_at_newlines_only(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    path = tmp_path_factory.mktemp("text") / "a"
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    assert list(read_lines(path)) == [line.removesuffix("\r") for line in lines]


def test_marks_of_other_systems_are_dropped_and_counted(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\nc\r\n\xef\xbb\xbfd\re\r")
    notes = Notes()
    assert list(read_lines(path, notes)) == ["a", "b", "c", "\ufeffd\re"]
    assert notes == Notes(marks=1, returns=3)
    other = path.with_name("train.en")
    other.write_bytes(b"\xef\xbb\xbfa\n")
    assert list(read_lines(other, notes)) == ["a"]
    assert notes.warning() == (
        "dropped the byte order mark of 2 files and the carriage return (CR) of 3 lines"
    )
    assert Notes(returns=1).warning() == "dropped the carriage return (CR) of 1 line"


@pytest.mark.parametrize(
    "suffix, pack", [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_compressed_files(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / f"train.de{suffix}"
    packed = pack(b"\xef\xbb\xbf" + b"some words here\r\nb\n" * 1000)
    path.write_bytes(packed)
    notes = Notes()
    assert list(read_lines(path, notes)) == ["some words here", "b"] * 1000
    assert notes == Notes(1, 1000)
    for damaged in (packed[:-20], b"plain text\n", packed[:30] + b"\xff" * 8 + packed[38:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=f"train.de{suffix} .*damaged or not compressed"):
            list(read_lines(path))
    path.write_bytes(pack(b""))
    with pytest.raises(ValueError, match="is empty"):
        list(read_lines(path))


@pytest.mark.parametrize(
    "data, message",
    [
        (b"a\nb\xe4c\n", r"line 2: byte 0xe4 is not UTF-8 \(byte 2 of .*iconv -t UTF-8"),
        (b"a\nb\xc3\n", r"line 2: byte 0xc3 is not UTF-8"),
        (b"a\n\xed\xa0\x80\n", r"line 2: byte 0xed is not UTF-8"),
        ("aä\n".encode("utf-16"), r"is UTF-16, expected UTF-8\. Convert it with iconv"),
        ("aä\n".encode("utf-16-be"), r"line 1: a NUL character \(byte 1 of the line\).*UTF-16"),
        (b"\xfe\xff\x00a", r"is UTF-16"),
        (b"a\nb\nc\0", r"line 3: a NUL character \(byte 2 of the line\)"),
        (b"\xef\xbb\xbf", r"is empty"),
    ],
)
def test_what_is_no_text_is_refused(path: Path, data: bytes, message: str) -> None:
    path.write_bytes(data)
    with pytest.raises(ValueError, match=rf"^[^\n]*train\.de[^\n]*{message}[^\n]*$"):
        list(read_lines(path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none", "none does not exist"),
        (".", "is a folder, expected a text file"),
        ("train.de", "train.de is empty"),
        ("train.de/x", "x cannot be read: Not a directory"),
    ],
)
def test_files_that_cannot_be_read_are_named_at_once(path: Path, name: str, message: str) -> None:
    path.touch()
    with pytest.raises(ValueError, match=message):
        read_lines(path.parent / name)


def test_a_file_without_lines_does_not_fill_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "LONGEST_LINE", 1 << 20)
    path.write_bytes(b"a\n" + b"x" * (1 << 20) + b"\n")
    with pytest.raises(ValueError, match=r"line 2: longer than 1 MB"):
        list(read_lines(path))
    path.write_bytes(b"x" * ((1 << 20) - 1) + b"\nb")
    assert len(list(read_lines(path))) == 2


def write_pair(folder: Path, source: list[str], target: list[str]) -> list[Path]:
    paths = [folder / "train.de", folder / "train.en"]
    for path, lines in zip(paths, (source, target), strict=True):
        path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return paths


def test_parallel_files(tmp_path: Path) -> None:
    paths = write_pair(tmp_path, ["a", "b\r", ""], ["c", "", "d\r"])
    notes = Notes()
    found = side_by_side(paths, partial(read_lines, notes=notes))
    assert list(found) == [("a", "c"), ("b", ""), ("", "d")]
    assert notes.returns == 2
    assert check_lines(paths, map(read_lines, paths)) == 3
    assert list(side_by_side(paths[:1], read_lines)) == [("a",), ("b",), ("",)]


@pytest.mark.parametrize("longer", [0, 1])
def test_parallel_files_of_different_length(tmp_path: Path, longer: int) -> None:
    draw = random.Random(1)
    source = ["x" * draw.randint(5, 200) for _ in range(100)]
    target = [line[: int(len(line) * 0.9)] for line in source]
    sides = [source, target]
    del sides[1 - longer][59:61]
    paths = write_pair(tmp_path, source, target)
    counts = (100, 98) if longer == 0 else (98, 100)
    message = rf"\.de has {counts[0]} lines and .*\.en has {counts[1]}, .* diverge at line 60"
    lines = side_by_side(paths, read_lines)
    assert len(list(islice(lines, 98))) == 98
    with pytest.raises(ValueError, match=message):
        next(lines)
    with pytest.raises(ValueError, match=message):
        check_lines(paths, map(read_lines, paths))


def test_the_gap_is_found_where_lengths_stop_to_agree() -> None:
    draw = random.Random(0)
    near = 0
    for _ in range(200):
        first = [int(draw.lognormvariate(4, 0.7)) for _ in range(200)]
        second = [round(length * draw.uniform(0.8, 1.2)) for length in first]
        place, size = draw.randrange(5, 190), draw.randint(1, 4)
        del second[place : place + size]
        near += abs(first_gap(first, second) - 1 - place) <= 3
        assert first_gap(first, second) == first_gap(second, first)
    assert near > 190
    assert first_gap([], [3, 4]) == 1
    assert first_gap([5, 9], [5, 9, 7]) == 3


@pytest.mark.parametrize("suffix, module", [(".gz", gzip), (".bz2", bz2), (".xz", lzma)])
def test_a_file_that_grows_beyond_text(
    suffix: str, module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D9: a few bytes that would fill the disk."""
    monkeypatch.setattr(text, "SMALL", 1 << 16)
    path = tmp_path / f"text{suffix}"
    path.write_bytes(module.compress(b"the same line\n" * 300_000))
    with pytest.raises(ValueError, match=rf"text{suffix} unpacks to more than 200 times its size"):
        list(read_lines(path))
    path.write_bytes(module.compress(b"the same line\n" * 3_000))
    assert len(list(read_lines(path))) == 3_000
