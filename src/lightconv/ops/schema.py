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
from lightconv.ops.check import (
    Extras,
    accumulate_dtype,
    check_conv,
    check_grad,
    check_step,
    fits_step,
)

LIBRARY: Any = torch.library.Library("lightconv", "DEF")
Kernel = Callable[..., Any]

_EXTRAS = "Tensor? cu_seqlens, float dropconnect, Tensor? seed"
_NEED = "bool need_x, bool need_weight"
SCHEMAS = {
    "dynamicconv": f"(Tensor x, Tensor weight, int left, bool softmax, {_EXTRAS}) -> Tensor",
    "dynamicconv_backward": "(Tensor grad, Tensor x, Tensor weight, int left, bool softmax, "
    f"{_EXTRAS}, {_NEED}, *, Tensor? lse=None) -> (Tensor, Tensor)",
    "dynamicconv_lse": f"(Tensor x, Tensor weight, int left, {_EXTRAS}) -> (Tensor, Tensor)",
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

    def make(op: str) -> dict[str, Kernel]:
        # `rest` begins with `softmax` in dynamicconv only.
        def run(x: Tensor, weight: Tensor, left: int, *rest: Any) -> Any:
            extras = Extras(*rest[-3:])
            check_conv(op, x, weight, left, extras)
            return forward(x, weight, left, len(rest) > 3 and rest[0], extras)

        def run_backward(
            grad: Tensor, x: Tensor, weight: Tensor, left: int, *rest: Any, **lse: Tensor
        ) -> Any:
            extras = Extras(*rest[-5:-2])
            check_conv(op, x, weight, left, extras)
            check_grad(grad, x)
            softmax = len(rest) > 5 and rest[0]
            return backward(grad, x, weight, left, softmax, extras, *rest[-2:], **lse)

        def run_step(
            x: Tensor, window: Tensor, position: int, weight: Tensor, softmax: bool = False
        ) -> Any:
            if not fits_step(step_op, x, window, position, weight):
                check_step(step_op, x, window, position, weight)
            return step(x, window, position, weight, softmax)  # type: ignore[misc]

        step_op = f"{op}_step"
        kernels: dict[str, Kernel] = {op: run, f"{op}_backward": run_backward}
        return kernels | {step_op: run_step} if step else kernels

    return make("dynamicconv") | make("lightconv")


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
    grad: Tensor, x: Tensor, weight: Tensor, *rest: Any, **lse: Tensor
) -> tuple[Tensor, ...]:
    """Gradients of reference.convolve by automatic differentiation."""
    *options, need_x, need_weight = rest
    with torch.enable_grad():
        x, weight = x.detach().requires_grad_(need_x), weight.detach().requires_grad_(need_weight)
        formula = lambda x, weight: reference.convolve(x, weight, *options)
        found = _differentiate(formula, grad, x, weight, (need_x, need_weight), graph=False)
    return tuple(
        v.new_empty(0) if g is None else g for v, g in zip((x, weight), found, strict=True)
    )


def reference_step(
    x: Tensor, window: Tensor, position: int, weight: Tensor, softmax: bool
) -> Tensor:
    """reference.step with the window updated in place."""
    out, new = reference.step(x, window, position, weight, softmax)
    window.copy_(new)
    return out


def reference_lse(x: Tensor, weight: Tensor, left: int, *extras: Any) -> tuple[Tensor, Tensor]:
    """dynamicconv with softmax, and the log-sum-exp [B, T, H] that a backward pass may want."""
    out = REFERENCE_KERNELS["dynamicconv"](x, weight, left, True, *extras)
    return out, weight.to(accumulate_dtype(x.dtype)).logsumexp(-1)


REFERENCE_KERNELS = make_kernels(reference.convolve, reference_backward, reference_step)
REFERENCE_KERNELS["dynamicconv_lse"] = reference_lse
for _name, _kernel in REFERENCE_KERNELS.items():
    LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")


# --- fake kernels: shapes and the same errors -----------------------------------------------------


def _fake(x: Tensor, *rest: Any) -> Tensor:
    return x.new_empty(x.shape)  # contiguous, whatever the strides of x


def _fake_lse(x: Tensor, weight: Tensor, left: int, *extras: Any) -> tuple[Tensor, Tensor]:
    check_conv("dynamicconv", x, weight, left, Extras(*extras))
    return _fake(x), x.new_empty(weight.shape[:3], dtype=accumulate_dtype(x.dtype))


def _fake_backward(
    grad: Tensor, x: Tensor, weight: Tensor, *rest: Any, **lse: Tensor
) -> tuple[Tensor, Tensor]:
    need_x, need_weight = rest[-2:]
    grad_x = x.new_empty(x.shape if need_x else 0)
    return grad_x, weight.new_empty(weight.shape if need_weight else 0)


_FAKES = make_kernels(_fake, _fake_backward, _fake) | {"dynamicconv_lse": _fake_lse}
for _name, _kernel in _FAKES.items():
    torch.library.register_fake(f"lightconv::{_name}", _kernel, lib=LIBRARY)


# --- gradients ------------------------------------------------------------------------------------


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    lse = None
    if isinstance(output, tuple):
        ctx.mark_non_differentiable(lse := output[1])
    ctx.save_for_backward(*(v if isinstance(v, Tensor) else None for v in inputs), lse)
    ctx.constants = [None if isinstance(v, Tensor) else v for v in inputs]


def _backward_of(name: str, kernel: Kernel | None = None) -> Kernel:
    softmax = (True,) if name == "dynamicconv_lse" else ()
    plain = REFERENCE_KERNELS[name.removesuffix("_lse")]
    op = kernel or getattr(torch.ops.lightconv, f"{name.removesuffix('_lse')}_backward").default

    def backward(ctx: Any, grad: Tensor, _: Any = None) -> tuple[Tensor | None, ...]:
        *saved, lse = ctx.saved_tensors
        inputs = [
            constant if tensor is None else tensor
            for tensor, constant in zip(saved, ctx.constants, strict=True)
        ]
        need_x, need_weight = ctx.needs_input_grad[:2]
        if torch.is_grad_enabled():  # create_graph=True, which only the formula supports
            # Views: a weight computed from x must not count as a part of x.
            x, weight = (v.view_as(v) for v in inputs[:2])
            formula = lambda x, weight: plain(x, weight, inputs[2], *softmax, *inputs[3:])
            found = _differentiate(formula, grad, x, weight, (need_x, need_weight), graph=True)
        else:
            kept = {} if lse is None else {"lse": lse}
            rest = *inputs[:3], *softmax, *inputs[3:], need_x, need_weight
            grad_x, grad_weight = op(grad, *rest, **kept)
            found = [grad_x if need_x else None, grad_weight if need_weight else None]
        return (*found, *(None,) * (len(inputs) - 2))

    return backward


for _name in ("dynamicconv", "dynamicconv_lse", "lightconv"):
    torch.library.register_autograd(
        f"lightconv::{_name}", _backward_of(_name), setup_context=_save, lib=LIBRARY
    )


def make_function(name: str, kernels: dict[str, Kernel]) -> Kernel:
    """An operator and its gradient past the dispatcher, which costs more than a short sequence."""
    run, run_backward = kernels[name], _backward_of(name, kernels[f"{name}_backward"])

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            _save(ctx, inputs, None)
            return run(*inputs)

        backward = staticmethod(run_backward)

    def call(x: Tensor, weight: Tensor, *rest: Any) -> Any:
        if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
            return Function.apply(x, weight, *rest)  # type: ignore[no-untyped-call]
        return run(x, weight, *rest)

    return call
