"""Checkpoints of a run: the newest good one is found, the last and the best kept, the mean."""

import math
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lightconv.train.checkpoints import Checkpoints, DamagedError, SaveError, average


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


def test_the_newest_is_the_latest(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    assert checkpoints.steps() == []
    assert checkpoints.latest() is None
    assert not (tmp_path / "run").exists()
    save(checkpoints, 9, 10, 123456789)
    assert checkpoints.steps() == [9, 10, 123456789]
    folders = ["step-00000009", "step-00000010", "step-123456789"]
    assert names(tmp_path / "run" / "checkpoints") == [".lock", *folders]
    latest = checkpoints.latest()
    assert (latest.step, latest.values) == (123456789, {"step": 123456789})
    assert checkpoints.load(10).tensors["model"]["weight"].tolist() == [10.0] * 3
    assert checkpoints.load(10).tensors["optimizer"] == {}
    with pytest.raises(ValueError, match="no checkpoint of step 3; there are: 9, 10, 123456789"):
        checkpoints.load(3)


def test_what_is_no_checkpoint_is_left_alone(tmp_path: Path) -> None:
    others = {"step-1", "step-0000000x", "notes", ".step-00000001.new", ".hidden"}
    for name in others:
        (tmp_path / name).mkdir()
    checkpoints = Checkpoints(tmp_path, keep_last=2)
    assert checkpoints.latest() is None
    save(checkpoints, 1, 2, 3)
    assert checkpoints.steps() == [2, 3]
    assert others < set(names(tmp_path))


def test_damaged_ones_are_skipped_and_named(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 1, 2, 3)
    damage(tmp_path, 2, 3)
    latest = Checkpoints(tmp_path).latest()
    assert (latest.step, list(latest.skipped)) == (1, [3, 2])
    assert "step-00000003/model.safetensors: " in latest.skipped[3]
    (tmp_path / "step-00000001").rename(tmp_path / "step-00000004")
    with pytest.raises(DamagedError, match="step-00000004 is that of step 1"):
        Checkpoints(tmp_path).load(4)
    damage(tmp_path, 4)
    with pytest.raises(DamagedError, match=r"can be used, but 3 damaged: .*4/model"):
        Checkpoints(tmp_path).latest()  # no fresh start


def test_a_damaged_one_is_replaced_when_training_gets_there_again(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 1, 2, 3)
    damage(tmp_path, 2, 3)
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest() is not None
    save(checkpoints, 2)
    assert checkpoints.steps() == [1, 2, 3]  # 3 may still be looked at
    checkpoints.save(3, tensors(7.0), {}, score=2.0)
    latest = Checkpoints(tmp_path).latest()
    assert (latest.step, latest.score, latest.skipped) == (3, 2.0, {})
    assert latest.tensors["model"]["weight"].tolist() == [7.0] * 3
    assert names(tmp_path) == [".lock", *(f"step-0000000{step}" for step in (1, 2, 3))]


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


def test_the_best_are_kept(tmp_path: Path) -> None:
    scores = {1: 0.5, 2: 0.9, 3: None, 4: 0.9, 5: math.nan, 6: 0.7, 7: -math.inf, 8: None}
    checkpoints = Checkpoints(tmp_path, keep_last=2, keep_best=2)
    for step, score in scores.items():
        save(checkpoints, step, score=score)
    # Of equals the older is better.
    assert checkpoints.steps() == [2, 4, 7, 8]
    assert checkpoints.ranking() == [2, 4, 7]
    # The scores are those on the disk.
    other = Checkpoints(tmp_path, keep_last=2, keep_best=1)
    save(other, 9)
    assert other.steps() == [2, 8, 9]


def test_what_only_a_stop_left_goes_when_it_is_old(tmp_path: Path) -> None:
    """The last regular ones are those of a run that nobody stopped; two of any kind stay."""
    checkpoints = Checkpoints(tmp_path, keep_last=2, keep_best=1, is_regular=lambda s: s % 5 == 0)
    for step, score in {5: None, 7: 0.5, 8: None, 9: None, 10: 0.1, 12: None}.items():
        save(checkpoints, step, score=score)
    assert checkpoints.steps() == [5, 7, 10, 12]
    save(checkpoints, 13, 15)
    assert checkpoints.steps() == [7, 10, 13, 15]


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    other = Checkpoints(tmp_path / "checkpoints", writer=False)
    other.claim()
    path = other.save(1, tensors(1.0), {})
    assert path == tmp_path / "checkpoints" / "step-00000001"
    assert names(tmp_path) == []
    save(Checkpoints(tmp_path / "checkpoints"), 1)
    assert other.latest().path == path


def test_what_dead_writers_left(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 1, 2)
    for suffix in ("new", "gone", "old"):
        shutil.copytree(tmp_path / "step-00000001", tmp_path / f".step-00000001.0123abcd.{suffix}")
    (tmp_path / "step-00000002").rename(tmp_path / ".step-00000002.0123abcd.old")
    # Reading changes nothing, but finds the one that was being replaced.
    reader = Checkpoints(tmp_path)
    assert reader.latest().step == 2
    assert reader.steps() == [1, 2]
    assert len(names(tmp_path)) == 6
    Checkpoints(tmp_path).claim()
    assert names(tmp_path) == [".lock", "step-00000001", "step-00000002"]


def test_the_first_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SaveError, match=r"written \(.*file/c\): Not a direct.* no earlier one$"):
        save(Checkpoints(tmp_path / "file" / "c"), 1)


def test_nothing_is_left_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(Checkpoints(tmp_path), 1)
    tied = torch.ones(1)
    with pytest.raises(ValueError, match="share memory"):
        Checkpoints(tmp_path).save(2, {"model": {"a": tied, "b": tied}}, {})

    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("os.write", interrupt)
        save(Checkpoints(tmp_path), 2)
    assert names(tmp_path) == [".lock", "step-00000001"]


# --- The mean


def write(folder: Path, *models: dict[str, Tensor]) -> list[Path]:
    """Checkpoints of these tensors, in the order of their steps."""
    with Checkpoints(folder, keep_last=100) as checkpoints:
        return [checkpoints.save(i, {"model": model}, {}) for i, model in enumerate(models)]


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str
)
@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_the_plain_mean(dtype: torch.dtype, count: int, tmp_path: Path) -> None:
    torch.manual_seed(count)
    models = [
        {"wide": torch.randn(5, 7).to(dtype), "thin": torch.randn(()).to(dtype) * 1e-3}
        for _ in range(count)
    ]
    paths = write(tmp_path, *models)
    before = [(path / "model.safetensors").read_bytes() for path in paths]
    found = average(paths)
    assert [(path / "model.safetensors").read_bytes() for path in paths] == before
    assert list(found) == ["thin", "wide"]
    for name, tensor in found.items():
        # The exact sum of exact numbers, rounded twice: to float64, and to the type.
        rows = [model[name].double().flatten().tolist() for model in models]
        exact = [math.fsum(column) / count for column in zip(*rows, strict=True)]
        expected = torch.tensor(exact, dtype=torch.float64).reshape(tensor.shape).to(dtype)
        assert tensor.dtype == dtype
        if dtype == torch.float64:
            torch.testing.assert_close(tensor, expected, rtol=1e-15, atol=1e-16)
        else:
            assert torch.equal(tensor, expected)


def test_equal_checkpoints_have_themselves_as_mean(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = {"a": torch.randn(1000)}
    copies = write(tmp_path, *({"a": model["a"].clone()} for _ in range(10)))
    assert torch.equal(average(copies)["a"], model["a"])
    # Which sums in float32 do not give.
    sums = sum((model["a"] for _ in range(10)), torch.zeros(1000))
    assert not torch.equal(sums / 10, model["a"])
    (copies[1] / "model.safetensors").write_bytes(b"x")
    with pytest.raises(DamagedError, match=r"step-00000001/model\.safetensors: 1 bytes"):
        average(copies)


def test_whole_numbers_must_agree(tmp_path: Path) -> None:
    kept = {"count": torch.tensor([3, 4]), "on": torch.tensor(True)}
    paths = write(tmp_path / "a", kept | {"w": torch.ones(1)}, kept | {"w": torch.zeros(1)})
    found = average(paths)
    assert torch.equal(found["count"], kept["count"])
    assert torch.equal(found["on"], kept["on"])
    assert found["w"].item() == 0.5
    for name, other in (("count", torch.tensor([3, 5])), ("on", torch.tensor(False))):
        paths = write(tmp_path / name, kept, kept | {name: other})
        with pytest.raises(ValueError, match=rf"00000001: {name} \(torch\..*\) differs from that"):
            average(paths)


def test_checkpoints_of_different_models(tmp_path: Path) -> None:
    first = {"a": torch.ones(3), "b": torch.ones(2)}
    for number, (other, message) in enumerate(
        (
            ({"a": torch.ones(3)}, "00000001 lacks b, expected by .*00000000"),
            (first | {"c": torch.ones(1)}, "00000001 has c, unknown to .*00000000"),
            (first | {"b": torch.ones(1, 2)}, r"b has shape \[1, 2\], expected \[2\]"),
            (first | {"b": torch.ones(2).half()}, "b is torch.float16, expected torch.float32 by"),
        )
    ):
        with pytest.raises(ValueError, match=message):
            average(write(tmp_path / str(number), first, other))
    with pytest.raises(ValueError, match="needs at least one checkpoint"):
        average([])


def test_moving_averages(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        model = {"a": torch.full((2,), float(step)), "count": torch.tensor(7)}
        checkpoints.save(step, {"model": model, "ema": {"a": torch.full((2,), 10.0 * step)}}, {})
    paths = [checkpoints.path(1), checkpoints.path(2)]
    assert average(paths)["a"].tolist() == [1.5, 1.5]
    found = average(paths, ema=True)
    assert found["a"].tolist() == [15.0, 15.0]
    assert found["count"].item() == 7
