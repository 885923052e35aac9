"""The public operators, and `explain`, which names the kernel that runs.

Four functions over whole sequences and two over a stream; one integer `left` says how far the
kernel reaches back (K - 1 causal, K // 2 centred). `backend="auto"` runs the kernel of x's device,
"reference" the formula, "band" the paper's band matrix.
"""

from typing import Any

import torch
from torch import Tensor

from lightconv.ops import band, cpu, gpu, library, reference, schema
from lightconv.ops.check import (
    Extras,
    Seed,
    accumulate_dtype,
    as_seed,
    check_conv,
    check_step,
    is_transformed,
)

BACKENDS = ("auto", "reference", "band")


def dynamicconv(
    x: Tensor,
    weight: Tensor,
    left: int,
    *,
    cu_seqlens: Tensor | None = None,
    dropconnect: float = 0.0,
    seed: Seed = None,
    backend: str = "auto",
) -> Tensor:
    """Convolution with a kernel per position: out[t] = sum_j weight[t, j] * x[t + j - left].

    x          [B, T, D]
    weight     [B, T, H, K]; channel c uses head c // (D / H)
    cu_seqlens [S + 1], optional: x is [1, N, D], S sequences laid end to end without padding
    returns    [B, T, D]

    `dropconnect` drops single weights (scaled by 1 / (1 - p)), by `seed` or a seed drawn from
    torch's generator.
    """
    return _convolve("dynamicconv", x, weight, left, False, backend, cu_seqlens, dropconnect, seed)


def dynamicconv_softmax(
    x: Tensor,
    logits: Tensor,
    left: int,
    *,
    cu_seqlens: Tensor | None = None,
    dropconnect: float = 0.0,
    seed: Seed = None,
    backend: str = "auto",
) -> Tensor:
    """dynamicconv(x, logits.softmax(-1), left), with the softmax inside the kernel, in float32.

    x       [B, T, D]
    logits  [B, T, H, K]
    returns [B, T, D]
    """
    return _convolve("dynamicconv", x, logits, left, True, backend, cu_seqlens, dropconnect, seed)


def lightconv(
    x: Tensor,
    weight: Tensor,
    left: int,
    *,
    cu_seqlens: Tensor | None = None,
    dropconnect: float = 0.0,
    seed: Seed = None,
    backend: str = "auto",
) -> Tensor:
    """Convolution with one kernel per head: out[t] = sum_j weight[j] * x[t + j - left].

    x          [B, T, D]
    weight     [H, K]; channel c uses head c // (D / H); H = D is a depthwise convolution
    cu_seqlens [S + 1], optional: x is [1, N, D], S sequences laid end to end without padding
    returns    [B, T, D]
    """
    return _convolve("lightconv", x, weight, left, False, backend, cu_seqlens, dropconnect, seed)


def lightconv_softmax(
    x: Tensor,
    logits: Tensor,
    left: int,
    *,
    cu_seqlens: Tensor | None = None,
    dropconnect: float = 0.0,
    seed: Seed = None,
    backend: str = "auto",
) -> Tensor:
    """lightconv(x, logits.softmax(-1), left), with the softmax in float32.

    x       [B, T, D]
    logits  [H, K]
    returns [B, T, D]
    """
    x, logits = _autocast(x, logits)
    check_conv("lightconv", x, logits, left)
    # H x K numbers: a softmax before the kernel costs nothing and stays in float32.
    weight = logits.softmax(-1, dtype=accumulate_dtype(x.dtype))
    return _convolve("lightconv", x, weight, left, False, backend, cu_seqlens, dropconnect, seed)


def _convolve(
    op: str, x: Tensor, weight: Tensor, left: int, softmax: bool, backend: str, *options: Any
) -> Tensor:
    x, weight = _autocast(x, weight)
    cu_seqlens, dropconnect, seed = options
    # A plain tuple: creating an Extras takes longer, and the operators take their options flat.
    extras = cu_seqlens, dropconnect, as_seed(seed, dropconnect, x.device)
    if backend == "auto" and not is_transformed():
        out: Tensor
        if softmax and x.is_cuda:  # whose backward pass needs the log-sum-exp
            out = torch.ops.lightconv.dynamicconv_lse.default(x, weight, left, *extras)[0]
        elif op == "dynamicconv":
            out = torch.ops.lightconv.dynamicconv.default(x, weight, left, softmax, *extras)
        else:
            out = torch.ops.lightconv.lightconv.default(x, weight, left, *extras)
        return out
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    check_conv(op, x, weight, left, Extras(*extras))
    if backend != "band":
        return reference.convolve(x, weight, left, softmax, Extras(*extras))
    if cu_seqlens is not None or dropconnect > 0.0:
        raise ValueError("backend 'band' supports neither cu_seqlens nor dropconnect; use 'auto'")
    return band.convolve(x, weight, left, softmax)


def dynamicconv_step(
    x: Tensor, window: Tensor, position: int, weight: Tensor, *, softmax: bool = False
) -> tuple[Tensor, Tensor]:
    """Next n positions of a causal dynamicconv (left = K - 1), given the K - 1 inputs before.

    x        [B, n, D]: one position or a chunk of any length
    window   [B, K-1, D]: a ring, time t in slot t % (K - 1); zeros at the start
    position the time of x[:, 0]
    weight   [B, n, H, K], or logits with `softmax`
    returns  [B, n, D] and the window to pass next time

    The window is updated in place, unless gradients are being recorded.
    """
    return _step("dynamicconv_step", x, window, position, weight, softmax)


def lightconv_step(
    x: Tensor, window: Tensor, position: int, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Next n positions of a causal lightconv (left = K - 1), given the K - 1 inputs before.

    x        [B, n, D]: one position or a chunk of any length
    window   [B, K-1, D]: a ring, time t in slot t % (K - 1); zeros at the start
    position the time of x[:, 0]
    weight   [H, K]
    returns  [B, n, D] and the window to pass next time, updated in place as above
    """
    return _step("lightconv_step", x, window, position, weight)


def _step(
    op: str, x: Tensor, window: Tensor, position: int, weight: Tensor, *softmax: bool
) -> tuple[Tensor, Tensor]:
    if is_transformed() or (
        torch.is_grad_enabled()
        and (x.requires_grad or window.requires_grad or weight.requires_grad)
    ):
        check_step(op, x, window, position, weight)
        return reference.step(x, window, position, weight, *softmax)
    if type(x) is Tensor and x.is_cpu and not torch.compiler.is_compiling():
        # Directly: the dispatcher would take as long as the few microseconds of arithmetic.
        kernel = cpu.KERNELS[op]
    else:
        kernel = getattr(torch.ops.lightconv, op).default
    return kernel(x, window, position, weight, *softmax), window


def _autocast(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Under autocast, x takes the autocast dtype; weight may stay in float32, which is finer."""
    if not (isinstance(x, Tensor) and isinstance(weight, Tensor)):
        name, value = ("weight", weight) if isinstance(x, Tensor) else ("x", x)
        raise ValueError(f"{name} must be a tensor, got {type(value).__name__}")
    kind = x.device.type
    # A device without autocast (meta) must not be asked whether it is enabled.
    if (
        x.dtype != torch.float64
        and torch.amp.is_autocast_available(kind)
        and torch.is_autocast_enabled(kind)
    ):
        dtype = torch.get_autocast_dtype(kind)
        x = x.to(dtype)
        if weight.dtype != torch.float32:
            weight = weight.to(dtype)
    return x, weight


# --- the kernel that runs -------------------------------------------------------------------------


def explain(operator: str, device: str | torch.device = "cpu") -> str:
    """One sentence: the kernel that `operator` runs on that device, and why.

    >>> lightconv.explain("dynamicconv")
    'dynamicconv on cpu runs C++ avx512: ...'
    """
    if operator not in schema.SCHEMAS:
        raise ValueError(f"operator must be one of {', '.join(schema.SCHEMAS)}, got {operator!r}")
    kind = torch.device(device).type
    kernel, why = _kernel(operator, kind)
    return f"{operator} on {kind} runs {kernel}: {why}"


def explain_all() -> list[dict[str, str]]:
    """A row for each operator on the CPU and, if there is one, on the GPU."""
    kinds = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    names = ("operator", "device", "kernel", "why")
    return [
        dict(zip(names, (operator, kind, *_kernel(operator, kind)), strict=True))
        for operator in schema.SCHEMAS
        for kind in kinds
    ]


def _kernel(operator: str, kind: str) -> tuple[str, str]:
    if kind == "cpu":
        found = library.native()
        if found.library is not None:
            return f"C++ {found.isa}", f"{torch.get_num_threads()} threads, any shape and dtype"
        return "formula", found.reason
    if kind == "cuda" and operator in gpu.KERNELS:
        usable, reason = gpu.available()
        return ("Triton" if usable else "formula"), reason
    return "formula", f"no kernel of its own for {kind}"
