"""The public operators, and `explain`, which names the kernel that runs.

Four functions over whole sequences and two over a stream; one integer `left` says how far the
kernel reaches back (K - 1 causal, K // 2 centred). `backend="auto"` runs the kernel of x's device,
"reference" the formula, "band" the paper's band matrix.
"""

from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from lightconv.ops import band, cpu, gpu, library, reference, schema
from lightconv.ops.check import (
    Extras,
    Seed,
    accumulate_dtype,
    as_seed,
    autocast_dtype,
    check_conv,
    check_step,
    is_transformed,
)
from lightconv.ops.frame import convolve as convolve_framed
from lightconv.ops.frame import fork, make_frame, runs_here
from lightconv.ops.frame import step as step_framed

BACKENDS = ("auto", "reference", "band")


class ConvOptions(TypedDict, total=False):
    """Keywords of the convolutions. Those of the second part are `frame.Frame`, described there.

    cu_seqlens    [S + 1]: x is [1, N, D], S sequences laid end to end without padding
    dropconnect   drops single weights (scaled by 1 / (1 - p)), by `seed` or one drawn from torch's
                  generator
    dilation      distance of two taps: out[t] = sum_j weight[t, j] * x[t + (j - left) * dilation]
    initial_state [B or S, (K-1) * dilation, D], oldest first: inputs before x, of a causal kernel;
                  `final_state` has those after it
    bias, activation, gate_in, gate_out, residual
                  gate_out * activation(conv(gate_in * x) + bias) + x; [D], "silu", [B, T, D] twice,
                  bool
    """

    cu_seqlens: Tensor | None
    dropconnect: float
    seed: Seed
    backend: str
    dilation: int
    bias: Tensor | None
    activation: str | None
    residual: bool
    gate_in: Tensor | None
    gate_out: Tensor | None
    initial_state: Tensor | None


def dynamicconv(x: Tensor, weight: Tensor, left: int, **options: Unpack[ConvOptions]) -> Tensor:
    """Convolution with a kernel per position: out[t] = sum_j weight[t, j] * x[t + j - left].

    x       [B, T, D]
    weight  [B, T, H, K]; channel c uses head c // (D / H)
    options as of `ConvOptions`
    returns [B, T, D]
    """
    return _convolve("dynamicconv", x, weight, left, False, **options)


def dynamicconv_softmax(
    x: Tensor, logits: Tensor, left: int, **options: Unpack[ConvOptions]
) -> Tensor:
    """dynamicconv(x, logits.softmax(-1), left), with the softmax inside the kernel, in float32.

    x       [B, T, D]
    logits  [B, T, H, K]
    options as of `ConvOptions`
    returns [B, T, D]
    """
    return _convolve("dynamicconv", x, logits, left, True, **options)


def lightconv(x: Tensor, weight: Tensor, left: int, **options: Unpack[ConvOptions]) -> Tensor:
    """Convolution with one kernel per head: out[t] = sum_j weight[j] * x[t + j - left].

    x       [B, T, D]
    weight  [H, K]; channel c uses head c // (D / H); H = D is a depthwise convolution
    options as of `ConvOptions`
    returns [B, T, D]
    """
    return _convolve("lightconv", x, weight, left, False, **options)


def lightconv_softmax(
    x: Tensor, logits: Tensor, left: int, **options: Unpack[ConvOptions]
) -> Tensor:
    """lightconv(x, logits.softmax(-1), left), with the softmax in float32.

    x       [B, T, D]
    logits  [H, K]
    options as of `ConvOptions`
    returns [B, T, D]
    """
    x, logits = _autocast(x, logits)
    check_conv("lightconv", x, logits, left)
    # H x K numbers: a softmax before the kernel costs nothing and stays in float32.
    weight = logits.softmax(-1, dtype=accumulate_dtype(x.dtype))
    return _convolve("lightconv", x, weight, left, False, **options)


def _convolve(
    op: str,
    x: Tensor,
    weight: Tensor,
    left: int,
    softmax: bool,
    *,
    backend: str = "auto",
    cu_seqlens: Tensor | None = None,
    dropconnect: float = 0.0,
    seed: Seed = None,
    **around: Any,
) -> Tensor:
    x, weight = _autocast(x, weight)
    # A plain tuple: creating an Extras takes longer, and the operators take their options flat.
    extras = cu_seqlens, dropconnect, as_seed(seed, dropconnect, x.device)
    if around:
        return _framed(op, x, weight, left, softmax, backend, Extras(*extras), around)
    if backend == "auto" and not is_transformed():
        out: Tensor
        if softmax and x.is_cuda:  # whose backward pass needs the log-sum-exp
            out = torch.ops.lightconv.dynamicconv_lse.default(x, weight, left, *extras)[0]
            return out
        here = runs_here(x) and runs_here(weight)
        run = cpu.FUNCTIONS[op] if here else getattr(torch.ops.lightconv, op).default
        options = (softmax, *extras) if op == "dynamicconv" else extras
        out = run(x, weight, left, *options)
        return out
    _check_backend(backend)
    check_conv(op, x, weight, left, Extras(*extras))
    if backend != "band":
        return reference.convolve(x, weight, left, softmax, Extras(*extras))
    if cu_seqlens is not None or dropconnect > 0.0:
        raise ValueError("backend 'band' supports neither cu_seqlens nor dropconnect; use 'auto'")
    return band.convolve(x, weight, left, softmax)


def _framed(
    op: str,
    x: Tensor,
    weight: Tensor,
    left: int,
    softmax: bool,
    backend: str,
    extras: Extras,
    around: dict[str, Any],
) -> Tensor:
    """The convolution in its frame; of plain kernels and of the formula's own definition."""
    _check_backend(backend)
    check_conv(op, x, weight, left, extras)
    frame = make_frame(op, around)
    cu_seqlens, dropconnect, seed = extras
    frame.check(op, x, weight, left, x.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1)
    x, residual = fork(x) if frame.residual and backend == "auto" else (x, x)
    inputs, dilation, state = frame.open(x), frame.dilation, frame.initial_state
    if dilation == 1 and state is None:
        options: Any = {"backend": backend, "cu_seqlens": cu_seqlens}
        options |= {"dropconnect": dropconnect, "seed": seed}
        out = _convolve(op, inputs, weight, left, softmax, **options)
    elif backend == "band":
        raise ValueError("backend 'band' has neither dilation nor initial_state; use 'auto'")
    elif (
        backend == "reference"
        or is_transformed()
        or (torch.compiler.is_compiling() and cu_seqlens is None)  # views fix a dynamic length
    ):
        out = reference.convolve(inputs, weight, left, softmax, extras, dilation, state)
    else:
        if dropconnect > 0.0:
            # The mask of a weight depends on its place, which the frame changes.
            weight = reference.normalize(inputs, weight, softmax)
            op, softmax, weight = "dynamicconv", False, reference.drop(weight, dropconnect, seed)
        run = lambda x, weight, cu: _convolve(op, x, weight, left, softmax, cu_seqlens=cu)
        out = convolve_framed(run, inputs, weight, cu_seqlens, frame)
    return frame.close(out, residual)


def _check_backend(backend: str) -> None:
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")


def dynamicconv_step(
    x: Tensor,
    window: Tensor,
    position: int | Tensor,
    weight: Tensor,
    *,
    softmax: bool = False,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Next n positions of a causal dynamicconv (left = K - 1), given the K - 1 inputs before.

    x        [B, n, D]: one position or a chunk of any length
    window   [B, (K-1) * dilation, D]: a ring, time t in slot t % len(ring); zeros at the start
    position the time of x[:, 0]; a tensor [B] if every row has its own
    weight   [B, n, H, K], or logits with `softmax`
    options  `state_indices` [B]: rows of the window that belong to x, whatever their number;
             dilation, bias, activation, residual, gate_in and gate_out as of `ConvOptions`
    returns  [B, n, D] and the window to pass next time

    The window is updated in place, unless gradients are being recorded.
    """
    return _step("dynamicconv_step", x, window, position, weight, softmax, **options)


def lightconv_step(
    x: Tensor, window: Tensor, position: int | Tensor, weight: Tensor, **options: Any
) -> tuple[Tensor, Tensor]:
    """Next n positions of a causal lightconv (left = K - 1), given the K - 1 inputs before.

    weight   [H, K]; everything else as of `dynamicconv_step`
    """
    return _step("lightconv_step", x, window, position, weight, **options)


def _step(
    op: str, x: Tensor, window: Tensor, position: Any, weight: Tensor, *softmax: bool, **around: Any
) -> tuple[Tensor, Tensor]:
    if around or isinstance(position, Tensor):
        return _framed_step(op, x, window, position, weight, *softmax, **around)
    if _recorded(x, window, weight):
        check_step(op, x, window, position, weight)
        return reference.step(x, window, position, weight, *softmax)
    if type(x) is Tensor and x.is_cpu and not torch.compiler.is_compiling():
        # Directly: the dispatcher would take as long as the few microseconds of arithmetic.
        kernel = cpu.KERNELS[op]
    else:
        kernel = getattr(torch.ops.lightconv, op).default
    return kernel(x, window, position, weight, *softmax), window


def _recorded(*tensors: Tensor | None) -> bool:
    """True if gradients or transforms forbid an update in place."""
    grads = (each.requires_grad for each in tensors if each is not None)
    return is_transformed() or (torch.is_grad_enabled() and any(grads))


def _framed_step(
    op: str,
    x: Tensor,
    window: Tensor,
    position: int | Tensor,
    weight: Tensor,
    *softmax: bool,
    state_indices: Tensor | None = None,
    **around: Any,
) -> tuple[Tensor, Tensor]:
    frame = make_frame(op, around)
    rows = window if state_indices is None else window.index_select(0, state_indices)
    if frame.initial_state is not None:
        raise ValueError(f"{op}: a step has no initial_state; its window is the state")
    frame.check(op, x, weight, weight.shape[-1] - 1, x.shape[0])
    wanted = [x.shape[0], (weight.shape[-1] - 1) * frame.dilation, x.shape[2]]
    if list(rows.shape) != wanted:
        raise ValueError(f"{op}: window must have shape {wanted}, got {list(rows.shape)}")
    if isinstance(position, Tensor) and (
        position.shape != x.shape[:1] or position.is_floating_point()
    ):
        raise ValueError(f"{op}: position must be an integer or integers of shape {[x.shape[0]]}")
    inputs = frame.open(x)
    in_place = not _recorded(inputs, window, weight)
    if torch.compiler.is_compiling() and frame.dilation > 1:  # phases fix a dynamic position
        formula: Any = reference.step
        run: Any = lambda *v: formula(*v, *softmax or (False,), frame.dilation)
    else:
        run = lambda *each: _step(op, *each, *softmax)
    out, new = step_framed(run, inputs, rows, position, weight, frame.dilation)
    if state_indices is not None:
        put = window.index_copy_ if in_place else window.index_copy
        new = put(0, state_indices, new)
    elif in_place:
        new = window if new is window else window.copy_(new)
    return frame.close(out, x), new


def _autocast(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Under autocast, x takes the autocast dtype; weight may stay in float32, which is finer."""
    if not (isinstance(x, Tensor) and isinstance(weight, Tensor)):
        name, value = ("weight", weight) if isinstance(x, Tensor) else ("x", x)
        raise ValueError(f"{name} must be a tensor, got {type(value).__name__}")
    dtype = autocast_dtype(x)
    if dtype is None:
        return x, weight
    return x.to(dtype), weight if weight.dtype == torch.float32 else weight.to(dtype)


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
