"""Dropout, residual sum and layer normalisation of a sub-block as one operator.

    dropout(inner)               inner * factor
    dropout_add(x, inner)        x + dropout(inner)
    dropout_add_norm(x, inner)   layer_norm(x + dropout(inner))

The factors are 0 or 1 / (1 - p), a hash of (seed, element) as in DropConnect, so that the backward
pass needs only the sum and two numbers per row. Formula, schema, fake kernel, gradient and the call
of the kernels (csrc/residual.h, gpu_kernels.py) stand here together; other devices run the formula.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv.ops import gpu
from lightconv.ops.check import (
    Maybe,
    Seed,
    accumulate_dtype,
    as_seed,
    check_residual,
    is_transformed,
)
from lightconv.ops.cpu import drop_fields
from lightconv.ops.library import DTYPE_NUMBERS, POOL, ResidualProblem, call, native
from lightconv.ops.reference import drop
from lightconv.ops.schema import LIBRARY, SCHEMAS

EPS = 1e-5  # the default of torch's LayerNorm

_SCHEMAS = {
    "residual": "(Tensor? x, Tensor inner, Tensor? weight, Tensor? bias, float eps, float dropout, "
    "Tensor? seed) -> (Tensor, Tensor, Tensor)",
    "residual_backward": "(Tensor grad, Tensor sum, Tensor stats, Tensor weight, "
    "ScalarType inner_dtype, float dropout, Tensor? seed, bool need_x, bool need_inner, "
    "bool need_weight) -> (Tensor, Tensor, Tensor, Tensor)",
}
for _name, _schema in _SCHEMAS.items():
    LIBRARY.define(_name + _schema, tags=(torch.Tag.pt2_compliant_tag,))
SCHEMAS.update(_SCHEMAS)

_Results = tuple[Tensor, Tensor, Tensor]  # out, and if normalised the sum and the statistics
_Gradients = tuple[Tensor, Tensor, Tensor, Tensor]  # of x, inner, weight and bias


def dropout(inner: Tensor, p: float, *, seed: Seed = None) -> Tensor:
    """Drops elements with probability p and scales the others by 1 / (1 - p).

    inner   [..., D]
    returns [..., D]

    The choice follows from `seed`, or from a seed drawn from torch's generator.
    """
    return inner if p == 0.0 else _residual(None, inner, None, None, EPS, p, seed)


def dropout_add(x: Tensor, inner: Tensor, p: float, *, seed: Seed = None) -> Tensor:
    """x + dropout(inner, p).

    x, inner [..., D]
    returns  [..., D]
    """
    return x + inner if p == 0.0 else _residual(x, inner, None, None, EPS, p, seed)


def dropout_add_norm(
    x: Tensor,
    inner: Tensor,
    weight: Tensor,
    bias: Tensor,
    p: float,
    *,
    eps: float = EPS,
    seed: Seed = None,
) -> Tensor:
    """layer_norm(x + dropout(inner, p)) over the last dimension.

    x, inner     [..., D]
    weight, bias [D]
    returns      [..., D]
    """
    return _residual(x, inner, weight, bias, eps, p, seed)


def _residual(
    x: Maybe, inner: Tensor, weight: Maybe, bias: Maybe, eps: float, p: float, seed: Seed
) -> Tensor:
    if x is not None and x.dtype != inner.dtype:
        x = x.to(torch.promote_types(x.dtype, inner.dtype))
    run = formula if is_transformed() else torch.ops.lightconv.residual.default
    out: Tensor = run(x, inner, weight, bias, eps, p, as_seed(seed, p, inner.device))[0]
    return out


# --- the formula ----------------------------------------------------------------------------------


def formula(
    x: Maybe, inner: Tensor, weight: Maybe, bias: Maybe, eps: float, p: float, seed: Maybe
) -> _Results:
    """The result [..., D]; if normalised, the sum [..., D] and each row's (mean, 1 / deviation)."""
    check_residual(x, inner, weight, bias, p, seed)
    like = inner if x is None else x
    exact = accumulate_dtype(like.dtype)
    total = drop(inner.to(exact), p, seed)
    if x is not None:
        total = x.to(exact) + total
    if weight is None or bias is None:
        return total.to(like.dtype), inner.new_empty(0), inner.new_empty(0, dtype=exact)
    total = total.to(like.dtype).to(exact)
    mean = total.mean(-1)
    scale = torch.rsqrt(total.var(-1, correction=0) + eps)
    out = F.layer_norm(total, weight.shape, weight.to(exact), bias.to(exact), eps)
    return out.to(like.dtype), total.to(like.dtype), torch.stack([mean, scale], -1)


def formula_backward(
    grad: Tensor, total: Tensor, stats: Tensor, weight: Tensor, inner_dtype: torch.dtype, *rest: Any
) -> _Gradients:
    """Gradients of x and inner [..., D], weight and bias [D]; empty if not needed."""
    p, seed, need_x, need_inner, need_weight = rest
    exact = stats.dtype
    grad, normal = grad.to(exact), (total.to(exact) - stats[..., :1]) * stats[..., 1:]
    rows = tuple(range(grad.dim() - 1))
    empty = grad.new_empty(0)
    of_weight = (grad * normal).sum(rows).to(weight.dtype) if need_weight else empty
    of_bias = grad.sum(rows).to(weight.dtype) if need_weight else empty
    weighted = grad * weight.to(exact)
    mean, slope = weighted.mean(-1, True), (weighted * normal).mean(-1, True)
    of_sum = (weighted - mean - normal * slope) * stats[..., 1:]
    of_inner = drop(of_sum, p, seed).to(inner_dtype) if need_inner else empty
    return of_sum.to(total.dtype) if need_x else empty, of_inner, of_weight, of_bias


LIBRARY.impl("residual", formula, "CompositeExplicitAutograd")
LIBRARY.impl("residual_backward", formula_backward, "CompositeExplicitAutograd")


# --- the C++ kernel -------------------------------------------------------------------------------


def _make_problem(like: Tensor, inner_dtype: Any, p: float, seed: Tensor | None) -> ResidualProblem:
    D = like.shape[-1]
    return ResidualProblem(
        rows=like.numel() // max(D, 1),
        D=D,
        dtype=DTYPE_NUMBERS[like.dtype],
        inner_dtype=DTYPE_NUMBERS[inner_dtype],
        **drop_fields(p, seed),
    )


def _empty_results(empty: Callable[..., Tensor], *arguments: Any) -> _Results:
    """Checks the arguments; memory of the results, large ones from empty(shape, dtype)."""
    x, inner, weight, bias, _, p, seed = arguments
    check_residual(x, inner, weight, bias, p, seed)
    like = inner if x is None else x
    exact = accumulate_dtype(like.dtype)
    out = empty(like.shape, like.dtype)
    if weight is None:
        return out, like.new_empty(0), like.new_empty(0, dtype=exact)
    stats = like.new_empty(*like.shape[:-1], 2, dtype=exact)
    return out, empty(like.shape, like.dtype), stats


def _empty_gradients(empty: Callable[..., Tensor], *arguments: Any) -> _Gradients:
    """Memory of the gradients, empty if not needed; large ones from empty(shape, dtype)."""
    _, total, _, weight, inner_dtype, _, _, need_x, need_inner, need_weight = arguments
    of_x = empty(total.shape if need_x else (0,), total.dtype)
    of_inner = empty(total.shape if need_inner else (0,), inner_dtype)
    of_weight, of_bias = (weight.new_empty(weight.shape if need_weight else 0) for _ in range(2))
    return of_x, of_inner, of_weight, of_bias


def _cpu(*arguments: Any) -> _Results:
    if native().library is None:
        return formula(*arguments)
    x, inner, weight, bias, eps, p, seed = arguments
    out, total, stats = _empty_results(POOL.empty, *arguments)
    inner = inner.contiguous()
    problem = _make_problem(out, inner.dtype, p, seed)
    problem.inner, problem.out = inner.data_ptr(), out.data_ptr()
    if x is not None:
        x = x.contiguous()
        problem.x = x.data_ptr()
    if weight is not None:
        weight, bias = weight.contiguous(), bias.contiguous()
        problem.weight, problem.bias = weight.data_ptr(), bias.data_ptr()
        problem.weight_dtype, problem.eps = DTYPE_NUMBERS[weight.dtype], eps
        problem.sum, problem.stats = total.data_ptr(), stats.data_ptr()
    call("lightconv_residual_forward", ctypes.byref(problem))
    return out, total, stats


def _cpu_backward(*arguments: Any) -> _Gradients:
    if native().library is None:
        return formula_backward(*arguments)
    grad, total, stats, weight, inner_dtype, p, seed, *_ = arguments
    grad, total, stats, weight = (t.contiguous() for t in (grad, total, stats, weight))
    problem = _make_problem(total, inner_dtype, p, seed)
    problem.grad, problem.sum, problem.stats = grad.data_ptr(), total.data_ptr(), stats.data_ptr()
    problem.weight, problem.weight_dtype = weight.data_ptr(), DTYPE_NUMBERS[weight.dtype]
    of_x, of_inner, of_weight, of_bias = found = _empty_gradients(POOL.empty, *arguments)
    # The address of an empty tensor is 0, which the kernel takes for a gradient not needed.
    problem.grad_x, problem.grad_inner = of_x.data_ptr(), of_inner.data_ptr()
    problem.grad_weight, problem.grad_bias = of_weight.data_ptr(), of_bias.data_ptr()
    call("lightconv_residual_backward", ctypes.byref(problem))
    return found


LIBRARY.impl("residual", _cpu, "CPU")
LIBRARY.impl("residual_backward", _cpu_backward, "CPU")


# --- the Triton kernels ---------------------------------------------------------------------------


def _new(like: Tensor) -> Callable[..., Tensor]:
    return lambda shape, dtype: like.new_empty(shape, dtype=dtype)


def _cuda(*arguments: Any) -> _Results:
    x, inner, weight, bias, eps, p, seed = arguments
    found = out, total, stats = _empty_results(_new(inner), *arguments)
    gpu.residual(out, total, stats, x, inner, weight, bias, eps, p, seed)
    return found


def _cuda_backward(*arguments: Any) -> _Gradients:
    found = _empty_gradients(_new(arguments[1]), *arguments)
    gpu.residual_backward(found, *arguments[:4], *arguments[5:7])
    return found


KERNELS = {"residual": _cuda, "residual_backward": _cuda_backward}
gpu.register(LIBRARY, KERNELS, {"residual": formula, "residual_backward": formula_backward})


# --- fake kernels and the gradient ----------------------------------------------------------------


def _fake(allocate: Callable[..., Any]) -> Callable[..., Any]:
    # arguments[1] is `inner` or `sum`, which are never None
    return lambda *arguments: allocate(_new(arguments[1]), *arguments)


torch.library.register_fake("lightconv::residual", _fake(_empty_results), lib=LIBRARY)
torch.library.register_fake("lightconv::residual_backward", _fake(_empty_gradients), lib=LIBRARY)


def _save(ctx: Any, inputs: tuple[Any, ...], output: _Results) -> None:
    _, inner, weight, bias, eps, p, seed = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[1:], weight, bias, seed)
    ctx.constants = inner.dtype, eps, p


def _backward(ctx: Any, grad: Tensor | None, of_sum: Tensor | None, _: Any) -> tuple[Any, ...]:
    total, stats, weight, bias, seed = ctx.saved_tensors
    inner_dtype, eps, p = ctx.constants
    need_x, need_inner, *need_affine = ctx.needs_input_grad[:4]
    of_weight = of_bias = None
    if weight is not None and grad is not None and not torch.is_grad_enabled() and of_sum is None:
        found = torch.ops.lightconv.residual_backward.default(
            grad, total, stats, weight, inner_dtype, p, seed, need_x, need_inner, any(need_affine)
        )
        needed = (need_x, need_inner, *need_affine)
        return (*(g if need else None for g, need in zip(found, needed, strict=True)), *(None,) * 3)
    if weight is not None and grad is not None:
        # Gradients of gradients: autograd knows how the sum depends on x and inner.
        higher = torch.is_grad_enabled()
        with torch.enable_grad():
            leaves = [
                t if t.requires_grad else t.detach().requires_grad_() for t in (total, weight, bias)
            ]
            wide, w, b = (t.to(accumulate_dtype(total.dtype)) for t in leaves)
            out = F.layer_norm(wide, w.shape, w, b, eps).to(total.dtype)
            of_norm, of_weight, of_bias = torch.autograd.grad(
                out, leaves, grad, create_graph=higher
            )
        of_sum = of_norm if of_sum is None else of_sum + of_norm
    elif weight is None:
        of_sum = grad
    of_inner = None
    if need_inner and of_sum is not None:
        of_inner = dropout(of_sum, p, seed=seed).to(inner_dtype)
    return of_sum if need_x else None, of_inner, of_weight, of_bias, None, None, None


torch.library.register_autograd("lightconv::residual", _backward, setup_context=_save, lib=LIBRARY)
