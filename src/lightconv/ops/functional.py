"""The operators as people call them.

Four functions over whole sequences and two over a stream; one integer `left` says how far the
kernel reaches back (K - 1 causal, K // 2 centred). `backend="auto"` runs the kernel of x's device
(`lightconv.explain()` names it), "reference" the formula, "band" the paper's band matrix.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from lightconv.ops import band, gpu, native, reference, schema
from lightconv.ops.check import accumulate_dtype, check_lightconv, require_tensor
from lightconv.ops.random import as_seed

# Which kernel runs is the dispatcher's choice, by device; formulas stand in where there is none.
native.register(schema.LIBRARY)
gpu.register(schema.LIBRARY)

BACKENDS = ("auto", "reference", "band")


def dynamicconv(
    x: Tensor,
    weight: Tensor,
    left: int,
    *,
    cu_seqlens: Tensor | None = None,
    dropconnect: float = 0.0,
    seed: Tensor | int | None = None,
    backend: str = "auto",
) -> Tensor:
    """A kernel of its own for every position: out[t] = sum_j weight[t, j] * x[t + j - left].

    x          [B, T, D]
    weight     [B, T, H, K]; channel c uses head c // (D / H)
    cu_seqlens [S + 1], optional: x is [1, N, D], S sequences laid end to end without padding
    returns    [B, T, D]

    `dropconnect` drops single weights (scaled by 1 / (1 - p)), by `seed` or a seed drawn from
    torch's generator.
    """
    return _dynamicconv(x, weight, left, False, cu_seqlens, dropconnect, seed, backend)


def dynamicconv_softmax(
    x: Tensor,
    logits: Tensor,
    left: int,
    *,
    cu_seqlens: Tensor | None = None,
    dropconnect: float = 0.0,
    seed: Tensor | int | None = None,
    backend: str = "auto",
) -> Tensor:
    """dynamicconv(x, logits.softmax(-1), left), with the softmax inside the kernel, in float32.

    x       [B, T, D]
    logits  [B, T, H, K]
    returns [B, T, D]
    """
    return _dynamicconv(x, logits, left, True, cu_seqlens, dropconnect, seed, backend)


def _dynamicconv(
    x: Tensor,
    weight: Tensor,
    left: int,
    softmax: bool,
    cu_seqlens: Tensor | None,
    dropconnect: float,
    seed: Tensor | int | None,
    backend: str,
) -> Tensor:
    x, weight = _autocast(x, weight)
    seed = as_seed(seed, dropconnect, x.device)
    if backend == "auto":
        out: Tensor = torch.ops.lightconv.dynamicconv.default(
            x, weight, left, softmax, cu_seqlens, dropconnect, seed
        )
        return out
    if backend == "reference":
        return reference.dynamicconv(x, weight, left, softmax, cu_seqlens, dropconnect, seed)
    _check_band(backend, cu_seqlens, dropconnect)
    return band.dynamicconv(x, weight, left, softmax)


def lightconv(
    x: Tensor,
    weight: Tensor,
    left: int,
    *,
    cu_seqlens: Tensor | None = None,
    dropconnect: float = 0.0,
    seed: Tensor | int | None = None,
    backend: str = "auto",
) -> Tensor:
    """One kernel per head for all positions: out[t] = sum_j weight[j] * x[t + j - left].

    x          [B, T, D]
    weight     [H, K]; channel c uses head c // (D / H); H = D is a depthwise convolution
    cu_seqlens [S + 1], optional: x is [1, N, D], S sequences laid end to end without padding
    returns    [B, T, D]
    """
    x, weight = _autocast(x, weight)
    seed = as_seed(seed, dropconnect, x.device)
    if backend == "auto":
        out: Tensor = torch.ops.lightconv.lightconv.default(
            x, weight, left, cu_seqlens, dropconnect, seed
        )
        return out
    if backend == "reference":
        return reference.lightconv(x, weight, left, cu_seqlens, dropconnect, seed)
    _check_band(backend, cu_seqlens, dropconnect)
    return band.lightconv(x, weight, left)


def lightconv_softmax(
    x: Tensor,
    logits: Tensor,
    left: int,
    *,
    cu_seqlens: Tensor | None = None,
    dropconnect: float = 0.0,
    seed: Tensor | int | None = None,
    backend: str = "auto",
) -> Tensor:
    """lightconv(x, logits.softmax(-1), left), with the softmax in float32.

    x       [B, T, D]
    logits  [H, K]
    returns [B, T, D]
    """
    x, logits = _autocast(x, logits)
    check_lightconv(x, logits, left)
    # H x K numbers: a softmax before the kernel costs nothing and stays in float32.
    weight = logits.softmax(-1, dtype=accumulate_dtype(x.dtype))
    return lightconv(
        x,
        weight,
        left,
        cu_seqlens=cu_seqlens,
        dropconnect=dropconnect,
        seed=seed,
        backend=backend,
    )


def dynamicconv_step(
    x: Tensor, window: Tensor, position: int, weight: Tensor, *, softmax: bool = False
) -> tuple[Tensor, Tensor]:
    """The next n positions of a causal dynamicconv (left = K - 1), given the K - 1 inputs before.

    x        [B, n, D]: one position or a chunk of any length
    window   [B, K-1, D]: a ring, time t in slot t % (K - 1); zeros at the start
    position the time of x[:, 0]
    weight   [B, n, H, K], or logits with `softmax`
    returns  [B, n, D] and the window to pass next time

    The window is updated in place, unless gradients are being recorded.
    """
    if _records_gradients(x, window, weight):
        return reference.dynamicconv_step(x, window, position, weight, softmax)
    op = _step_kernel("dynamicconv_step", x)
    return op(x, window, position, weight, softmax), window


def lightconv_step(
    x: Tensor, window: Tensor, position: int, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """The next n positions of a causal lightconv (left = K - 1), given the K - 1 inputs before.

    x        [B, n, D]: one position or a chunk of any length
    window   [B, K-1, D]: a ring, time t in slot t % (K - 1); zeros at the start
    position the time of x[:, 0]
    weight   [H, K]
    returns  [B, n, D] and the window to pass next time

    The window is updated in place, unless gradients are being recorded.
    """
    if _records_gradients(x, window, weight):
        return reference.lightconv_step(x, window, position, weight)
    op = _step_kernel("lightconv_step", x)
    return op(x, window, position, weight), window


def _step_kernel(name: str, x: Tensor) -> Callable[..., Tensor]:
    """The CPU kernel itself for an ordinary tensor; else the operator, which can be traced.

    A step is a few microseconds of arithmetic, and the dispatcher would cost as much again.
    """
    if type(x) is Tensor and x.is_cpu and not torch.compiler.is_compiling():
        return native.KERNELS[name]
    kernel: Callable[..., Tensor] = getattr(torch.ops.lightconv, name).default
    return kernel


def _records_gradients(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _autocast(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Under autocast, x takes the autocast dtype; weight may stay in float32, which is finer."""
    require_tensor("x", x)
    require_tensor("weight", weight)
    if x.dtype != torch.float64 and _is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x = x.to(dtype)
        if weight.dtype != torch.float32:
            weight = weight.to(dtype)
    return x, weight


def _is_autocast_enabled(kind: str) -> bool:
    # Asking about a device that knows no autocast (meta) is an error in torch.
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def _check_band(backend: str, cu_seqlens: Tensor | None, dropconnect: float) -> None:
    if backend != "band":
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if cu_seqlens is not None or dropconnect > 0.0:
        raise ValueError("backend 'band' knows neither cu_seqlens nor dropconnect; use 'auto'")
