"""log.jsonl, whatever a crash or an attacker left; curves of TensorBoard; lines for people."""

import errno
import json
import math
import os
import random
import sys
from pathlib import Path

import pytest

from lightconv.train import Record
from lightconv.train.log import RECENT, Board, Log, Pace, describe_validation, perplexity, read_log


def write(path: Path, steps: range) -> None:
    with Log(path) as log:
        for step in steps:
            log.write({"kind": "train", "step": step, "loss": 1 / step})


def steps(path: Path) -> list[int]:
    return [entry["step"] for entry in read_log(path)]


def test_a_line_torn_at_any_byte_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write(path, range(1, 4))
    data, said = path.read_bytes(), list[str]()
    ends = [place + 1 for place, byte in enumerate(data) if byte == ord("\n")]
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        whole = sum(end <= size for end in ends)
        assert [entry["step"] for entry in read_log(path, said.append)] == [1, 2, 3][:whole]
        assert not said  # a run may be writing it
        Log(path, report=said.append).close()
        torn = size not in (0, *ends)
        assert said == [f"{path}: the last line is torn and cut off"] * torn
        said.clear()
        write(path, range(whole + 1, 6))
        assert steps(path) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "rest", [b"\0" * 30 + b"\n", b"[1]\n", b'{"step": "x"}\n', b"[" * 9999 + b"\n"]
)
def test_damaged_lines_are_reported_and_good_ones_kept(rest: bytes, tmp_path: Path) -> None:
    """At the end of the file they are cut off; before good lines they stay."""
    path = tmp_path / "log.jsonl"
    write(path, range(1, 3))
    whole = path.read_bytes()
    path.write_bytes(whole + rest)
    said: list[str] = []
    assert [entry["step"] for entry in read_log(path, said.append)] == [1, 2]
    assert said == [f"{path}: line 3 is damaged and left out"]
    write(path, range(3, 4))
    assert read_log(path) == [{"kind": "train", "step": n, "loss": 1 / n} for n in (1, 2, 3)]
    assert rest not in path.read_bytes()
    data = path.read_bytes()
    path.write_bytes(data[: len(whole)] + rest + data[len(whole) :])
    said.clear()
    with Log(path, report=said.append) as log:
        assert [entry["step"] for entry in log.entries] == [1, 2, 3]
        log.write({"step": 4})
    assert said == [f"{path}: line 3 is damaged and left out"]
    assert steps(path) == [1, 2, 3, 4]
    assert rest in path.read_bytes()


def test_random_damage_never_drops_a_good_line_silently(tmp_path: Path) -> None:
    """D4: one byte is changed, one line is lost or two, and said so."""
    path = tmp_path / "log.jsonl"
    write(path, range(1, 30))
    whole, chance = path.read_bytes(), random.Random(1)
    for _ in range(500):
        data = bytearray(whole)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(bytes(data))
        intact = {line for line in bytes(data).split(b"\n") if line in whole.split(b"\n")} - {b""}
        said: list[str] = []
        with Log(path, report=said.append) as log:
            found = {json.dumps(entry).encode() for entry in log.entries}
        assert intact <= found
        assert said or len(log.entries) == 29


@pytest.mark.parametrize("kind", ["link", "dangling", "folder", "fifo"])
def test_only_a_regular_file_is_a_log(kind: str, tmp_path: Path) -> None:
    """D4: a link would empty and overwrite what it points to."""
    path, other = tmp_path / "log.jsonl", tmp_path / "other"
    if kind == "link":
        other.write_text("dear")
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(other)
    for attempt in (Log, read_log):
        with pytest.raises((ValueError, OSError), match=r"link|regular|directory"):
            attempt(path)
    assert other.exists() == (kind == "link")
    assert kind != "link" or other.read_text() == "dear"


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
        # A line is there when it is written.
        assert path.read_text() == '{"step": 1, "loss": null, "norm": null, "lr": 0.5}\n'


def test_a_full_disk_is_told_with_the_name_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Log(tmp_path / "log.jsonl") as log, monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left") as caught:
            log.write({"step": 1})
    assert caught.value.filename == str(tmp_path / "log.jsonl")


# --- TensorBoard


def test_entries_become_curves(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import RecordWriter  # noqa: F401

    board = Board(tmp_path)
    board.write({"kind": "train", "step": 5, "loss": 2.5, "seconds": 9.0, "norm": None})
    board.write({"kind": "valid", "step": 5, "loss": 2.25, "metric": {"bleu": 1.0}})
    board.close()
    (path,) = tmp_path.iterdir()
    data, found = path.read_bytes(), {}
    while data:
        # A record: its length, a checksum, the event, a checksum.
        size = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + size])
        data = data[16 + size :]
        for value in event.summary.value:
            found[value.tag, event.step] = value.simple_value
    assert found == {("train/loss", 5): 2.5, ("valid/loss", 5): 2.25, ("valid/bleu", 5): 1.0}


def test_without_the_package_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ValueError, match=r"pip install 'lightconv\[tensorboard\]'"):
        Board(tmp_path)


# --- Lines


def test_perplexity_does_not_overflow() -> None:
    assert perplexity(math.log(8.0)) == pytest.approx(8.0)
    assert perplexity(1e6) == math.inf
    assert math.isnan(perplexity(math.nan))


def test_the_pace_is_that_of_the_last_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [160.0]  # a start that took long
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    pace = Pace(max_steps=2000)

    def update(step: int, seconds: float) -> str:
        now[0] += seconds
        pace.add(1000)
        return pace.describe(Record(step, 2.0, 1000, 3e-4, math.log(6.5), 1.0))

    assert update(1, 30.0) == "step 1/2,000  loss 2.000  ppl 6.5  lr 3.00e-04"
    lines = [update(step, 0.5) for step in range(2, 5)]
    assert lines[-1].endswith("lr 3.00e-04  2,000 tokens/s  16:38 left")
    # A slow start is forgotten.
    lines = [update(step, 1.0) for step in range(5, 6 + RECENT)]
    assert "  1,000 tokens/s  " in lines[-1]


def test_a_validation_is_one_line() -> None:
    entry = {"step": 1000, "loss": 3.25, "perplexity": 12.345678, "metric": {"bleu": 27.123}}
    assert describe_validation(entry, improved=True) == (
        "step 1,000  validation  loss 3.250  ppl 12.35  bleu 27.12  (best so far)"
    )
    del entry["metric"]
    assert describe_validation(entry, improved=False).endswith("ppl 12.35")
