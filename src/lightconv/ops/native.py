"""The operators on the CPU: the C++ kernels of library.py, called with addresses and registered."""

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lightconv.ops import reference, schema
from lightconv.ops.check import (
    check_boundaries,
    check_dynamicconv,
    check_grad,
    check_lightconv,
    check_step,
)
from lightconv.ops.library import DTYPE_NUMBERS, Problem, native
from lightconv.ops.memory import POOL
from lightconv.ops.random import drop_threshold


def _call(name: str, problem: Problem) -> None:
    library = native().library
    assert library is not None
    if getattr(library, name)(ctypes.byref(problem)) != 0:
        raise MemoryError(f"{name} could not allocate its scratch memory")


def _by_rows(x: Tensor) -> Tensor:
    """x itself when its channels are contiguous, else a contiguous copy."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _problem(
    x: Tensor,
    weight: Tensor,
    left: int,
    offsets: Tensor | None,
    dropconnect: float,
    seed: Tensor | None,
    *,
    softmax: bool,
) -> Problem:
    B, T, D = x.shape
    H, K = weight.shape[-2:]
    problem = Problem(
        x=x.data_ptr(),
        weight=weight.data_ptr(),
        B=B,
        T=T,
        D=D,
        H=H,
        K=K,
        left=min(left, T + K),  # there is nothing further back, and sums with it stay in 64 bits
        x_batch=x.stride(0),
        x_row=x.stride(1),
        dtype=DTYPE_NUMBERS[x.dtype],
        weight_dtype=DTYPE_NUMBERS[weight.dtype],
        shared=weight.dim() == 2,
        softmax=softmax,
    )
    if offsets is not None:
        problem.offsets = offsets.data_ptr()
        problem.sequences = offsets.shape[0] - 1
    if dropconnect > 0.0:
        assert seed is not None
        problem.drop = drop_threshold(dropconnect)
        problem.keep_scale = 1.0 / (1.0 - dropconnect)
        problem.seed = int(seed)
    return problem


def _offsets(op: str, x: Tensor, cu_seqlens: Tensor | None) -> Tensor | None:
    if cu_seqlens is None:
        return None
    check_boundaries(op, cu_seqlens.tolist(), x.shape[1])
    return cu_seqlens.to(torch.int64).contiguous()


def forward_into(
    out: Tensor, x: Tensor, weight: Tensor, left: int, *, softmax: bool = False
) -> Callable[[], None]:
    """A call that computes the convolution of x [B, T, D] into `out`, for benchmarks.

    weight is [B, T, H, K] or [H, K]; all tensors contiguous.
    """
    problem = _problem(x, weight, left, None, 0.0, None, softmax=softmax)
    problem.out = out.data_ptr()

    def call(kept: tuple[Tensor, ...] = (out, x, weight)) -> None:
        _call("lightconv_forward", problem)

    return call


def _forward(
    op: str,
    x: Tensor,
    weight: Tensor,
    left: int,
    softmax: bool,
    cu_seqlens: Tensor | None,
    dropconnect: float,
    seed: Tensor | None,
) -> Tensor:
    x, weight, offsets = _by_rows(x), weight.contiguous(), _offsets(op, x, cu_seqlens)
    problem = _problem(x, weight, left, offsets, dropconnect, seed, softmax=softmax)
    out = POOL.empty(x.shape, x.dtype)
    problem.out = out.data_ptr()
    _call("lightconv_forward", problem)
    return out


def _backward(
    op: str,
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
    x, weight, offsets = _by_rows(x), weight.contiguous(), _offsets(op, x, cu_seqlens)
    grad = _by_rows(grad)
    problem = _problem(x, weight, left, offsets, dropconnect, seed, softmax=softmax)
    problem.grad, problem.grad_batch, problem.grad_row = grad.data_ptr(), *grad.stride()[:2]
    grad_x = POOL.empty(x.shape, x.dtype) if need_x else x.new_empty(0)
    grad_weight = POOL.empty(weight.shape, weight.dtype) if need_weight else weight.new_empty(0)
    problem.grad_x = grad_x.data_ptr() if need_x else None
    problem.grad_weight = grad_weight.data_ptr() if need_weight else None
    _call("lightconv_backward", problem)
    return grad_x, grad_weight


def _cpu_dynamicconv(x: Tensor, weight: Tensor, left: int, softmax: bool, *extras: Any) -> Tensor:
    check_dynamicconv(x, weight, left, *extras)
    if native().library is None:
        return reference.dynamicconv(x, weight, left, softmax, *extras)
    return _forward("dynamicconv", x, weight, left, softmax, *extras)


def _cpu_lightconv(x: Tensor, weight: Tensor, left: int, *extras: Any) -> Tensor:
    check_lightconv(x, weight, left, *extras)
    if native().library is None:
        return reference.lightconv(x, weight, left, *extras)
    return _forward("lightconv", x, weight, left, False, *extras)


def _cpu_dynamicconv_backward(
    grad: Tensor, x: Tensor, weight: Tensor, left: int, softmax: bool, *rest: Any
) -> tuple[Tensor, Tensor]:
    check_dynamicconv(x, weight, left, *rest[:-2])
    check_grad(grad, x)
    if native().library is None:
        return schema.reference_dynamicconv_backward(grad, x, weight, left, softmax, *rest)
    return _backward("dynamicconv", grad, x, weight, left, softmax, *rest)


def _cpu_lightconv_backward(
    grad: Tensor, x: Tensor, weight: Tensor, left: int, *rest: Any
) -> tuple[Tensor, Tensor]:
    check_lightconv(x, weight, left, *rest[:-2])
    check_grad(grad, x)
    if native().library is None:
        return schema.reference_lightconv_backward(grad, x, weight, left, *rest)
    return _backward("lightconv", grad, x, weight, left, False, *rest)


def _step(x: Tensor, window: Tensor, position: int, weight: Tensor, softmax: bool) -> Tensor:
    library = native().library
    assert library is not None
    x, weight, ring = x.contiguous(), weight.contiguous(), window.contiguous()
    out = torch.empty_like(x)
    failed = library.lightconv_step(
        x.data_ptr(),
        ring.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        *x.shape,
        *weight.shape[-2:],
        position,
        DTYPE_NUMBERS[x.dtype],
        DTYPE_NUMBERS[weight.dtype],
        weight.dim() == 2,
        softmax,
    )
    if failed:
        raise MemoryError("the step kernel could not allocate its scratch memory")
    if ring is not window:
        window.copy_(ring)
    return out


def _plainly_fits(x: Tensor, window: Tensor, position: int, weight: Tensor) -> bool:
    """What nearly every step looks like, at a fraction of the price of the checks that explain.

    Every look at a tensor costs a tenth of a microsecond and a slice of a shape half of one, in a
    call of ten.
    """
    dtype = x.dtype
    if not (dtype in DTYPE_NUMBERS and dtype == weight.dtype == window.dtype and x.dim() == 3):
        return False
    B, n, D = x.shape
    shape = weight.shape
    if len(shape) == 4:
        rows, columns, H, K = shape
        if rows != B or columns != n:
            return False
    elif len(shape) == 2:
        H, K = shape
    else:
        return False
    fits = K > 0 and H > 0 and position >= 0 and D % H == 0 and window.shape == (B, K - 1, D)
    return fits and window.is_cpu and weight.is_cpu


def _cpu_dynamicconv_step(
    x: Tensor, window: Tensor, position: int, weight: Tensor, softmax: bool
) -> Tensor:
    if weight.dim() != 4 or not _plainly_fits(x, window, position, weight):
        check_dynamicconv(x, weight, 0)
        check_step("dynamicconv_step", x, window, position, weight)
    if native().library is None:
        return schema.reference_dynamicconv_step(x, window, position, weight, softmax)
    return _step(x, window, position, weight, softmax)


def _cpu_lightconv_step(x: Tensor, window: Tensor, position: int, weight: Tensor) -> Tensor:
    if weight.dim() != 2 or not _plainly_fits(x, window, position, weight):
        check_lightconv(x, weight, 0)
        check_step("lightconv_step", x, window, position, weight)
    if native().library is None:
        return schema.reference_lightconv_step(x, window, position, weight)
    return _step(x, window, position, weight, False)


KERNELS: dict[str, Callable[..., Any]] = {
    "dynamicconv": _cpu_dynamicconv,
    "dynamicconv_backward": _cpu_dynamicconv_backward,
    "lightconv": _cpu_lightconv,
    "lightconv_backward": _cpu_lightconv_backward,
    "dynamicconv_step": _cpu_dynamicconv_step,
    "lightconv_step": _cpu_lightconv_step,
}


def register(library: Any) -> None:
    """Makes these the kernels of a torch.library.Library's operators for CPU tensors."""
    for name, kernel in KERNELS.items():
        library.impl(name, kernel, "CPU")
