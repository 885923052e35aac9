"""The operators as torch sees them: schema, fake kernel and gradient, once for every device.

The dispatcher chooses the kernel: cpu.py overrides CPU, gpu.py overrides CUDA, and the formulas of
reference.py serve every other device. The backward passes are operators too, so that torch.compile
traces them; a gradient without `need_x` or `need_weight` comes back empty.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lightconv.ops import reference
from lightconv.ops.check import Extras, check_conv, check_grad, check_step, fits_step

LIBRARY: Any = torch.library.Library("lightconv", "DEF")
Kernel = Callable[..., Any]

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


def make_kernels(
    forward: Kernel, backward: Kernel, step: Kernel | None = None
) -> dict[str, Kernel]:
    """Kernels with the flat arguments of SCHEMAS, checked, from functions for both operators.

    forward(x, weight, left, softmax, extras), backward(grad, x, weight, left, softmax, extras,
    need_x, need_weight) and step(x, window, position, weight, softmax) get a weight of either rank.
    """

    def dynamicconv(x: Tensor, weight: Tensor, left: int, softmax: bool, *rest: Any) -> Any:
        extras = Extras(*rest)
        check_conv("dynamicconv", x, weight, left, extras)
        return forward(x, weight, left, softmax, extras)

    def lightconv(x: Tensor, weight: Tensor, left: int, *rest: Any) -> Any:
        extras = Extras(*rest)
        check_conv("lightconv", x, weight, left, extras)
        return forward(x, weight, left, False, extras)

    def dynamicconv_backward(
        grad: Tensor, x: Tensor, weight: Tensor, left: int, softmax: bool, *rest: Any
    ) -> Any:
        cu_seqlens, dropconnect, seed, need_x, need_weight = rest
        extras = Extras(cu_seqlens, dropconnect, seed)
        check_conv("dynamicconv", x, weight, left, extras)
        check_grad(grad, x)
        return backward(grad, x, weight, left, softmax, extras, need_x, need_weight)

    def lightconv_backward(grad: Tensor, x: Tensor, weight: Tensor, left: int, *rest: Any) -> Any:
        cu_seqlens, dropconnect, seed, need_x, need_weight = rest
        extras = Extras(cu_seqlens, dropconnect, seed)
        check_conv("lightconv", x, weight, left, extras)
        check_grad(grad, x)
        return backward(grad, x, weight, left, False, extras, need_x, need_weight)

    kernels: dict[str, Kernel] = {
        "dynamicconv": dynamicconv,
        "dynamicconv_backward": dynamicconv_backward,
        "lightconv": lightconv,
        "lightconv_backward": lightconv_backward,
    }
    if step is None:
        return kernels

    def dynamicconv_step(
        x: Tensor, window: Tensor, position: int, weight: Tensor, softmax: bool
    ) -> Any:
        if not fits_step("dynamicconv_step", x, window, position, weight):
            check_step("dynamicconv_step", x, window, position, weight)
        return step(x, window, position, weight, softmax)

    def lightconv_step(x: Tensor, window: Tensor, position: int, weight: Tensor) -> Any:
        if not fits_step("lightconv_step", x, window, position, weight):
            check_step("lightconv_step", x, window, position, weight)
        return step(x, window, position, weight, False)

    return kernels | {"dynamicconv_step": dynamicconv_step, "lightconv_step": lightconv_step}


# --- fallback kernels: the formula, on any device -------------------------------------------------


def _differentiate(
    formula: Kernel, grad: Tensor, x: Tensor, weight: Tensor, need: tuple[bool, ...], graph: bool
) -> list[Tensor | None]:
    """Gradients of formula(x, weight); None where not needed."""
    wanted = [v for v, needed in zip((x, weight), need, strict=True) if needed]
    found = iter(
        torch.autograd.grad(formula(x, weight), wanted, grad, create_graph=graph) if wanted else ()
    )
    return [next(found) if needed else None for needed in need]


def reference_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    left: int,
    softmax: bool,
    extras: Extras,
    *need: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of reference.convolve by automatic differentiation."""

    def formula(x: Tensor, weight: Tensor) -> Tensor:
        return reference.convolve(x, weight, left, softmax, extras)

    with torch.enable_grad():
        x, weight = (v.detach().requires_grad_(n) for v, n in zip((x, weight), need, strict=True))
        grad_x, grad_weight = _differentiate(formula, grad, x, weight, need, graph=False)
    return (
        x.new_empty(0) if grad_x is None else grad_x,
        weight.new_empty(0) if grad_weight is None else grad_weight,
    )


def reference_step(
    x: Tensor, window: Tensor, position: int, weight: Tensor, softmax: bool
) -> Tensor:
    """reference.step with the window updated in place."""
    out, new = reference.step(x, window, position, weight, softmax)
    window.copy_(new)
    return out


REFERENCE_KERNELS = make_kernels(reference.convolve, reference_backward, reference_step)
for _name, _kernel in REFERENCE_KERNELS.items():
    LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")


# --- fake kernels: shapes and the same errors -----------------------------------------------------


def _fake(x: Tensor, *rest: Any) -> Tensor:
    return x.new_empty(x.shape)  # contiguous, whatever the strides of x


def _fake_backward(grad: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    need_x, need_weight = rest[-2:]
    return x.new_empty(x.shape if need_x else 0), weight.new_empty(
        weight.shape if need_weight else 0
    )


for _name, _kernel in make_kernels(_fake, _fake_backward, _fake).items():
    torch.library.register_fake(f"lightconv::{_name}", _kernel, lib=LIBRARY)


# --- gradients ------------------------------------------------------------------------------------


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    tensors = [v if isinstance(v, Tensor) else None for v in inputs]
    ctx.save_for_backward(*tensors)
    ctx.constants = [None if isinstance(v, Tensor) else v for v in inputs]


def _backward_of(name: str) -> Kernel:
    op = getattr(torch.ops.lightconv, f"{name}_backward").default

    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs = [
            constant if tensor is None else tensor
            for tensor, constant in zip(ctx.saved_tensors, ctx.constants, strict=True)
        ]
        need_x, need_weight = ctx.needs_input_grad[:2]
        if torch.is_grad_enabled():  # create_graph=True, which only the formula supports
            # Views: a weight computed from x must not count as a part of x.
            x, weight = (v.view_as(v) for v in inputs[:2])
            formula = lambda x, weight: REFERENCE_KERNELS[name](x, weight, *inputs[2:])
            found = _differentiate(formula, grad, x, weight, (need_x, need_weight), graph=True)
        else:
            grad_x, grad_weight = op(grad, *inputs, need_x, need_weight)
            found = [grad_x if need_x else None, grad_weight if need_weight else None]
        return (*found, *(None,) * (len(inputs) - 2))

    return backward


for _name in ("dynamicconv", "lightconv"):
    torch.library.register_autograd(
        f"lightconv::{_name}", _backward_of(_name), setup_context=_save, lib=LIBRARY
    )
