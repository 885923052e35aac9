"""log.jsonl: whole lines only, whatever a crash left, and nothing that will happen again."""

import json
import math
from pathlib import Path

import pytest

from lightconv.train.log import Log, read_log


def write(path: Path, steps: range) -> None:
    with Log(path) as log:
        for step in steps:
            log.write({"kind": "train", "step": step, "loss": 1 / step})


def steps(path: Path) -> list[int]:
    return [entry["step"] for entry in read_log(path)]


def test_entries_come_back(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write(path, range(1, 4))
    write(path, range(4, 6))
    assert steps(path) == [1, 2, 3, 4, 5]
    assert read_log(path)[2]["loss"] == 1 / 3
    with Log(path) as log:
        assert log.entries == read_log(path)


def test_a_line_torn_at_any_byte_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write(path, range(1, 4))
    data = path.read_bytes()
    ends = [place + 1 for place, byte in enumerate(data) if byte == ord("\n")]
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        whole = sum(end <= size for end in ends)
        assert steps(path) == [1, 2, 3][:whole]
        write(path, range(whole + 1, 6))
        assert steps(path) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "rest", [b"\0" * 30 + b"\n", b"[1]\n", b'{"step": "x"}\n', b"[" * 9999 + b"\n"]
)
def test_what_is_no_entry_ends_the_log(rest: bytes, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write(path, range(1, 3))
    with path.open("ab") as file:
        file.write(rest)
    assert steps(path) == [1, 2]
    write(path, range(3, 4))
    assert steps(path) == [1, 2, 3]


def test_what_will_be_done_again_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write(path, range(1, 9))
    with Log(path, lambda entry: entry["step"] <= 5) as log:
        assert [entry["step"] for entry in log.entries] == [1, 2, 3, 4, 5]
        log.write({"step": 6, "new": True})
        log.sync()
    assert steps(path) == [1, 2, 3, 4, 5, 6]
    assert read_log(path)[-1] == {"step": 6, "new": True}


def test_numbers_that_are_not_finite_are_null(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with Log(path) as log:
        log.write({"step": 1, "loss": math.nan, "norm": math.inf, "lr": 0.5})
    text = path.read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {
        "step": 1,
        "loss": None,
        "norm": None,
        "lr": 0.5,
    }


def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    (tmp_path / "log.jsonl").symlink_to("/dev/full")
    # Reading it gives zeros without end.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda self: b"")
        log = Log(tmp_path / "log.jsonl")
    with log, pytest.raises(OSError, match="No space left") as caught:
        log.write({"step": 1})
    assert caught.value.filename == str(tmp_path / "log.jsonl")


def test_a_line_is_there_when_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = Log(path)
    log.write({"step": 1})
    assert path.read_text() == '{"step": 1}\n'
    log.close()
