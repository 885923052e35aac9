"""Argument checks of the operators, shared by kernels, fake kernels and formulas."""

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

Maybe = Tensor | None
Seed = Tensor | int | None
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Extras(NamedTuple):
    """Options of a convolution over whole sequences."""

    cu_seqlens: Tensor | None = None  # [S + 1] int32 or int64: boundaries of packed sequences
    dropconnect: float = 0.0  # probability of dropping a weight
    seed: Tensor | None = None  # [] int64, needed if dropconnect > 0


PLAIN = Extras()


def accumulate_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype of sums and softmax: float64 for float64, float32 for every other dtype."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """Dtype that autocast gives to x; None without autocast, and if it is float64."""
    kind = x.device.type
    # A device without autocast (meta) must not be asked whether it is enabled.
    known = x.dtype != torch.float64 and torch.amp.is_autocast_available(kind)
    return torch.get_autocast_dtype(kind) if known and torch.is_autocast_enabled(kind) else None


def is_transformed() -> bool:
    """True in forward-mode differentiation and inside transforms of torch.func.

    Kernels have rules for neither: the formulas run instead, which torch can transform.
    """
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


# As torch.compiler.assume_constant_result, which would import the compiler: torch.compile calls the
# function while it traces, and guards what the result depends on.
is_transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def as_seed(seed: Seed, p: float, device: torch.device) -> Tensor | None:
    """The seed [] of an operator that drops with probability p; drawn if None, None if p is 0."""
    if p == 0.0:
        return None
    if seed is None:
        return torch.randint(0, 2**63 - 1, (), dtype=torch.int64, device=device)
    if isinstance(seed, int):
        if not -(2**63) <= seed < 2**63:
            raise ValueError(f"seed must fit in 64 bits, signed, got {seed}")
        return torch.tensor(seed, dtype=torch.int64, device=device)
    if not isinstance(seed, Tensor):
        raise ValueError(f"seed must be an int or one int64 tensor, got {type(seed).__name__}")
    return seed


def _shape(tensor: Tensor) -> str:
    return str(list(tensor.shape))


def _check_device(op: str, x: Tensor, name: str, other: Tensor) -> None:
    if other.device != x.device:
        raise ValueError(f"{op}: x is on {x.device} but {name} is on {other.device}")


def _check_drop(op: str, name: str, p: float, x: Tensor, seed: Tensor | None) -> None:
    if not 0.0 <= p < 1.0:
        raise ValueError(f"{op}: {name} must be in [0, 1), got {p}")
    if p > 0.0:
        if seed is None:
            raise ValueError(f"{op}: {name}={p} needs a seed, got None")
        if seed.dtype != torch.int64 or seed.numel() != 1:
            raise ValueError(
                f"{op}: seed must be one int64, got {seed.dtype} of shape {_shape(seed)}"
            )
        _check_device(op, x, "seed", seed)


def check_conv(op: str, x: Tensor, weight: Tensor, left: int, extras: Extras = PLAIN) -> None:
    """x [B, T, D]; weight [B, T, H, K] if op is "dynamicconv", [H, K] if it is "lightconv"."""
    if x.dim() != 3:
        raise ValueError(f"{op}: x must have shape [B, T, D], got {_shape(x)}")
    B, T, D = x.shape
    shape = weight.shape
    if op == "dynamicconv":
        if len(shape) != 4:
            raise ValueError(f"{op}: weight must have shape [B, T, H, K], got {_shape(weight)}")
        if shape[0] != B or shape[1] != T:
            raise ValueError(
                f"{op}: weight {_shape(weight)} and x {_shape(x)} must agree in B and T"
            )
    elif len(shape) != 2:
        raise ValueError(f"{op}: weight must have shape [H, K], got {_shape(weight)}")
    H, K = shape[-2], shape[-1]
    if K < 1:
        raise ValueError(
            f"{op}: the kernel width K must be at least 1, got weight {_shape(weight)}"
        )
    if H < 1 or D % H != 0:
        raise ValueError(
            f"{op}: H={H} heads do not divide D={D} channels "
            f"(x {_shape(x)}, weight {_shape(weight)})"
        )
    if x.dtype not in DTYPES:
        raise ValueError(f"{op}: x must be float32, float64, bfloat16 or float16, got {x.dtype}")
    if weight.dtype not in (x.dtype, accumulate_dtype(x.dtype)):
        raise ValueError(
            f"{op}: weight must be {x.dtype} like x or {accumulate_dtype(x.dtype)}, "
            f"got {weight.dtype}; convert one of them"
        )
    _check_device(op, x, "weight", weight)
    if left < 0:
        raise ValueError(f"{op}: left must be at least 0, got {left}")
    cu_seqlens, dropconnect, seed = extras
    if dropconnect != 0.0:
        _check_drop(op, "dropconnect", dropconnect, x, seed)
    if cu_seqlens is not None:
        if B != 1:
            raise ValueError(f"{op}: with cu_seqlens the batch must be 1, got x {_shape(x)}")
        if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 1:
            raise ValueError(
                f"{op}: cu_seqlens must have shape [sequences + 1], got {_shape(cu_seqlens)}"
            )
        if cu_seqlens.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"{op}: cu_seqlens must be int32 or int64, got {cu_seqlens.dtype}")
        _check_device(op, x, "cu_seqlens", cu_seqlens)


def check_grad(grad: Tensor, x: Tensor) -> None:
    """grad and x [B, T, D], same dtype and device."""
    if grad.shape != x.shape or grad.dtype != x.dtype or grad.device != x.device:
        raise ValueError(
            f"grad must be like x, {x.dtype} {_shape(x)} on {x.device}, "
            f"got {grad.dtype} {_shape(grad)} on {grad.device}"
        )


def check_boundaries(cu_seqlens: Tensor, length: int) -> None:
    """The values must rise from 0 to the packed length; reads them, which waits for a GPU."""
    boundaries = cu_seqlens.tolist()
    if boundaries[0] != 0 or boundaries[-1] != length:
        raise ValueError(
            f"cu_seqlens must run from 0 to the packed length {length}, "
            f"got {boundaries[0]} to {boundaries[-1]}"
        )
    if any(b < a for a, b in itertools.pairwise(boundaries)):
        raise ValueError("cu_seqlens must not decrease")


def check_step(op: str, x: Tensor, window: Tensor, position: int, weight: Tensor) -> None:
    """x [B, n, D], window [B, K-1, D], weight [B, n, H, K] or [H, K], position >= 0."""
    check_conv(op.removesuffix("_step"), x, weight, 0)
    wanted = [x.shape[0], weight.shape[-1] - 1, x.shape[2]]
    if list(window.shape) != wanted:
        raise ValueError(
            f"{op}: window must have shape [B, K-1, D] = {wanted}, got {_shape(window)}"
        )
    if window.dtype != x.dtype or window.device != x.device:
        raise ValueError(
            f"{op}: window is {window.dtype} on {window.device}, x is {x.dtype} on {x.device}"
        )
    if position < 0:
        raise ValueError(f"{op}: position must be at least 0, got {position}")


def fits_step(op: str, x: Tensor, window: Tensor, position: int, weight: Tensor) -> bool:
    """Quick test for the common step, whose tensors are all on the CPU and of one dtype.

    x [B, n, D], window [B, K-1, D], weight [B, n, H, K] or [H, K]. Reading an attribute of a tensor
    takes a tenth of a microsecond and slicing a shape half of one, in a call of ten.
    """
    dtype = x.dtype
    if not (dtype in DTYPES and dtype == weight.dtype == window.dtype and x.dim() == 3):
        return False
    B, n, D = x.shape
    *rows, H, K = 0, 0, *weight.shape
    fits = rows == ([0, 0, B, n] if op == "dynamicconv_step" else [0, 0]) and K > 0 and H > 0
    fits = fits and position >= 0 and D % H == 0 and window.shape == (B, K - 1, D)
    return fits and x.is_cpu and window.is_cpu and weight.is_cpu


def check_residual(
    x: Maybe, inner: Tensor, weight: Maybe, bias: Maybe, dropout: float, seed: Maybe
) -> None:
    """x and inner [..., D], x not narrower than inner; weight and bias [D], or both None."""
    op = "residual"
    if inner.dim() < 1 or inner.dtype not in DTYPES:
        raise ValueError(
            f"{op}: inner must have shape [..., D] and a float dtype, got {_shape(inner)} "
            f"{inner.dtype}"
        )
    like = inner if x is None else x
    if like.shape != inner.shape or like.device != inner.device:
        raise ValueError(
            f"{op}: x {_shape(like)} on {like.device} must be like inner {_shape(inner)} "
            f"on {inner.device}"
        )
    if like.dtype not in DTYPES or torch.promote_types(like.dtype, inner.dtype) != like.dtype:
        raise ValueError(f"{op}: x in {like.dtype} must not be narrower than inner, {inner.dtype}")
    if (weight is None) != (bias is None):
        raise ValueError(f"{op}: weight and bias are given together or not at all")
    _check_drop(op, "dropout", dropout, inner, seed)
    if weight is None or bias is None:
        return
    for name, each in (("weight", weight), ("bias", bias)):
        if each.shape != like.shape[-1:]:
            raise ValueError(f"{op}: {name} must have shape {[like.shape[-1]]}, got {_shape(each)}")
        if each.dtype not in (like.dtype, accumulate_dtype(like.dtype)):
            raise ValueError(f"{op}: {name} must be {like.dtype} like x, got {each.dtype}")
        _check_device(op, like, name, each)
    if weight.dtype != bias.dtype:
        raise ValueError(f"{op}: weight is {weight.dtype} but bias is {bias.dtype}")


def check_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Maybe, dropout: float, seed: Maybe
) -> None:
    """q [B, T, H, R], k and v [B, S, H, R]; mask bool, broadcast to [B, H, T, S], or None."""
    op = "attention"
    if q.dim() != 4 or q.dtype not in DTYPES:
        raise ValueError(f"{op}: q must be floats [B, T, H, R], got {_shape(q)} {q.dtype}")
    B, T, H, R = q.shape
    S = k.shape[1] if k.dim() == 4 else 0
    for name, each in (("k", k), ("v", v)):
        if each.shape != (B, S, H, R) or each.dtype != q.dtype:
            wanted = f"{q.dtype} [{B}, S, {H}, {R}] like q"
            raise ValueError(f"{op}: {name} must be {wanted}, got {each.dtype} {_shape(each)}")
        _check_device(op, q, name, each)
    if mask is not None:
        pairs = zip(mask.shape[-4:], (B, H, T, S), strict=False)
        if mask.dtype != torch.bool or mask.dim() != 4 or any(m not in (1, n) for m, n in pairs):
            wanted = f"bool, broadcast to {[B, H, T, S]}"
            raise ValueError(f"{op}: mask must be {wanted}, got {mask.dtype} {_shape(mask)}")
    _check_drop(op, "dropout", dropout, q, seed)
