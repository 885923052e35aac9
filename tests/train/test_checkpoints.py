"""The checkpoints of a run: the newest good one is found, the last and the best are kept."""

import math
import shutil
from pathlib import Path

import pytest
import torch

from lightconv.train.checkpoint import DamagedError
from lightconv.train.checkpoints import Checkpoints, SaveError


def tensors(value: float) -> dict[str, dict[str, torch.Tensor]]:
    return {"model": {"weight": torch.full((3,), value)}, "optimizer": {}}


def save(checkpoints: Checkpoints, *steps: int, score: float | None = None) -> None:
    for step in steps:
        checkpoints.save(step, tensors(step), {"step": step}, score=score)


def damage(folder: Path, *steps: int) -> None:
    for step in steps:
        path = folder / f"step-{step:08d}" / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"\0\0")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_nothing_yet(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    assert checkpoints.steps() == []
    assert checkpoints.latest() is None
    assert checkpoints.best() is None
    assert not (tmp_path / "run").exists()


def test_the_newest_is_the_latest(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    save(checkpoints, 9, 10, 123456789)
    assert checkpoints.steps() == [9, 10, 123456789]
    assert names(tmp_path / "run" / "checkpoints") == [
        ".lock",
        "step-00000009",
        "step-00000010",
        "step-123456789",
    ]
    latest = checkpoints.latest()
    assert latest is not None
    assert latest.step == 123456789
    assert latest.values == {"step": 123456789}
    assert checkpoints.load(10).tensors["model"]["weight"].tolist() == [10.0] * 3
    assert checkpoints.load(10).tensors["optimizer"] == {}


def test_what_is_no_checkpoint_is_left_alone(tmp_path: Path) -> None:
    for name in ("step-1", "step-0000000x", "notes", ".step-00000001.new", ".hidden"):
        (tmp_path / name).mkdir()
    checkpoints = Checkpoints(tmp_path, keep_last=2)
    assert checkpoints.latest() is None
    save(checkpoints, 1, 2, 3)
    assert checkpoints.steps() == [2, 3]
    assert {"step-1", "step-0000000x", "notes", ".step-00000001.new", ".hidden"} < set(
        names(tmp_path)
    )


def test_a_step_that_is_not_there(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1, 2)
    with pytest.raises(ValueError, match="has no checkpoint of step 3; there are: 1, 2"):
        checkpoints.load(3)


def test_damaged_ones_are_skipped_and_named(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 1, 2, 3)
    damage(tmp_path, 2, 3)
    latest = Checkpoints(tmp_path).latest()
    assert latest is not None
    assert latest.step == 1
    assert [skipped.step for skipped in latest.skipped] == [3, 2]
    assert "step-00000003/model.safetensors: " in latest.skipped[0].reason


def test_a_folder_with_another_name(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 1)
    (tmp_path / "step-00000001").rename(tmp_path / "step-00000002")
    with pytest.raises(DamagedError, match="step-00000002 is that of step 1"):
        Checkpoints(tmp_path).load(2)


def test_only_damaged_ones_are_no_fresh_start(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 1, 2)
    damage(tmp_path, 1, 2)
    with pytest.raises(DamagedError, match=r"can be used, but 2 damaged: .*2/model"):
        Checkpoints(tmp_path).latest()


def test_a_damaged_one_is_replaced_when_training_gets_there_again(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 1, 2, 3)
    damage(tmp_path, 2, 3)
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest() is not None
    save(checkpoints, 2)
    assert checkpoints.steps() == [1, 2, 3]  # 3 may still be looked at
    save(checkpoints, 3)
    latest = Checkpoints(tmp_path).latest()
    assert latest is not None
    assert (latest.step, latest.skipped) == (3, ())


def test_damaged_ones_are_not_counted_and_go(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 1, 2, 3, 4)
    damage(tmp_path, 3, 4)
    checkpoints = Checkpoints(tmp_path, keep_last=2)
    assert checkpoints.latest() is not None
    save(checkpoints, 5)
    assert checkpoints.steps() == [2, 5]


def test_a_run_does_not_mix_with_a_newer_one(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 1, 2, 3)
    with pytest.raises(ValueError, match="step-00000003 is newer than step 2, which is to be sav"):
        save(Checkpoints(tmp_path), 2)
    assert Checkpoints(tmp_path).steps() == [1, 2, 3]
    damage(tmp_path, 3)
    save(Checkpoints(tmp_path), 2)


def test_the_same_step_again(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    checkpoints.save(1, tensors(7.0), {}, score=2.0)
    latest = checkpoints.latest()
    assert latest is not None
    assert (latest.score, latest.tensors["model"]["weight"].tolist()) == (2.0, [7.0] * 3)
    assert names(tmp_path) == [".lock", "step-00000001"]


@pytest.mark.parametrize("keep_last", [2, 3])
def test_the_last_are_kept(keep_last: int, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=keep_last, keep_best=0)
    save(checkpoints, 1, 2, 3, 4, 5)
    assert checkpoints.steps() == [1, 2, 3, 4, 5][-keep_last:]
    assert len(names(tmp_path)) == keep_last + 1


def test_the_best_are_kept(tmp_path: Path) -> None:
    scores = {1: 0.5, 2: 0.9, 3: None, 4: 0.9, 5: math.nan, 6: 0.7, 7: -math.inf, 8: None}
    checkpoints = Checkpoints(tmp_path, keep_last=2, keep_best=2)
    for step, score in scores.items():
        save(checkpoints, step, score=score)
    # Of equals the older is better.
    assert checkpoints.steps() == [2, 4, 7, 8]
    assert checkpoints.ranking() == [2, 4, 7]
    best = checkpoints.best()
    assert best is not None
    assert (best.step, best.score) == (2, 0.9)
    # The scores are those on the disk.
    other = Checkpoints(tmp_path, keep_last=2, keep_best=1)
    save(other, 9)
    assert other.steps() == [2, 8, 9]


def test_a_damaged_best_is_skipped(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2, 3):
        save(checkpoints, step, score=-float(step))
    damage(tmp_path, 1)
    best = Checkpoints(tmp_path).best()
    assert best is not None
    assert best.step == 2
    assert [skipped.step for skipped in best.skipped] == [1]


def test_the_only_good_one_is_not_removed(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 1, 2, 3)
    damage(tmp_path, 2, 3)
    Checkpoints(tmp_path, writer=False).remove(1)
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest() is not None
    with pytest.raises(ValueError, match="step-00000001 is not removed: there is no other good"):
        checkpoints.remove(1)
    checkpoints.remove(2)
    checkpoints.remove(7)
    assert names(tmp_path) == [".lock", "step-00000001", "step-00000003"]
    save(checkpoints, 4)
    checkpoints.remove(1)
    assert checkpoints.steps() == [4]


def test_at_least_two_are_kept(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep_last=1 must be at least 2"):
        Checkpoints(tmp_path, keep_last=1)
    with pytest.raises(ValueError, match="keep_best=-1 must be at least 0"):
        Checkpoints(tmp_path, keep_best=-1)


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    other = Checkpoints(tmp_path / "checkpoints", writer=False)
    other.claim()
    path = other.save(1, tensors(1.0), {})
    assert path == tmp_path / "checkpoints" / "step-00000001"
    assert names(tmp_path) == []
    save(Checkpoints(tmp_path / "checkpoints"), 1)
    latest = other.latest()
    assert latest is not None
    assert latest.path == path


def test_what_dead_writers_left(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 1, 2)
    for suffix in ("new", "gone", "old"):
        shutil.copytree(tmp_path / "step-00000001", tmp_path / f".step-00000001.0123abcd.{suffix}")
    (tmp_path / "step-00000002").rename(tmp_path / ".step-00000002.0123abcd.old")
    # Reading changes nothing, but finds the one that was being replaced.
    reader = Checkpoints(tmp_path)
    latest = reader.latest()
    assert latest is not None
    assert latest.step == 2
    assert reader.steps() == [1, 2]
    assert len(names(tmp_path)) == 6
    Checkpoints(tmp_path).claim()
    assert names(tmp_path) == [".lock", "step-00000001", "step-00000002"]


def test_values_are_checked_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"values\.a is a tuple"):
        Checkpoints(tmp_path / "c").save(1, tensors(1.0), {"a": ()})
    with pytest.raises(ValueError, match="step=-1 must be at least 0"):
        Checkpoints(tmp_path / "c").save(-1, tensors(1.0), {})
    assert names(tmp_path) == []


def test_the_first_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SaveError, match=r"written \(.*file/c\): Not a direct.* no earlier one$"):
        save(Checkpoints(tmp_path / "file" / "c"), 1)


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(Checkpoints(tmp_path), 1)

    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("os.write", interrupt)
        save(Checkpoints(tmp_path), 2)
    assert names(tmp_path) == [".lock", "step-00000001"]
