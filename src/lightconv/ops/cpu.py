"""The operators on the CPU: calls of the C++ kernels with addresses, registered with torch."""

import ctypes
from typing import Any

import torch
from torch import Tensor

from lightconv.ops import reference, schema
from lightconv.ops.check import Extras, check_boundaries
from lightconv.ops.library import DTYPE_NUMBERS, POOL, Problem, call, native
from lightconv.ops.reference import drop_threshold


def _by_rows(x: Tensor) -> Tensor:
    """x itself if its channels are contiguous, else a contiguous copy."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def drop_fields(p: float, seed: Tensor | None) -> dict[str, Any]:
    """Fields of a problem that drops with probability p."""
    if p == 0.0:
        return {}
    assert seed is not None
    return {"drop": drop_threshold(p), "keep_scale": 1.0 / (1.0 - p), "seed": int(seed)}


def make_problem(x: Tensor, weight: Tensor, left: int, softmax: bool, extras: Extras) -> Problem:
    """Arguments of the kernels but for the results, and with them the tensors they point to.

    x [B, T, D], weight [B, T, H, K] or [H, K].
    """
    x, weight = _by_rows(x), weight.contiguous()
    cu_seqlens, dropconnect, seed = extras
    problem = Problem(**drop_fields(dropconnect, seed))
    problem.x, problem.weight = x.data_ptr(), weight.data_ptr()
    problem.B, T, problem.D = x.shape
    problem.H, K = weight.shape[-2:]
    problem.T, problem.K = T, K
    problem.left = min(left, T + K)  # every tap beyond is outside; sums with it stay in 64 bits
    problem.x_batch, problem.x_row, _ = x.stride()
    problem.dtype, problem.weight_dtype = DTYPE_NUMBERS[x.dtype], DTYPE_NUMBERS[weight.dtype]
    problem.shared, problem.softmax = weight.dim() == 2, softmax
    if cu_seqlens is not None:
        check_boundaries(cu_seqlens, T)
        cu_seqlens = cu_seqlens.to(torch.int64).contiguous()
        problem.offsets = cu_seqlens.data_ptr()
        problem.sequences = cu_seqlens.shape[0] - 1
    problem.tensors = x, weight, cu_seqlens
    return problem


def _forward(x: Tensor, weight: Tensor, left: int, softmax: bool, extras: Extras) -> Tensor:
    if native().library is None:
        return reference.convolve(x, weight, left, softmax, extras)
    problem = make_problem(x, weight, left, softmax, extras)
    out = POOL.empty(x.shape, x.dtype)
    problem.out = out.data_ptr()
    call("lightconv_forward", ctypes.byref(problem))
    return out


def _backward(grad: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *options, need_x, need_weight = rest
    if native().library is None:
        return schema.reference_backward(grad, x, weight, *rest)
    problem = make_problem(x, weight, *options)
    grad = _by_rows(grad)
    problem.grad, problem.grad_batch, problem.grad_row = grad.data_ptr(), *grad.stride()[:2]
    grad_x = POOL.empty(x.shape, x.dtype) if need_x else x.new_empty(0)
    grad_weight = POOL.empty(weight.shape, weight.dtype) if need_weight else weight.new_empty(0)
    # The address of an empty tensor is 0, which the kernel takes for a gradient not needed.
    problem.grad_x, problem.grad_weight = grad_x.data_ptr(), grad_weight.data_ptr()
    call("lightconv_backward", ctypes.byref(problem))
    return grad_x, grad_weight


def _step(x: Tensor, window: Tensor, position: int, weight: Tensor, softmax: bool) -> Tensor:
    library = native().library
    if library is None:
        return schema.reference_step(x, window, position, weight, softmax)
    x, weight, ring = x.contiguous(), weight.contiguous(), window.contiguous()
    out = torch.empty_like(x)
    # Not by `call`, which takes a twentieth of a step.
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
        raise MemoryError("lightconv_step could not allocate its scratch memory")
    if ring is not window:
        window.copy_(ring)
    return out


KERNELS = schema.make_kernels(_forward, _backward, _step)
for _name, _kernel in KERNELS.items():
    schema.LIBRARY.impl(_name, _kernel, "CPU")
FUNCTIONS: dict[str, Any] = {}
for _name in ("dynamicconv", "lightconv"):
    FUNCTIONS[_name] = schema.make_function(_name, KERNELS)
