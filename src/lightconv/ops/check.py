"""What the operators accept, said once: kernels, fake kernels and formulas call these checks."""

import itertools

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def accumulate_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype sums and softmax run in: float64 for float64, float32 for everything else."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _shape(tensor: Tensor) -> str:
    return str(list(tensor.shape))


def require_tensor(name: str, value: object) -> None:
    """Raises ValueError unless value is a tensor."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a tensor, got {type(value).__name__}")


def _check_common(op: str, x: Tensor, weight: Tensor, H: int, K: int) -> None:
    D = x.shape[-1]
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
    if weight.device != x.device:
        raise ValueError(f"{op}: x is on {x.device} but weight is on {weight.device}")


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
        if seed.device != x.device:
            raise ValueError(f"{op}: x is on {x.device} but seed is on {seed.device}")


def _check_extras(
    op: str,
    x: Tensor,
    left: int,
    cu_seqlens: Tensor | None,
    dropconnect: float,
    seed: Tensor | None,
) -> None:
    if left < 0:
        raise ValueError(f"{op}: left must be at least 0, got {left}")
    _check_drop(op, "dropconnect", dropconnect, x, seed)
    if cu_seqlens is not None:
        if x.shape[0] != 1:
            raise ValueError(f"{op}: with cu_seqlens the batch must be 1, got x {_shape(x)}")
        if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 1:
            raise ValueError(
                f"{op}: cu_seqlens must have shape [sequences + 1], got {_shape(cu_seqlens)}"
            )
        if cu_seqlens.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"{op}: cu_seqlens must be int32 or int64, got {cu_seqlens.dtype}")
        if cu_seqlens.device != x.device:
            raise ValueError(f"{op}: x is on {x.device} but cu_seqlens is on {cu_seqlens.device}")


def check_lightconv(
    x: Tensor,
    weight: Tensor,
    left: int,
    cu_seqlens: Tensor | None = None,
    dropconnect: float = 0.0,
    seed: Tensor | None = None,
) -> None:
    """Raises ValueError unless x is [B, T, D], weight [H, K], H divides D, K >= 1, left >= 0."""
    op = "lightconv"
    require_tensor("x", x)
    require_tensor("weight", weight)
    if x.dim() != 3:
        raise ValueError(f"{op}: x must have shape [B, T, D], got {_shape(x)}")
    if weight.dim() != 2:
        raise ValueError(f"{op}: weight must have shape [H, K], got {_shape(weight)}")
    _check_common(op, x, weight, weight.shape[0], weight.shape[1])
    _check_extras(op, x, left, cu_seqlens, dropconnect, seed)


def check_dynamicconv(
    x: Tensor,
    weight: Tensor,
    left: int,
    cu_seqlens: Tensor | None = None,
    dropconnect: float = 0.0,
    seed: Tensor | None = None,
) -> None:
    """Raises ValueError unless x is [B, T, D], weight [B, T, H, K], H divides D, K and left fit."""
    op = "dynamicconv"
    require_tensor("x", x)
    require_tensor("weight", weight)
    if x.dim() != 3:
        raise ValueError(f"{op}: x must have shape [B, T, D], got {_shape(x)}")
    if weight.dim() != 4:
        raise ValueError(f"{op}: weight must have shape [B, T, H, K], got {_shape(weight)}")
    if weight.shape[0] != x.shape[0] or weight.shape[1] != x.shape[1]:
        raise ValueError(f"{op}: weight {_shape(weight)} and x {_shape(x)} must agree in B and T")
    _check_common(op, x, weight, weight.shape[2], weight.shape[3])
    _check_extras(op, x, left, cu_seqlens, dropconnect, seed)


def check_grad(grad: Tensor, x: Tensor) -> None:
    """Raises ValueError unless grad could be the gradient of an output of x's shape."""
    if grad.shape != x.shape or grad.dtype != x.dtype or grad.device != x.device:
        raise ValueError(
            f"grad must be like x, {x.dtype} {_shape(x)} on {x.device}, "
            f"got {grad.dtype} {_shape(grad)} on {grad.device}"
        )


def check_step(op: str, x: Tensor, window: Tensor, position: int, weight: Tensor) -> None:
    """Raises ValueError unless window is [B, K-1, D] beside x [B, n, D], and position >= 0."""
    if window.dim() != 3 or tuple(window.shape) != (x.shape[0], weight.shape[-1] - 1, x.shape[2]):
        raise ValueError(
            f"{op}: window must have shape [B, K-1, D] = "
            f"{[x.shape[0], weight.shape[-1] - 1, x.shape[2]]}, got {_shape(window)}"
        )
    if window.dtype != x.dtype or window.device != x.device:
        raise ValueError(
            f"{op}: window is {window.dtype} on {window.device}, x is {x.dtype} on {x.device}"
        )
    if position < 0:
        raise ValueError(f"{op}: position must be at least 0, got {position}")


def check_boundaries(op: str, boundaries: list[int], length: int) -> None:
    """Raises ValueError unless the values of cu_seqlens rise from 0 to the packed length."""
    if boundaries[0] != 0 or boundaries[-1] != length:
        raise ValueError(
            f"{op}: cu_seqlens must run from 0 to the packed length {length}, "
            f"got {boundaries[0]} to {boundaries[-1]}"
        )
    if any(b < a for a, b in itertools.pairwise(boundaries)):
        raise ValueError(f"{op}: cu_seqlens must not decrease")


def check_residual(
    x: Tensor | None,
    inner: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    dropout: float,
    seed: Tensor | None,
) -> None:
    """Raises ValueError unless x is like inner [..., D] and not narrower, weight and bias [D]."""
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
    for name, each in (("weight", weight), ("bias", bias)):
        if each is None:
            continue
        if each.shape != like.shape[-1:]:
            raise ValueError(f"{op}: {name} must have shape {[like.shape[-1]]}, got {_shape(each)}")
        if each.dtype not in (like.dtype, accumulate_dtype(like.dtype)):
            raise ValueError(f"{op}: {name} must be {like.dtype} like x, got {each.dtype}")
        if each.device != like.device:
            raise ValueError(f"{op}: x is on {like.device} but {name} is on {each.device}")
    if weight is not None and bias is not None and weight.dtype != bias.dtype:
        raise ValueError(f"{op}: weight is {weight.dtype} but bias is {bias.dtype}")
    _check_drop(op, "dropout", dropout, inner, seed)
