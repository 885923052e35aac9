"""An optimiser that was saved and restored goes on as if nothing had happened, bit for bit."""

import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightconv.models.tensors import parameters
from lightconv.train.checkpoint import flatten_optimizer, restore_model, restore_optimizer
from lightconv.train.checkpoints import Checkpoints

Parameters = Iterable[nn.Parameter] | Iterable[dict[str, Any]]
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.9, 0.98), weight_decay=0.01),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True),
    "foreach": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "tensor_lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), foreach=False),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.99, nesterov=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, centered=True, momentum=0.5),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.1),
}
every_optimizer = pytest.mark.parametrize("kind", OPTIMIZERS)


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
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(0.1 / (step + 1))
            else:
                group["lr"] = 0.1 / (step + 1)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()


def groups(model: Net) -> list[dict[str, Any]]:
    """Two groups with options of their own."""
    thin = [p for p in model.parameters() if p.dim() < 2]
    wide = [p for p in model.parameters() if p.dim() >= 2]
    return [{"params": wide, "weight_decay": 0.05}, {"params": thin, "lr": 0.3}]


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


@every_optimizer
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_goes_on_as_if_nothing_had_happened(kind: str, steps: int, tmp_path: Path) -> None:
    model = Net(1)
    optimizer = OPTIMIZERS[kind](groups(model))
    train(model, optimizer, range(steps))
    state = flatten_optimizer(optimizer, model)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(
        steps,
        {"model": parameters(model), "optimizer": state.tensors},
        {"optimizer": state.values},
    )
    found = checkpoints.load(steps)

    other = Net(2)
    fresh = OPTIMIZERS[kind](groups(other))
    train(other, fresh, range(7, 9))  # what it has is not what it gets
    restore_model(other, found.tensors["model"])
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
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25, betas=(0.5, 0.75))
    train(model, optimizer, range(3))
    state = flatten_optimizer(optimizer, model)
    trained = {"embedding.weight", "layer.weight", "layer.bias", "strided", "scale"}
    assert set(state.tensors) == {
        f"state/{name}/{key}" for name in trained for key in ("step", "exp_avg", "exp_avg_sq")
    }
    assert state.tensors["state/layer.bias/step"].item() == 3
    assert state.tensors["state/layer.bias/exp_avg"].shape == (4,)
    values = json.loads(json.dumps(state.values))
    assert values == state.values
    assert values["kind"] == "AdamW"
    (group,) = values["groups"]
    assert set(group["parameters"]) == {*trained, "unused"}
    assert group["options"]["betas"] == [0.5, 0.75]
    assert group["options"]["lr"] == 0.1 / 3
    assert set(values["state"]) == trained


def test_the_order_of_parameters_does_not_matter() -> None:
    model, other = Net(1), Net(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    train(model, optimizer, range(2))
    restore_model(other, parameters(model))
    fresh = torch.optim.AdamW(reversed(list(other.parameters())), lr=0.1)
    restore_optimizer(fresh, other, *flatten_optimizer(optimizer, model))
    train(model, optimizer, range(2, 5))
    train(other, fresh, range(2, 5))
    assert all(map(torch.equal, model.parameters(), other.parameters()))


def test_how_it_computes_stays(tmp_path: Path) -> None:
    model = Net(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True)
    train(model, optimizer, range(2))
    fresh = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    restore_optimizer(fresh, model, *flatten_optimizer(optimizer, model))
    assert fresh.param_groups[0]["fused"] is True
    assert fresh.param_groups[0]["foreach"] is None
    assert fresh.param_groups[0]["lr"] == 0.1 / 2


def test_a_state_is_laid_out_like_its_parameter() -> None:
    model = Net(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    train(model, optimizer, range(2))
    state = flatten_optimizer(optimizer, model)
    saved = {name: tensor.contiguous() for name, tensor in state.tensors.items()}
    restore_optimizer(optimizer, model, saved, state.values)
    buffer = optimizer.state[model.strided]["exp_avg"]
    assert buffer.stride() == model.strided.stride() == (1, 4)
    # What it holds is its own, not what it was given.
    assert buffer.data_ptr() != saved["state/strided/exp_avg"].data_ptr()
    step = optimizer.state[model.scale]["step"]
    assert step.data_ptr() != saved["state/scale/step"].data_ptr()


def test_states_may_be_wider_than_parameters() -> None:
    model = Net(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    train(model, optimizer, range(1))
    state = flatten_optimizer(optimizer, model)
    wide = {name: tensor.double() for name, tensor in state.tensors.items()}
    restore_optimizer(optimizer, model, wide, state.values)
    assert optimizer.state[model.layer.bias]["exp_avg"].dtype == torch.float64


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m: torch.optim.SGD(m.parameters(), lr=1.0), "state of AdamW, expected SGD"),
        (lambda m: torch.optim.AdamW(groups(m)), "has 1 groups of parameters, expected 2"),
        (
            lambda m: torch.optim.AdamW([p for p in m.parameters() if p is not m.unused]),
            "group 0 has unused only in the checkpoint",
        ),
    ],
)
def test_another_optimizer(make: Callable[[Net], torch.optim.Optimizer], message: str) -> None:
    model = Net(1)
    state = flatten_optimizer(torch.optim.AdamW(model.parameters()), model)
    with pytest.raises(ValueError, match=message):
        restore_optimizer(make(model), model, *state)


def test_what_cannot_be_flattened() -> None:
    model = Net(1)
    strange = torch.optim.AdamW([*model.parameters(), nn.Parameter(torch.ones(3, 9))])
    with pytest.raises(ValueError, match=re.escape("a parameter of shape [3, 9] that the model")):
        flatten_optimizer(strange, model)
    optimizer = torch.optim.LBFGS(model.parameters())
    optimizer.state[model.scale]["old_dirs"] = [torch.ones(3)]  # as after some steps
    with pytest.raises(
        ValueError, match="state/scale/old_dirs is a list, expected a tensor, a number or text"
    ):
        flatten_optimizer(optimizer, model)


def test_a_model_takes_only_what_fits() -> None:
    model = Net(1)
    good = {name: tensor.clone() for name, tensor in parameters(Net(2)).items()}
    before = {name: tensor.clone() for name, tensor in parameters(model).items()}
    lacking = {name: tensor for name, tensor in good.items() if name != "scale"}
    for tensors, message in (
        (lacking, "the checkpoint lacks scale, expected by the model"),
        (good | {"more": torch.ones(1)}, "the checkpoint has more, unknown to the model"),
        (good | {"scale": torch.ones(1)}, "scale has shape [1], expected []"),
        (good | {"scale": torch.ones((), dtype=torch.float64)}, "has scale as torch.float64, the"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            restore_model(model, tensors)
    assert all(torch.equal(tensor, before[name]) for name, tensor in parameters(model).items())


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
        state = flatten_optimizer(first.optimizer, first)
        whole = {name: p.full_tensor() for name, p in first.named_parameters()}
        checkpoints = Checkpoints(tmp_path / "c")
        values = {"optimizer": state.values}
        checkpoints.save(1, {"model": whole, "optimizer": state.tensors}, values)
        found = checkpoints.load(1)
        restore_model(second, found.tensors["model"])
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
