"""What a model and an optimiser hold, as named tensors and plain values, and back, bit for bit.

All is keyed by the names of parameters: an order may change, a name is meant. A parameter with two
names (a tied matrix) has the first.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightconv.models.tensors import compare, parameters

# How an optimiser computes, not what: these stay as the new one has them.
MEANS = ("foreach", "fused", "capturable", "differentiable")
Scalar = bool | int | float | str | None


class OptimizerState(NamedTuple):
    """`state/PARAMETER/KEY` and `group/NUMBER/KEY` as tensors; all the rest as JSON takes it."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]


def flatten_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> OptimizerState:
    """The state of an optimiser of parameters of `model`; its tensors are not copied.

    Where parameters are sharded, all ranks must call this: their parts are gathered.
    """
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    tensors: dict[str, Tensor] = {}
    groups = []
    for number, group in enumerate(optimizer.param_groups):
        lost = [p for p in group["params"] if p not in names]
        if lost:
            shape = list(lost[0].shape)
            raise ValueError(f"the optimiser has a parameter of shape {shape} that the model lacks")
        options = {key: value for key, value in group.items() if not key.startswith("param")}
        plain = _split(options, f"group/{number}", tensors)
        groups.append({"parameters": [names[p] for p in group["params"]], "options": plain})
    state = {
        names[parameter]: _split(entries, f"state/{names[parameter]}", tensors)
        for parameter, entries in optimizer.state.items()
    }
    values = {"kind": type(optimizer).__name__, "groups": groups, "state": state}
    return OptimizerState(tensors, values)


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    values: Mapping[str, Any],
) -> None:
    """Gives a new optimiser the state that `flatten_optimizer` found; ValueError if it has another
    kind, or other parameters."""
    named = dict(model.named_parameters())
    _check_fit(optimizer, named, values)
    given = _join(tensors)
    state: dict[Tensor, dict[str, Any]] = {}
    for number, (group, saved) in enumerate(
        zip(optimizer.param_groups, values["groups"], strict=True)
    ):
        options = saved["options"] | given.get(("group", str(number)), {})
        for key, value in options.items():
            if key not in MEANS:
                group[key] = _as(group.get(key), value)
        for name in saved["parameters"]:
            if name in values["state"]:
                entries = given.get(("state", name), {})
                placed = {key: _place(key, t, named[name], group) for key, t in entries.items()}
                state[named[name]] = values["state"][name] | placed
    optimizer.state.clear()
    optimizer.state.update(state)


def restore_model(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copies tensors into a model, by the names that `lightconv.models.tensors.parameters` gives.

    All names and shapes are compared before the first number is copied.
    """
    own = parameters(model)
    wanted = {name: tuple(tensor.shape) for name, tensor in own.items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    compare("the checkpoint", "the model", wanted, found)
    for name, tensor in own.items():
        if tensors[name].dtype != tensor.dtype:
            raise ValueError(
                f"the checkpoint has {name} as {tensors[name].dtype}, the model as {tensor.dtype}"
            )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(shard(tensors[name], tensor))


def _split(entries: Mapping[str, Any], prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Moves what is a tensor into `tensors`; the rest, which JSON must be able to hold."""
    plain: dict[str, Any] = {}
    for key, value in entries.items():
        items = value if isinstance(value, tuple | list) else (value,)
        if isinstance(value, Tensor):
            tensors[f"{prefix}/{key}"] = gather(value)
        elif all(isinstance(item, Scalar) for item in items):
            plain[key] = list(value) if isinstance(value, tuple) else value
        else:
            raise ValueError(
                f"{prefix}/{key} is a {type(value).__name__}, expected a tensor, a number or text: "
                "this optimiser cannot be saved"
            )
    return plain


def _join(tensors: Mapping[str, Tensor]) -> dict[tuple[str, str], dict[str, Tensor]]:
    """(`state` or `group`, its name) -> key -> tensor."""
    found: dict[tuple[str, str], dict[str, Tensor]] = {}
    for full, tensor in tensors.items():
        kind, _, rest = full.partition("/")
        name, _, key = rest.rpartition("/")
        found.setdefault((kind, name), {})[key] = tensor
    return found


def _check_fit(
    optimizer: torch.optim.Optimizer, named: Mapping[str, Tensor], values: Mapping[str, Any]
) -> None:
    kind = type(optimizer).__name__
    if values["kind"] != kind:
        raise ValueError(f"the checkpoint has the state of {values['kind']}, expected {kind}")
    groups = values["groups"]
    if len(groups) != len(optimizer.param_groups):
        raise ValueError(
            f"the checkpoint has {len(groups)} groups of parameters, expected "
            f"{len(optimizer.param_groups)}"
        )
    for number, (group, saved) in enumerate(zip(optimizer.param_groups, groups, strict=True)):
        have = {id(p) for p in group["params"]}
        own = {name for name, parameter in named.items() if id(parameter) in have}
        odd = sorted(own.symmetric_difference(saved["parameters"]))
        if odd:
            where = "the optimiser" if odd[0] in own else "the checkpoint"
            raise ValueError(f"group {number} has {odd[0]} only in {where}")


def _as(old: Any, value: Any) -> Any:
    """An option as the optimiser has it: pairs are tuples, a rate that is a tensor stays on its
    device."""
    if isinstance(value, Tensor):
        return value.clone().to(old.device) if isinstance(old, Tensor) else value.clone()
    return tuple(value) if isinstance(old, tuple) else value


def _place(key: str, value: Tensor, parameter: Tensor, group: Mapping[str, Any]) -> Tensor:
    """A copy where the optimiser expects it: beside its parameter and laid out like it.

    Only the count of steps is on the CPU, unless the optimiser works without it.
    """
    if key == "step" and not (group.get("fused") or group.get("capturable")):
        return value.cpu().clone()
    if value.shape != parameter.shape:
        return value.clone().to(parameter.device)
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(
        shard(value, parameter)
    )


def gather(tensor: Tensor) -> Tensor:
    """A sharded tensor as a whole on rank 0, off its device, and empty elsewhere; others as is."""
    if not hasattr(tensor, "full_tensor"):
        return tensor
    full: Tensor = tensor.full_tensor()
    return full.cpu() if torch.distributed.get_rank() == 0 else full.new_empty(0)


def gather_all(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each as of `gather`, one after the other in the same order on every rank."""
    return {name: gather(tensor) for name, tensor in tensors.items()}


def shard(whole: Tensor, like: Tensor) -> Tensor:
    """This rank's part, if `like` is sharded."""
    if not hasattr(like, "full_tensor"):
        return whole
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements)
