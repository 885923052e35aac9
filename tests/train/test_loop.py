"""A run: what is done when, what is kept, and that nothing of it depends on interruptions."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import lightconv
from lightconv.models.tensors import parameters
from lightconv.train import (
    DivergenceError,
    NesterovConfig,
    Outcome,
    PreparedData,
    RunMetric,
    run,
)
from lightconv.train.checkpoints import Checkpoints
from lightconv.train.launch import Stop
from lightconv.train.log import Log, read_log
from lightconv.train.loop import Loop, Window
from lightconv.train.memory import Allocator
from lightconv.train.optim import FIRST_SCALE, Model
from lightconv.train.trainer import Record, Trainer
from tests.harness.examples import fingerprint, prepare, small_config, train_config
from tests.train.formula import Overflow, observe

CPU = torch.device("cpu")


class Asked(Stop):
    """Somebody wants to stop as soon as `when` is true."""

    def __init__(self, when: Callable[[], object] = lambda: False) -> None:
        super().__init__()
        self._when = when

    @property
    def code(self) -> int:
        return 75 if self._when() else 0


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    return PreparedData(prepare(tmp_path_factory.mktemp("data")))


def train(folder: Path, data: PreparedData, **changes: Any) -> Outcome:
    """Fields of the configuration, or options of `run`."""
    names = [name for name in ("stop", "metric", "group", "tensorboard") if name in changes]
    options = {"stop": Asked(), **{name: changes.pop(name) for name in names}}
    config = train_config(**{"max_steps": 20, "validate_every": 4, **changes})
    return run(folder, data, small_config(), config, device=CPU, **options)


def entries(folder: Path, kind: str) -> dict[int, dict[str, Any]]:
    return {e["step"]: e for e in read_log(folder / "log.jsonl") if e["kind"] == kind}


def steps(folder: Path) -> list[int]:
    return Checkpoints(folder / "checkpoints").steps()


def scripted(*scores: float) -> tuple[RunMetric, list[bool]]:
    """A metric with these values, one after the other; the modes it saw the model in."""
    values, modes = iter(scores), []

    def compute(model: Model, hurry: Callable[[], bool]) -> float:
        modes.append(model.training)
        return next(values)

    return RunMetric("score", compute), modes


def test_what_a_run_leaves(tmp_path: Path, data: PreparedData) -> None:
    outcome = train(tmp_path, data)
    assert (outcome.code, outcome.step, outcome.averaged) == (0, 20, [20])
    assert outcome.checkpoint == tmp_path / "checkpoints" / "step-00000020"
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["checkpoints", "log.jsonl", "model", "vocab.txt"]
    training, validation = entries(tmp_path, "train"), entries(tmp_path, "valid")
    assert list(training) == list(validation) == [4, 8, 12, 16, 20]
    assert training[20]["epoch"] >= 2
    assert training[20]["lr"] == pytest.approx(3e-3 * (10 / 19) ** 0.5)
    assert validation[20]["loss"] < validation[4]["loss"]
    assert training[20]["tokens"] == outcome.progress.tokens
    # The exported model is that of the last checkpoint, with its vocabulary.
    model = lightconv.load(tmp_path / "model")
    last = Checkpoints(tmp_path / "checkpoints").load(20).tensors["model"]
    assert all(torch.equal(last[name], tensor) for name, tensor in parameters(model).items())
    assert (tmp_path / "model" / "vocab.txt").read_bytes() == (tmp_path / "vocab.txt").read_bytes()


def test_a_log_entry_is_the_mean_since_the_last(tmp_path: Path, data: PreparedData) -> None:
    train(tmp_path / "a", data, log_every=4, max_steps=8)
    train(tmp_path / "b", data, log_every=1, max_steps=8)
    one, many = entries(tmp_path / "b", "train"), entries(tmp_path / "a", "train")
    tokens = {step: one[step]["tokens"] - one[step - 1]["tokens"] for step in range(5, 9)}
    for name in ("loss", "nll"):
        total = sum(one[step][name] * tokens[step] for step in tokens)
        assert many[8][name] == pytest.approx(total / sum(tokens.values()), rel=1e-12)


def test_stops_change_nothing(
    tmp_path: Path, data: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked to stop after every update: the same run, its averaged model included."""
    changes: dict[str, Any] = {
        "max_steps": 14,
        "average_last": 3,
        "keep_last": 3,
        "optimizer": NesterovConfig(momentum=0.9),
    }
    train(tmp_path / "whole", data, **changes)
    updates: list[int] = []
    observe(monkeypatch, Trainer, "update", after=lambda trainer: updates.append(trainer.step))
    stops = []
    while (outcome := train(tmp_path / "parts", data, stop=Asked(updates.copy), **changes)).code:
        assert outcome.code == 75
        assert outcome.checkpoint.is_dir()
        assert not (tmp_path / "parts" / "model").exists()
        stops.append(outcome.step)
        updates.clear()
    # After one update, or two where the second has a single batch. Some stops are in the middle of
    # a validation, which is begun anew.
    assert stops == sorted(set(stops)) and len(stops) >= 7
    assert {4, 14} <= set(stops)
    whole, parts = fingerprint(tmp_path / "whole"), fingerprint(tmp_path / "parts")
    # What was left to fall back to is another one.
    kept = set(whole.pop("steps")) & set(parts.pop("steps"))
    assert {5, 10, 14} <= kept
    odd = {f"{step} " for step in range(14) if step not in kept}
    for found in (whole, parts):
        for key in [key for key in found if key.startswith(tuple(odd))]:
            del found[key]
    assert parts == whole


def test_a_stop_in_the_middle_of_an_update(tmp_path: Path, data: PreparedData) -> None:
    """An update may take minutes: it is given up, and done again."""
    changes = {"tokens_per_update": 400, "max_steps": 4}
    train(tmp_path / "whole", data, **changes)
    calls: list[int] = []
    stop = Asked(lambda: calls.append(1) or len(calls) > 15)
    outcome = train(tmp_path / "parts", data, stop=stop, **changes)
    # Seven batches or more in each update, of which the third was not completed.
    assert (outcome.code, outcome.step) == (75, 2)
    assert len(calls) < 20
    assert train(tmp_path / "parts", data, **changes).code == 0
    whole, parts = fingerprint(tmp_path / "whole"), fingerprint(tmp_path / "parts")
    assert parts["4 model"] == whole["4 model"]
    assert parts["log"] == whole["log"]


def test_the_best_is_kept(tmp_path: Path, data: PreparedData) -> None:
    metric, modes = scripted(1.0, 5.0, 2.0, 3.0, 4.0)
    outcome = train(tmp_path, data, metric=metric, save_every=6, keep_last=2)
    # 8 is no multiple of 6, but was the best.
    assert steps(tmp_path) == [8, 18, 20]
    assert Checkpoints(tmp_path / "checkpoints").ranking()[0] == 8
    assert outcome.progress.best_step == 8
    assert modes == [False] * 5
    assert entries(tmp_path, "valid")[8]["metric"] == {"score": 5.0}
    assert entries(tmp_path, "valid")[16]["best"] == 8


def test_less_may_be_better_and_none_kept_for_it(tmp_path: Path, data: PreparedData) -> None:
    metric = scripted(3.0, 1.0, 2.0, 2.0, 2.0)[0]._replace(higher=False)
    outcome = train(tmp_path, data, metric=metric, save_every=6, keep_last=2, keep_best=0)
    assert (outcome.progress.best_step, outcome.progress.best) == (8, -1.0)
    assert steps(tmp_path) == [18, 20]


def test_patience_ends_the_run_and_stays_ended(
    tmp_path: Path, data: PreparedData, capsys: pytest.CaptureFixture[str]
) -> None:
    metric, _ = scripted(1.0, 2.0, 2.0, 1.5, 9.0)
    outcome = train(tmp_path, data, metric=metric, patience=2, average_last=1)
    # The mean of one is the end, not the last regular step.
    assert (outcome.code, outcome.step, outcome.averaged) == (0, 16, [16])
    assert (tmp_path / "model").is_dir()
    assert "2 validations in a row without a better one" in capsys.readouterr().err
    again = train(tmp_path, data, metric=metric, patience=2, average_last=1)
    assert (again.code, again.step) == (0, 16)


def test_the_average_is_that_of_the_last_regular_checkpoints(
    tmp_path: Path, data: PreparedData
) -> None:
    outcome = train(tmp_path, data, average_last=3, keep_last=3)
    assert outcome.averaged == [10, 15, 20]
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    tensors = [checkpoints.load(step).tensors["model"] for step in outcome.averaged]
    model = lightconv.load(tmp_path / "model")
    for name, tensor in parameters(model).items():
        mean = torch.stack([t[name].double() for t in tensors]).mean(0)
        torch.testing.assert_close(tensor, mean.float())


def test_the_moving_average_is_exported(tmp_path: Path, data: PreparedData) -> None:
    train(tmp_path, data, ema=0.9)
    stored = Checkpoints(tmp_path / "checkpoints").load(20).tensors
    model = lightconv.load(tmp_path / "model")
    for name, tensor in parameters(model).items():
        assert torch.equal(tensor, stored["ema"][name])
        assert not torch.equal(tensor, stored["model"][name])


def test_other_data_is_refused(tmp_path: Path, data: PreparedData) -> None:
    train(tmp_path / "run", data, max_steps=5)
    other = PreparedData(prepare(tmp_path / "data", batches=6))
    with pytest.raises(ValueError, match=r"begun with other data: train: \w{12} -> \w{12}\."):
        train(tmp_path / "run", other, max_steps=5)


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, data: PreparedData, capfd: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "whole", data)
    train(tmp_path / "run", data, stop=Asked(lambda: len(steps(tmp_path / "run")) == 3))
    *_, before, last = steps(tmp_path / "run")
    newest = tmp_path / "run" / "checkpoints" / f"step-{last:08d}"
    (newest / "model.safetensors").write_bytes(b"broken")
    capfd.readouterr()
    train(tmp_path / "run", data)
    err = capfd.readouterr().err
    assert f"the checkpoint of step {last} is damaged: " in err
    assert f"resumed from step {before} " in err
    whole, parts = fingerprint(tmp_path / "whole"), fingerprint(tmp_path / "run")
    assert parts["20 model"] == whole["20 model"]
    assert parts["log"] == whole["log"]


def test_another_machine_is_told(
    tmp_path: Path,
    data: PreparedData,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train(tmp_path, data, max_steps=5)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    capfd.readouterr()
    train(tmp_path, data, max_steps=5)
    assert "other machine: threads 1 -> 64. " in capfd.readouterr().err


def test_divergence_names_the_last_checkpoint(
    tmp_path: Path, data: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(trainer: Trainer) -> None:
        if trainer.step == 7:
            next(trainer.model.parameters()).data.fill_(float("nan"))

    observe(monkeypatch, Trainer, "update", spoil)
    with pytest.raises(DivergenceError, match=r"step 17: .*last checkpoint is .*step-00000015$"):
        train(tmp_path, data)
    assert entries(tmp_path, "train")[16]["skipped"] == 9


def test_skips_and_the_loss_scale_are_remembered(tmp_path: Path, data: PreparedData) -> None:
    overflow = Overflow(2, 3)
    stop = Asked(lambda: overflow.seen >= 5)
    changes = {"precision": "fp16", "max_steps": 8, "validate_every": 100}
    train(tmp_path, data, group=overflow, stop=stop, **changes)
    assert 5 <= steps(tmp_path)[-1] < 8
    train(tmp_path, data, **changes)
    values = Checkpoints(tmp_path / "checkpoints").load(8).values["trainer"]
    assert (values["skipped"], values["scale"], values["good"]) == (2, FIRST_SCALE / 4, 5)
    assert entries(tmp_path, "train")[8]["skipped"] == 2


def test_a_full_disk_names_the_last_checkpoint(
    tmp_path: Path, data: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Log.write

    def write(self: Log, entry: dict[str, Any]) -> None:
        if entry["step"] == 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        real(self, entry)

    monkeypatch.setattr(Log, "write", write)
    with pytest.raises(OSError, match=r"log.jsonl: No space left .*checkpoint is .*step-00000005$"):
        train(tmp_path, data)


def test_tensorboard_files_are_written(tmp_path: Path, data: PreparedData) -> None:
    pytest.importorskip("tensorboardX")
    train(tmp_path, data, max_steps=4, tensorboard=True)
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_a_window_leaves_out_what_was_skipped() -> None:
    window = Window()
    window.add(Record(1, 2.0, 10, 0.1, nll=1.0))
    window.add(Record(2, float("nan"), 10, 0.1, skipped=True))
    window.add(Record(3, 4.0, 30, 0.1, nll=3.0))
    assert (window.loss, window.nll, window.tokens) == (140.0, 100.0, 40)


# --- What it costs


def test_the_parts_of_a_run_add_up(
    tmp_path: Path, data: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    walls: list[float] = []

    def clock(loop: Loop) -> None:
        walls.append(time.perf_counter())

    observe(monkeypatch, Loop, "run", clock, clock)
    seconds = train(tmp_path, data).progress.seconds
    wall = walls[1] - walls[0]
    assert set(seconds) == {"loading", "updates", "logging", "validation", "checkpoints"}
    assert 0.8 * wall < sum(seconds.values()) <= wall
    # Each part has its own: checkpoints wait for the disk, so they are not nothing.
    assert all(spent > 0.0 for spent in seconds.values())


def test_freed_memory_is_kept_while_a_run_lasts(
    tmp_path: Path, data: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("__enter__", "release", "__exit__"):
        observe(monkeypatch, Allocator, name, lambda self, name=name: calls.append(name))
    train(tmp_path, data, max_steps=5)
    assert calls == ["__enter__", *["release"] * 5, "__exit__"]
