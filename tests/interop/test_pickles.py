"""Checkpoints are data: classes of others are holders of values, whatever they are called."""

import argparse
import enum
import sys
import types
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightconv.interop.fairseq import read_model
from lightconv.interop.pickles import Inert, read_pickle, settings
from tests.interop.writer import PAIR, arguments, make, state_of

both_formats = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


@contextmanager
def pretend(name: str, *classes: type) -> Iterator[None]:
    """Makes classes seem to live in a module that is gone again when the file is read."""
    parts = name.split(".")
    modules = [".".join(parts[: n + 1]) for n in range(len(parts))]
    for module in modules:
        sys.modules[module] = types.ModuleType(module)
    for cls in classes:
        cls.__module__, cls.__qualname__ = name, cls.__name__
        setattr(sys.modules[name], cls.__name__, cls)
    try:
        yield
    finally:
        for module in modules:
            del sys.modules[module]


class AverageMeter:
    def __init__(self) -> None:
        self.avg = 3.5


class DictConfig:
    def __init__(self, content: dict[str, Any]) -> None:
        self._content = {key: AnyNode(value) for key, value in content.items()}
        self._metadata = {"ref_type": Any}


class ListConfig:
    def __init__(self, content: list[Any]) -> None:
        self._content = [AnyNode(value) for value in content]


class AnyNode:
    def __init__(self, value: Any) -> None:
        self._val = value


class Choice(enum.Enum):
    RELU = "relu"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Choice, (self.value,)  # as Pythons before 3.11 did


@both_formats
def test_meters_and_numbers_of_training_are_no_obstacle(zipped: bool, tmp_path: Path) -> None:
    """What the original keeps in `extra_state` when it saves while it trains."""
    model = make(PAIR)
    extra = {
        "train_meters": OrderedDict(loss=AverageMeter()),
        "best": np.float64(3.25),
        "counts": defaultdict(int, {"a": 1}),
        "seen": {1, 2},
    }
    checkpoint = {
        "args": argparse.Namespace(**arguments(PAIR)),
        "model": OrderedDict(state_of(model, "2019")),
        "extra_state": extra,
    }
    path = tmp_path / "checkpoint.pt"
    with pretend("fairseq.meters", AverageMeter):
        torch.save(checkpoint, path, _use_new_zipfile_serialization=zipped)
    found = read_pickle(path)["extra_state"]
    assert isinstance(found["train_meters"]["loss"], Inert)
    assert found["train_meters"]["loss"].state == {"avg": 3.5}
    assert found["counts"] == {"a": 1}
    assert read_model(path).model.config == PAIR
    assert "fairseq" not in sys.modules


@both_formats
def test_a_pickled_omegaconf_is_read_without_it(zipped: bool, tmp_path: Path) -> None:
    args = arguments(PAIR)
    args["encoder_kernel_size_list"] = ListConfig(args["encoder_kernel_size_list"])
    args["activation_fn"] = Choice.RELU
    cfg = DictConfig({"model": DictConfig(args), "task": DictConfig({"source_lang": "de"})})
    checkpoint = {"args": None, "cfg": cfg, "model": state_of(make(PAIR), "v0.12")}
    path = tmp_path / "checkpoint.pt"
    with (
        pretend("omegaconf.dictconfig", DictConfig, ListConfig, AnyNode),
        pretend("fairseq.dataclass.constants", Choice),
    ):
        torch.save(checkpoint, path, _use_new_zipfile_serialization=zipped)
    found = read_model(path)
    assert found.model.config == PAIR
    assert found.task["source_lang"] == "de"
    assert "omegaconf" not in sys.modules


def test_settings_are_plain_values() -> None:
    space = argparse.Namespace(a=1, b="x", c=[1, 2.5], d=None, e={"no": 1}, f=[[1]], g=(True,))
    found = {"a": 1, "b": "x", "c": [1, 2.5], "d": None, "e": None, "f": None, "g": [True]}
    assert settings(space) == found
    assert settings({"a": 1, 3: 4}) == {"a": 1}
    for nothing in (None, 3, [1], Inert(), Inert(1, 2)):
        assert settings(nothing) == {}


def test_an_archive_is_mapped_not_read(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save({"x": torch.arange(1000.0)}, path)
    found = read_pickle(path)["x"]
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(path) in maps.read_text()
    assert torch.equal(found, torch.arange(1000.0))
    found[0] = 7.0  # a private mapping
    assert read_pickle(path)["x"][0] == 0.0
