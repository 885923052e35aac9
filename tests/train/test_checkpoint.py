"""One checkpoint: what is written is read; R5: damage is found; models and optimisers resume."""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from lightconv.data import Position
from lightconv.models.tensors import parameters
from lightconv.train.checkpoints import (
    CheckpointFiles,
    Checkpoints,
    DamagedError,
    read_checkpoint,
)
from lightconv.train.config import AdamConfig, NesterovConfig
from lightconv.train.distributed import gather
from lightconv.train.optim import (
    build_optimizer,
    flatten_optimizer,
    restore_optimizer,
    restore_tensors,
)

FILES = ("manifest.json", "model.safetensors", "optimizer.safetensors", "state.json")
VALUES: dict[str, Any] = {
    "epoch": 3,
    "position": [1, 2, 3],
    "scale": 65536.0,
    "rate": 0.1 + 0.2,
    "name": "bad \ud800 text ü\0",
    "none": None,
    "numbers": [math.inf, -math.inf, math.nan],
    "flags": {"on": True, "off": False},
    "large": 2**80,
}


def tensors(step: int) -> dict[str, dict[str, torch.Tensor]]:
    weight, bias, average = torch.randn(3, 1024, generator=torch.Generator().manual_seed(step))
    return {
        "model": {"weight": weight, "bias": bias[:3]},
        "optimizer": {"state/weight/exp_avg": average, "state/weight/step": torch.tensor(1.0)},
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two checkpoints."""
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        checkpoints.save(100, tensors(100), VALUES)
        checkpoints.save(200, tensors(200), VALUES, score=-1.5)
    return tmp_path / "checkpoints"


def test_what_is_written_is_what_is_read(folder: Path) -> None:
    found = read_checkpoint(folder / "step-00000200")
    assert (found.step, found.score, found.skipped) == (200, -1.5, {})
    assert found.path == folder / "step-00000200"
    assert repr(found.values) == repr(VALUES)  # types, too, and NaN
    for part, named in tensors(200).items():
        assert found.tensors[part].keys() == named.keys()
        for name, tensor in named.items():
            assert torch.equal(found.tensors[part][name], tensor)
    assert read_checkpoint(folder / "step-00000100").score is None


@pytest.mark.parametrize(
    "values, message",
    [
        ({"a": (1, 2)}, r"values\.a=\(1, 2\), expected lists"),
        ({"a": {"b": [0, [Position(1)]]}}, r"values\.a\.b\.1\.0=Position\("),
        ({"a": [{3: "c"}]}, r"values\.a\.0=\{3: 'c'\}.* names as keys"),
        ({"a": torch.ones(1)}, "not JSON serializable"),
    ],
)
def test_what_would_be_read_as_something_else_is_refused(
    values: dict[str, Any], message: str, folder: Path
) -> None:
    with pytest.raises(TypeError, match=message):
        Checkpoints(folder).save(300, tensors(300), values)
    assert Checkpoints(folder).steps() == [100, 200]
    assert not list(folder.glob(".step*"))


def test_the_files(folder: Path) -> None:
    path = folder / "step-00000200"
    assert sorted(file.name for file in path.iterdir()) == list(FILES)
    data = {name: (path / name).read_bytes() for name in FILES[1:]}
    assert json.loads((path / "manifest.json").read_text())["files"] == {
        name: {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}
        for name, text in data.items()
    }
    assert torch.equal(load_file(path / "model.safetensors")["bias"], tensors(200)["model"]["bias"])
    state = json.loads(data["state.json"])
    assert repr(state) == repr({"step": 200, "score": -1.5, "values": VALUES})


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_cut_or_gone(name: str, folder: Path) -> None:
    path = folder / "step-00000200" / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedError):
        CheckpointFiles(path.parent).verify()
    path.unlink()
    with pytest.raises(DamagedError, match=name):
        CheckpointFiles(folder / "step-00000200").verify()
    CheckpointFiles(folder / "step-00000100").verify()
    found = Checkpoints(folder).latest()
    assert found.step == 100
    assert name in found.skipped[200]


def test_only_what_is_read_is_verified(folder: Path) -> None:
    path = folder / "step-00000200"
    (path / "optimizer.safetensors").write_bytes(b"")
    files = CheckpointFiles(path)
    assert torch.equal(files.part("model")["weight"], tensors(200)["model"]["weight"])
    assert files.state()["step"] == 200
    with pytest.raises(DamagedError, match=r"optimizer\.safetensors: 0 bytes, expected"):
        files.part("optimizer")
    with pytest.raises(DamagedError, match=r"has no ema\.safetensors"):
        files.part("ema")


STATES = [
    b"",
    b"[]",
    b"{",
    b"\xff",
    b"[" * 100_000,
    b'{"step": 1}',
    b'{"step": "1", "score": null, "values": {}}',
    b'{"step": 1, "score": "high", "values": {}}',
    b'{"step": 1, "score": null, "values": []}',
    b'{"step": 1, "values": {}}',
]


@pytest.mark.parametrize(
    "name, data, message",
    [
        *(("state.json", data, "state.json: ") for data in STATES),
        *(
            ("model.safetensors", data, "model.safetensors is damaged")
            for data in (b"", b"{}", b"\x80\x04N.", bytes(100))
        ),
    ],
)
def test_a_strange_file_with_the_right_digest(
    name: str, data: bytes, message: str, folder: Path
) -> None:
    path = folder / "step-00000200"
    (path / name).write_bytes(data)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DamagedError, match=re.escape(message)):
        read_checkpoint(path)


def test_a_file_of_another_checkpoint_or_from_elsewhere(folder: Path) -> None:
    old, new = (folder / f"step-00000{n}00" / "model.safetensors" for n in (1, 2))
    new.unlink()
    os.link(old, new)
    with pytest.raises(DamagedError, match=r"model\.safetensors: SHA-256 "):
        read_checkpoint(new.parent)
    new.unlink()
    new.symlink_to(old)
    with pytest.raises(DamagedError, match="a link that leaves its folder"):
        read_checkpoint(new.parent)


@pytest.mark.parametrize(
    "name, message",
    [
        ("../escape.safetensors", "manifest.json"),
        ("code.py", "manifest.json"),
        ("A.safetensors", "manifest.json"),
        ("x.pt", "manifest.json"),
        ("model.safetensors", "does not list model.safetensors"),
        ("state.json", "does not list state.json"),
    ],
)
def test_a_manifest_lists_all_and_nothing_else(name: str, message: str, folder: Path) -> None:
    path = folder / "step-00000200"
    manifest = json.loads((path / "manifest.json").read_text())
    files = manifest["files"]
    manifest["files"] = {k: v for k, v in files.items() if k != name}
    if name not in files:
        manifest["files"][name] = files["state.json"]
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DamagedError, match=re.escape(message)):
        read_checkpoint(path)


# --- Models and optimisers


class Net(nn.Module):
    """A tied matrix, a parameter without a gradient, a buffer, one laid out the other way."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(7, 4)
        self.layer = nn.Linear(4, 4)
        self.unused = nn.Parameter(torch.ones(2))
        self.strided = nn.Parameter(torch.randn(3, 4).T)
        self.scale = nn.Parameter(torch.randn(()))
        self.output = nn.Linear(4, 7, bias=False)
        self.output.weight = self.embedding.weight
        self.register_buffer("count", torch.tensor(seed))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.layer(self.embedding(tokens)) * self.scale
        scores: Tensor = self.output(x + (x @ self.strided).mean(-1, keepdim=True))
        return scores


def train(model: Net, optimizer: torch.optim.Optimizer, steps: Iterable[int]) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(0, 7, (5, 6), generator=generator)
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (step + 1)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()


def equal(a: Any, b: Any) -> bool:
    """Equal in every bit, for states and options."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        pairs = zip(a, b, strict=True)
        return type(a) is type(b) and len(a) == len(b) and all(equal(x, y) for x, y in pairs)
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
    return type(a) is type(b) and bool(a == b)


OPTIMIZERS = {"adam": AdamConfig(weight_decay=0.01), "nesterov": NesterovConfig(momentum=0.9)}


def optimizer_of(model: nn.Module, kind: str = "adam") -> torch.optim.Optimizer:
    return build_optimizer(model.parameters(), 0.1, OPTIMIZERS[kind])


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_goes_on_as_if_nothing_had_happened(kind: str, steps: int, tmp_path: Path) -> None:
    model = Net(1)
    optimizer = optimizer_of(model, kind)
    train(model, optimizer, range(steps))
    state, values = flatten_optimizer(optimizer, model)
    checkpoints = Checkpoints(tmp_path)
    parts = {"model": parameters(model), "optimizer": state}
    checkpoints.save(steps, parts, {"optimizer": values})
    found = checkpoints.load(steps)

    other = Net(2)
    fresh = optimizer_of(other, kind)
    train(other, fresh, range(7, 9))  # what it has is not what it gets
    restore_tensors(parameters(other), found.tensors["model"])
    restore_optimizer(fresh, other, found.tensors["optimizer"], found.values["optimizer"])
    assert equal(fresh.state_dict(), optimizer.state_dict())
    train(model, optimizer, range(steps, steps + 3))
    train(other, fresh, range(steps, steps + 3))
    assert equal(fresh.state_dict(), optimizer.state_dict())
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    assert torch.equal(model.get_buffer("count"), other.get_buffer("count"))
    assert other.output.weight is other.embedding.weight


def test_names_and_values() -> None:
    model = Net(1)
    optimizer = build_optimizer(model.parameters(), 0.25, AdamConfig(betas=(0.5, 0.75)))
    train(model, optimizer, range(3))
    state, values = flatten_optimizer(optimizer, model)
    trained = {"embedding.weight", "layer.weight", "layer.bias", "strided", "scale"}
    assert set(state) == {
        f"state/{name}/{key}" for name in trained for key in ("step", "exp_avg", "exp_avg_sq")
    }
    assert state["state/layer.bias/step"].item() == 3
    assert state["state/layer.bias/exp_avg"].shape == (4,)
    assert json.loads(json.dumps(values)) == values
    assert values["kind"] == "AdamW"
    (group,) = values["groups"]
    assert set(group["parameters"]) == {*trained, "unused"}
    assert group["options"]["betas"] == [0.5, 0.75]
    assert group["options"]["lr"] == 0.1 / 3
    assert set(values["state"]) == trained


def test_the_order_of_parameters_does_not_matter() -> None:
    model, other = Net(1), Net(1)
    optimizer = optimizer_of(model)
    train(model, optimizer, range(2))
    restore_tensors(parameters(other), parameters(model))
    fresh = build_optimizer(reversed(list(other.parameters())), 0.1, OPTIMIZERS["adam"])
    restore_optimizer(fresh, other, *flatten_optimizer(optimizer, model))
    train(model, optimizer, range(2, 5))
    train(other, fresh, range(2, 5))
    assert all(map(torch.equal, model.parameters(), other.parameters()))


def test_a_state_is_laid_out_like_its_parameter() -> None:
    model = Net(1)
    optimizer = optimizer_of(model)
    train(model, optimizer, range(2))
    state, values = flatten_optimizer(optimizer, model)
    saved = {name: tensor.contiguous() for name, tensor in state.items()}
    restore_optimizer(optimizer, model, saved, values)
    buffer = optimizer.state[model.strided]["exp_avg"]
    assert buffer.stride() == model.strided.stride() == (1, 4)
    # What it holds is its own, not what it was given.
    assert buffer.data_ptr() != saved["state/strided/exp_avg"].data_ptr()
    step = optimizer.state[model.scale]["step"]
    assert step.data_ptr() != saved["state/scale/step"].data_ptr()


def test_another_optimizer() -> None:
    model = Net(1)
    state = flatten_optimizer(optimizer_of(model), model)
    with pytest.raises(ValueError, match="state of AdamW, expected SGD"):
        restore_optimizer(optimizer_of(model, "nesterov"), model, *state)
    fewer = [p for p in model.parameters() if p is not model.unused]
    with pytest.raises(ValueError, match="unused is only in the checkpoint"):
        restore_optimizer(build_optimizer(fewer, 0.1, OPTIMIZERS["adam"]), model, *state)


def test_a_model_takes_only_what_fits() -> None:
    own, good = parameters(Net(1)), parameters(Net(2))
    before = {name: tensor.clone() for name, tensor in own.items()}
    lacking = {name: tensor for name, tensor in good.items() if name != "scale"}
    for given, message in (
        (lacking, "the checkpoint lacks scale, expected by the model"),
        (good | {"more": torch.ones(1)}, "the checkpoint has more, unknown to the model"),
        (good | {"scale": torch.ones(1)}, "scale has shape [1], expected []"),
        (good | {"scale": torch.ones((), dtype=torch.float64)}, "scale is torch.float64, expec"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            restore_tensors(own, given)
    assert all(torch.equal(tensor, before[name]) for name, tensor in own.items())


def test_sharded_parameters(tmp_path: Path) -> None:
    """FSDP2 on one rank: gathered to be saved, sharded again when restored."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    os.environ.setdefault("MASTER_ADDR", "localhost")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        models = [nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)) for _ in range(2)]
        first, second = [fully_shard(model) for model in models]
        for model in models:
            model.optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        _step(first)
        state, values = flatten_optimizer(first.optimizer, first)
        checkpoints = Checkpoints(tmp_path / "c")
        parts = {"model": gather(parameters(first)), "optimizer": gather(state)}
        checkpoints.save(1, parts, {"optimizer": values})
        found = checkpoints.load(1)
        restore_tensors(parameters(second), found.tensors["model"])
        optimizer = found.values["optimizer"]
        restore_optimizer(second.optimizer, second, found.tensors["optimizer"], optimizer)
        _step(first)
        _step(second)
        for a, b in zip(first.parameters(), second.parameters(), strict=True):
            assert type(a) is type(b)
            assert torch.equal(a.full_tensor(), b.full_tensor())
    finally:
        dist.destroy_process_group()


def _step(model: Any) -> None:
    model.optimizer.zero_grad()
    model(torch.ones(2, 3)).square().sum().backward()
    model.optimizer.step()
