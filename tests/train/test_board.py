"""TensorBoard files hold the numbers of the log."""

import sys
from pathlib import Path

import pytest

from lightconv.train.log import Board


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
