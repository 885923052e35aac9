"""The operators as torch sees them: schema, fake kernel and gradient, once for every device.

Kernels are elsewhere and chosen by the dispatcher: native.py overrides CPU, gpu.py overrides CUDA,
and the formulas of reference.py serve every other device. The backward passes are operators too, so
that torch.compile traces them; `need_x` and `need_weight` say which gradient is wanted, and the
other one comes back empty.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lightconv.ops import reference
from lightconv.ops.check import check_dynamicconv, check_grad, check_lightconv, check_step

LIBRARY: Any = torch.library.Library("lightconv", "DEF")

_EXTRAS = "Tensor? cu_seqlens, float dropconnect, Tensor? seed"
_NEED = "bool need_x, bool need_weight"
SCHEMAS = {
    "dynamicconv": f"(Tensor x, Tensor weight, int left, bool softmax, {_EXTRAS}) -> Tensor",
    "dynamicconv_backward": "(Tensor grad, Tensor x, Tensor weight, int left, bool softmax, "
    f"{_EXTRAS}, {_NEED}) -> (Tensor, Tensor)",
    "lightconv": f"(Tensor x, Tensor weight, int left, {_EXTRAS}) -> Tensor",
    "lightconv_backward": f"(Tensor grad, Tensor x, Tensor weight, int left, {_EXTRAS}, {_NEED}) "
    "-> (Tensor, Tensor)",
    "dynamicconv_step": "(Tensor x, Tensor(a!) window, SymInt position, Tensor weight, "
    "bool softmax) -> Tensor",
    "lightconv_step": "(Tensor x, Tensor(a!) window, SymInt position, Tensor weight) -> Tensor",
}
for _name, _schema in SCHEMAS.items():
    LIBRARY.define(_name + _schema, tags=(torch.Tag.pt2_compliant_tag,))


# --- fallback kernels: the formula, on any device -------------------------------------------------


def _gradients(
    formula: Any, grad: Tensor, x: Tensor, weight: Tensor, need_x: bool, need_weight: bool
) -> tuple[Tensor, Tensor]:
    """Differentiates formula(x, weight); an unwanted gradient is an empty tensor."""
    with torch.enable_grad():
        x = x.detach().requires_grad_(need_x)
        weight = weight.detach().requires_grad_(need_weight)
        wanted = [v for v in (x, weight) if v.requires_grad]
        found = iter(torch.autograd.grad(formula(x, weight), wanted, grad) if wanted else ())
    return (
        next(found) if need_x else x.new_empty(0),
        next(found) if need_weight else weight.new_empty(0),
    )


def reference_dynamicconv_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    left: int,
    softmax: bool,
    cu_seqlens: Tensor | None,
    dropconnect: float,
    seed: Tensor | None,
    need_x: bool,
    need_weight: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of reference.dynamicconv by automatic differentiation."""

    def formula(x: Tensor, weight: Tensor) -> Tensor:
        return reference.dynamicconv(x, weight, left, softmax, cu_seqlens, dropconnect, seed)

    return _gradients(formula, grad, x, weight, need_x, need_weight)


def reference_lightconv_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    left: int,
    cu_seqlens: Tensor | None,
    dropconnect: float,
    seed: Tensor | None,
    need_x: bool,
    need_weight: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of reference.lightconv by automatic differentiation."""

    def formula(x: Tensor, weight: Tensor) -> Tensor:
        return reference.lightconv(x, weight, left, cu_seqlens, dropconnect, seed)

    return _gradients(formula, grad, x, weight, need_x, need_weight)


def reference_dynamicconv_step(
    x: Tensor, window: Tensor, position: int, weight: Tensor, softmax: bool
) -> Tensor:
    """reference.dynamicconv_step with the window updated in place."""
    out, new = reference.dynamicconv_step(x, window, position, weight, softmax)
    window.copy_(new)
    return out


def reference_lightconv_step(x: Tensor, window: Tensor, position: int, weight: Tensor) -> Tensor:
    """reference.lightconv_step with the window updated in place."""
    out, new = reference.lightconv_step(x, window, position, weight)
    window.copy_(new)
    return out


REFERENCE_KERNELS: dict[str, Callable[..., Any]] = {
    "dynamicconv": reference.dynamicconv,
    "dynamicconv_backward": reference_dynamicconv_backward,
    "lightconv": reference.lightconv,
    "lightconv_backward": reference_lightconv_backward,
    "dynamicconv_step": reference_dynamicconv_step,
    "lightconv_step": reference_lightconv_step,
}
for _name, _kernel in REFERENCE_KERNELS.items():
    LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")


# --- fake kernels: shapes and the same errors -----------------------------------------------------


def _contiguous_like(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def _fake_dynamicconv(
    x: Tensor,
    weight: Tensor,
    left: int,
    softmax: bool,
    cu_seqlens: Tensor | None,
    dropconnect: float,
    seed: Tensor | None,
) -> Tensor:
    check_dynamicconv(x, weight, left, cu_seqlens, dropconnect, seed)
    return _contiguous_like(x)


def _fake_lightconv(
    x: Tensor,
    weight: Tensor,
    left: int,
    cu_seqlens: Tensor | None,
    dropconnect: float,
    seed: Tensor | None,
) -> Tensor:
    check_lightconv(x, weight, left, cu_seqlens, dropconnect, seed)
    return _contiguous_like(x)


def _fake_backward(grad: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    check_grad(grad, x)
    need_x, need_weight = rest[-2:]
    return (
        _contiguous_like(x) if need_x else x.new_empty(0),
        _contiguous_like(weight) if need_weight else weight.new_empty(0),
    )


def _fake_dynamicconv_step(
    x: Tensor, window: Tensor, position: int, weight: Tensor, softmax: bool
) -> Tensor:
    check_dynamicconv(x, weight, 0)
    check_step("dynamicconv_step", x, window, position, weight)
    return _contiguous_like(x)


def _fake_lightconv_step(x: Tensor, window: Tensor, position: int, weight: Tensor) -> Tensor:
    check_lightconv(x, weight, 0)
    check_step("lightconv_step", x, window, position, weight)
    return _contiguous_like(x)


FAKE_KERNELS: dict[str, Callable[..., Any]] = {
    "dynamicconv": _fake_dynamicconv,
    "dynamicconv_backward": _fake_backward,
    "lightconv": _fake_lightconv,
    "lightconv_backward": _fake_backward,
    "dynamicconv_step": _fake_dynamicconv_step,
    "lightconv_step": _fake_lightconv_step,
}
for _name, _fake in FAKE_KERNELS.items():
    torch.library.register_fake(f"lightconv::{_name}", _fake, lib=LIBRARY)


# --- gradients ------------------------------------------------------------------------------------


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    tensors = [v if isinstance(v, Tensor) else None for v in inputs]
    ctx.save_for_backward(*tensors)
    ctx.constants = [None if isinstance(v, Tensor) else v for v in inputs]


def _differentiable(
    formula: Any, grad: Tensor, inputs: list[Any], need_x: bool, need_weight: bool
) -> list[Tensor | None]:
    """The gradients as functions of grad, x and weight, for gradients of gradients."""
    # Views: a weight that was computed from x must not count as a part of x.
    x, weight = (v.view_as(v) for v in inputs[:2])
    wanted = [v for v, need in ((x, need_x), (weight, need_weight)) if need]
    out = formula(x, weight, *inputs[2:])
    found = iter(torch.autograd.grad(out, wanted, grad, create_graph=True))
    return [next(found) if need else None for need in (need_x, need_weight)]


def _backward_of(name: str) -> Any:
    op = getattr(torch.ops.lightconv, f"{name}_backward").default

    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs = [
            constant if tensor is None else tensor
            for tensor, constant in zip(ctx.saved_tensors, ctx.constants, strict=True)
        ]
        need_x, need_weight = ctx.needs_input_grad[:2]
        if torch.is_grad_enabled():  # create_graph=True, which only the formula knows
            found = _differentiable(REFERENCE_KERNELS[name], grad, inputs, need_x, need_weight)
        else:
            grad_x, grad_weight = op(grad, *inputs, need_x, need_weight)
            found = [grad_x if need_x else None, grad_weight if need_weight else None]
        return (*found, *(None,) * (len(inputs) - 2))

    return backward


for _name in ("dynamicconv", "lightconv"):
    torch.library.register_autograd(
        f"lightconv::{_name}", _backward_of(_name), setup_context=_save, lib=LIBRARY
    )
