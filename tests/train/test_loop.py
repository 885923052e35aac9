"""A run: what is done when, what is kept, and that nothing of it depends on interruptions."""

import errno
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lightconv
from lightconv.data import Position
from lightconv.models.tensors import parameters
from lightconv.train import (
    DivergenceError,
    Group,
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

OPTIONS = ("stop", "metric", "group", "tensorboard")


class Asked(Stop):
    """Somebody wants to stop as soon as `when` is true."""

    def __init__(self, when: Callable[[], object] = lambda: False) -> None:
        super().__init__()
        self._when = when

    @property
    def code(self) -> int:
        return 75 if self._when() else 0


class Runs:
    """Runs with the same data in a folder of their own each."""

    def __init__(self, folder: Path, data: PreparedData) -> None:
        self.folder = folder
        self.data = data

    def __call__(self, name: str = "run", **changes: Any) -> Outcome:
        """Trains with these fields of the configuration, or options of `run`."""
        options = {"stop": Asked(), **{k: changes.pop(k) for k in OPTIONS if k in changes}}
        config = train_config(**{"max_steps": 20, "validate_every": 4, **changes})
        return run(self.folder / name, self.data, small_config(), config, **options)

    def entries(self, kind: str, name: str = "run") -> dict[int, dict[str, Any]]:
        found = read_log(self.folder / name / "log.jsonl")
        return {entry["step"]: entry for entry in found if entry["kind"] == kind}

    def checkpoints(self, name: str = "run") -> Checkpoints:
        return Checkpoints(self.folder / name / "checkpoints")

    def exported(self) -> dict[str, torch.Tensor]:
        return parameters(lightconv.load(self.folder / "run" / "model"))

    def fingerprints(self, one: str = "run", two: str = "whole") -> list[dict[str, Any]]:
        return [fingerprint(self.folder / name) for name in (one, two)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    return PreparedData(prepare(tmp_path_factory.mktemp("data")))


@pytest.fixture
def train(tmp_path: Path, data: PreparedData) -> Runs:
    return Runs(tmp_path, data)


def scripted(*scores: float) -> tuple[RunMetric, list[bool]]:
    """A metric with these values, one after the other; the modes it saw the model in."""
    values, modes = iter(scores), []

    def compute(model: Model, hurry: Callable[[], bool]) -> float:
        modes.append(model.training)
        return next(values)

    return RunMetric("score", compute), modes


def test_what_a_run_leaves(train: Runs) -> None:
    outcome, folder = train(), train.folder / "run"
    assert (outcome.code, outcome.step, outcome.averaged) == (0, 20, [20])
    assert outcome.checkpoint == folder / "checkpoints" / "step-00000020"
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["checkpoints", "log.jsonl", "model", "vocab.txt"]
    training, validation = train.entries("train"), train.entries("valid")
    assert list(training) == list(validation) == [4, 8, 12, 16, 20]
    assert training[20]["epoch"] >= 2
    assert training[20]["lr"] == pytest.approx(3e-3 * (10 / 19) ** 0.5)
    assert validation[20]["loss"] < validation[4]["loss"]
    assert training[20]["tokens"] == outcome.progress.tokens
    # The exported model is that of the last checkpoint, with its vocabulary.
    last = train.checkpoints().load(20).tensors["model"]
    assert all(torch.equal(last[name], tensor) for name, tensor in train.exported().items())
    assert (folder / "model" / "vocab.txt").read_bytes() == (folder / "vocab.txt").read_bytes()


def test_a_log_entry_is_the_mean_since_the_last(train: Runs) -> None:
    train("a", log_every=4, max_steps=8)
    train("b", log_every=1, max_steps=8)
    one, many = train.entries("train", "b"), train.entries("train", "a")
    tokens = {step: one[step]["tokens"] - one[step - 1]["tokens"] for step in range(5, 9)}
    for name in ("loss", "nll"):
        total = sum(one[step][name] * tokens[step] for step in tokens)
        assert many[8][name] == pytest.approx(total / sum(tokens.values()), rel=1e-12)


def test_stops_change_nothing(train: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked to stop after every update: the same run, its averaged model included."""
    optimizer = NesterovConfig(momentum=0.9)
    changes = {"max_steps": 14, "average_last": 3, "keep_last": 3, "optimizer": optimizer}
    train("whole", **changes)
    updates: list[int] = []
    observe(monkeypatch, Trainer, "update", after=lambda trainer: updates.append(trainer.step))
    stops = []
    while (outcome := train(stop=Asked(updates.copy), **changes)).code:
        assert outcome.code == 75
        assert outcome.checkpoint.is_dir()
        assert not (train.folder / "run" / "model").exists()
        stops.append(outcome.step)
        updates.clear()
    # After one update, or two where the second has a single batch. Some stops are in the middle of
    # a validation, which is begun anew.
    assert stops == sorted(set(stops)) and len(stops) >= 7
    assert {4, 14} <= set(stops)
    parts, whole = train.fingerprints()
    # What was left to fall back to is another one.
    kept = set(whole.pop("steps")) & set(parts.pop("steps"))
    assert {5, 10, 14} <= kept
    odd = tuple(f"{step} " for step in range(14) if step not in kept)
    parts, whole = ({k: v for k, v in d.items() if not k.startswith(odd)} for d in (parts, whole))
    assert parts == whole


def test_a_stop_in_the_middle_of_an_update(train: Runs) -> None:
    """An update may take minutes: it is given up, and done again."""
    changes = {"tokens_per_update": 400, "max_steps": 4}
    train("whole", **changes)
    calls: list[int] = []
    stop = Asked(lambda: calls.append(1) or len(calls) > 15)
    outcome = train(stop=stop, **changes)
    # Seven batches or more in each update, of which the third was not completed.
    assert (outcome.code, outcome.step) == (75, 2)
    assert len(calls) < 20
    assert train(**changes).code == 0
    parts, whole = train.fingerprints()
    assert parts["4 model"] == whole["4 model"]
    assert parts["log"] == whole["log"]


def test_a_stop_in_the_middle_of_validation(train: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    train("whole", max_steps=8)
    begun: list[int] = []
    with monkeypatch.context() as patch:
        observe(patch, Trainer, "measure", lambda trainer: begun.append(trainer.step))
        outcome = train(stop=Asked(begun.copy), max_steps=8)
    assert (outcome.code, outcome.step) == (75, 4)
    assert not train.entries("valid")
    assert train(max_steps=8).code == 0
    parts, whole = train.fingerprints()
    assert parts == whole


def test_the_best_is_kept(train: Runs) -> None:
    metric, modes = scripted(1.0, 5.0, 2.0, 3.0, 4.0)
    outcome = train(metric=metric, save_every=6, keep_last=2)
    # 8 is no multiple of 6, but was the best.
    assert train.checkpoints().steps() == [8, 18, 20]
    assert train.checkpoints().ranking()[0] == outcome.progress.best_step == 8
    assert modes == [False] * 5
    assert train.entries("valid")[8]["metric"] == {"score": 5.0}
    assert train.entries("valid")[16]["best"] == 8


def test_less_may_be_better_and_none_kept_for_it(train: Runs) -> None:
    metric = scripted(3.0, 1.0, 2.0, 2.0, 2.0)[0]._replace(higher=False)
    outcome = train(metric=metric, save_every=6, keep_last=2, keep_best=0)
    assert (outcome.progress.best_step, outcome.progress.best) == (8, -1.0)
    assert train.checkpoints().steps() == [18, 20]


def test_patience_ends_the_run_and_stays_ended(
    train: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    metric, _ = scripted(1.0, 2.0, 2.0, 1.5, 9.0)
    # The mean of one is the end, not the last regular step.
    for again in (False, True):
        outcome = train(metric=metric, patience=2, average_last=1)
        assert (outcome.code, outcome.step, outcome.averaged) == (0, 16, [16])
        said = "it has ended" if again else "2 validations in a row without a better one"
        assert said in capsys.readouterr().err
    assert (train.folder / "run" / "model").is_dir()


def test_the_average_is_that_of_the_last_regular_checkpoints(train: Runs) -> None:
    outcome = train(average_last=3, keep_last=3)
    assert outcome.averaged == [10, 15, 20]
    tensors = [train.checkpoints().load(step).tensors["model"] for step in outcome.averaged]
    for name, tensor in train.exported().items():
        mean = torch.stack([t[name].double() for t in tensors]).mean(0)
        torch.testing.assert_close(tensor, mean.float())


def test_the_moving_average_is_exported(train: Runs) -> None:
    train(ema=0.9)
    stored = train.checkpoints().load(20).tensors
    for name, tensor in train.exported().items():
        assert torch.equal(tensor, stored["ema"][name])
        assert not torch.equal(tensor, stored["model"][name])


def test_other_data_is_refused(train: Runs) -> None:
    train(max_steps=5)
    train.data = PreparedData(prepare(train.folder / "data", batches=6))
    with pytest.raises(ValueError, match=r"begun with other data: train: \w{12} -> \w{12}\."):
        train(max_steps=5)


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    train: Runs, capfd: pytest.CaptureFixture[str]
) -> None:
    train("whole")
    train(stop=Asked(lambda: len(train.checkpoints().steps()) == 3))
    *_, before, last = train.checkpoints().steps()
    (train.checkpoints().path(last) / "model.safetensors").write_bytes(b"broken")
    capfd.readouterr()
    train()
    err = capfd.readouterr().err
    assert f"the checkpoint of step {last} is damaged: " in err
    assert f"resumed from step {before} " in err
    parts, whole = train.fingerprints()
    assert parts["20 model"] == whole["20 model"]
    assert parts["log"] == whole["log"]


def test_another_machine_is_told(
    train: Runs, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train(max_steps=5)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    capfd.readouterr()
    train(max_steps=5)
    assert "other machine: threads 1 -> 64. " in capfd.readouterr().err


def test_divergence_names_the_last_checkpoint(train: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(trainer: Trainer) -> None:
        if trainer.step == 7:
            next(trainer.model.parameters()).data.fill_(float("nan"))

    observe(monkeypatch, Trainer, "update", spoil)
    with pytest.raises(DivergenceError, match=r"step 17: .*last checkpoint is .*step-00000015$"):
        train()
    assert train.entries("train")[16]["skipped"] == 9


def test_skips_and_the_loss_scale_are_remembered(train: Runs) -> None:
    overflow = Overflow(2, 3)
    changes = {"precision": "fp16", "max_steps": 8, "validate_every": 100}
    train(group=overflow, stop=Asked(lambda: overflow.seen >= 5), **changes)
    # Two of the five updates were left out and are no steps.
    assert 3 <= train.checkpoints().steps()[-1] < 8
    train(**changes)
    values = train.checkpoints().load(8).values["trainer"]
    assert (values["skipped"], values["scale"], values["good"]) == (2, FIRST_SCALE / 4, 7)
    assert train.entries("train")[8]["skipped"] == 2
    with train.data.updates(Position(1), train_config(), Group()) as updates:
        for _ in range(8 + 2):
            next(updates)
    assert train.checkpoints().load(8).values["progress"]["position"] == [*updates.position]


class Narrow(Group):
    """Gradients above a bound overflow, as in fp16: it depends on the scale and on nothing else."""

    def norm(self, model: nn.Module) -> torch.Tensor:
        size = super().norm(model)
        return size if size < 4000.0 else size * math.inf


def test_stops_between_updates_that_are_left_out_change_nothing(
    train: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps, rates and the data come back as if nothing had been stopped."""
    monkeypatch.setattr("lightconv.train.optim.GROW_AFTER", 6)  # three updates of two batches
    changes = {"precision": "fp16", "max_steps": 9, "log_every": 1, "validate_every": 3}
    whole = train("whole", group=Narrow(), **changes)
    assert whole.skipped > 2 and list(train.entries("train", "whole")) == [*range(1, 10)]
    updates: list[int] = []
    observe(monkeypatch, Trainer, "update", after=lambda trainer: updates.append(trainer.step))
    # Two updates at a time: one alone that is left out at a saved step would never end.
    asked = Asked(lambda: len(updates) >= 2 and updates[-1] > updates[0])
    while train(group=Narrow(), stop=asked, **changes).code:
        updates.clear()
    one, two = train.fingerprints()
    assert one["log"] == two["log"]
    ends = {key for key in two if key.startswith(("9", "model"))}
    assert {key: one[key] for key in ends} == {key: two[key] for key in ends}


@pytest.mark.parametrize("step, last", [(4, "There is no checkpoint yet"), (8, "step-00000005")])
def test_a_full_disk_names_the_last_checkpoint(
    step: int, last: str, train: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Log.write

    def write(self: Log, entry: dict[str, Any]) -> None:
        if entry["step"] == step:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        real(self, entry)

    monkeypatch.setattr(Log, "write", write)
    with pytest.raises(OSError, match=rf"log.jsonl: No space left .*{last}$"):
        train()


def test_tensorboard_files_are_written(train: Runs) -> None:
    pytest.importorskip("tensorboardX")
    train(max_steps=4, tensorboard=True)
    assert list((train.folder / "run" / "tensorboard").glob("events.*"))


def test_a_window_leaves_out_what_was_skipped() -> None:
    window = Window()
    window.add(Record(1, 2.0, 10, 0.1, nll=1.0))
    window.add(Record(2, float("nan"), 10, 0.1, skipped=True))
    window.add(Record(3, 4.0, 30, 0.1, nll=3.0))
    assert (window.loss, window.nll, window.tokens) == (140.0, 100.0, 40)


# --- What it costs


def test_the_parts_of_a_run_add_up(train: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    walls: list[float] = []

    def clock(loop: Loop) -> None:
        walls.append(time.perf_counter())

    observe(monkeypatch, Loop, "run", clock, clock)
    seconds = train().progress.seconds
    wall = walls[1] - walls[0]
    assert set(seconds) == {"loading", "updates", "logging", "validation", "checkpoints"}
    assert 0.8 * wall < sum(seconds.values()) <= wall
    # Each part has its own: checkpoints wait for the disk, so they are not nothing.
    assert all(spent > 0.0 for spent in seconds.values())


def test_freed_memory_is_kept_while_a_run_lasts(
    train: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("__enter__", "release", "__exit__"):
        observe(monkeypatch, Allocator, name, lambda self, name=name: calls.append(name))
    train(max_steps=5)
    assert calls == ["__enter__", *["release"] * 5, "__exit__"]
