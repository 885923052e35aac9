"""The operators on CUDA: the Triton kernels of gpu_kernels.py, launched and registered.

gpu_kernels.py describes what is parallel, what is looped over and what stays in registers;
`choose_tile` alone decides the sizes of the tiles. Importing this module does not import Triton:
the first CUDA call does. docs/gpu.md says what has been run and what has not.
"""

import contextlib
import functools
import os
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightconv.ops.check import Extras, accumulate_dtype, check_boundaries, check_conv
from lightconv.ops.reference import drop_threshold
from lightconv.ops.schema import LIBRARY, REFERENCE_KERNELS, Kernel, make_kernels


def available() -> tuple[bool, str]:
    """True and Triton's version, or False and the way to install it."""
    try:
        import triton
    except ModuleNotFoundError:
        return False, "triton is not installed: pip install lightconv[gpu]"
    except ImportError as error:
        return False, f"triton is installed but cannot be imported ({error})"
    return True, f"triton {triton.__version__}"


# --- programs of a call ---------------------------------------------------------------------------

# Programs that add partial sums: enough for any GPU, and a constant, so that the order of a sum
# depends on the shapes alone.
PROGRAMS = 1024


class Tile(NamedTuple):
    """BT positions x BH heads x BR channels, BC columns of a band or taps at a time, warps."""

    BT: int
    BH: int
    BR: int
    BC: int
    warps: int
    DOT: bool  # a matrix product with the band; else tap by tap


def _power_of_two(n: int) -> int:  # the smallest >= n
    return 1 << (n - 1).bit_length()


# Bytes of x and the widest K of a row, then BT, BC and warps: no spills, few instructions, by
# benchmarks/gpu_compile.py.
WIDEST = 1 << 30
BANDS = (
    *((2, 17, 16, 32, 1), (2, 49, 16, 64, 1), (2, WIDEST, 32, 32, 2)),
    *((4, 17, 16, 32, 2), (4, 33, 32, 64, 4), (4, WIDEST, 16, 32, 2)),
)


def choose_tile(T: int, H: int, R: int, K: int, dtype: torch.dtype) -> Tile:
    """A static table, not run-time tuning, which would change the order of sums between machines.

    Products from 16 channels on. Below, and in float64, 8 elements a thread: 32 positions x 64
    channels of one head or several, and as many taps as make a second tile no larger.
    """
    if R >= 16 and dtype != torch.float64:
        fits = (band for band in BANDS if band[0] == dtype.itemsize and band[1] >= K)
        _, _, BT, BC, warps = next(fits)
        BR = min(_power_of_two(R), 128)
        return Tile(BT, 1, BR, BC, warps * max(1, BR // 64), True)
    BR = min(_power_of_two(R), 128)
    BH = min(_power_of_two(H), max(1, 64 // BR))
    BT = min(_power_of_two(max(T, 16)), 32)
    BK = min(_power_of_two(K), 64, 2048 // (BT * BH))
    return Tile(BT, BH, BR, BK, max(1, BT * BH * BR // 256), False)


def launch(kernel: Any, programs: int, warps: int, arguments: dict[str, Any]) -> None:
    """Runs a Triton kernel with those of the arguments it has parameters for."""
    device = next(a.device for a in arguments.values() if isinstance(a, Tensor))
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        kernel[(programs,)](
            **{name: arguments[name] for name in kernel.arg_names},
            num_warps=warps,
            enable_fp_fusion=True,
        )


def _kernels() -> Any:
    from lightconv.ops import gpu_kernels

    return gpu_kernels


def _common(x: Tensor, p: float, seed: Tensor | None) -> dict[str, Any]:
    """Arguments of every kernel: the dtype of sums, dropping with probability p."""
    tl = _kernels().tl
    return {
        "ACC": tl.float64 if x.dtype == torch.float64 else tl.float32,
        "seed": seed if p > 0.0 else None,
        "threshold": drop_threshold(p),
        "scale": 1.0 / (1.0 - p),
    }


def _sequence_bounds(cu_seqlens: Tensor, T: int) -> tuple[Tensor, Tensor]:
    """cu_seqlens [S + 1] -> begin and end of each position's sequence, int32 [T] each.

    The values stay on the device: unlike on CPU they are not checked, but never read beyond x.
    """
    if cu_seqlens.shape[0] == 1:
        check_boundaries(cu_seqlens, T)
    ends = cu_seqlens[1:].contiguous()
    positions = torch.arange(T, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    sequence = torch.searchsorted(ends, positions, right=True).clamp_(max=ends.shape[0] - 1)
    begin = cu_seqlens[sequence].clamp(min=0).int()
    return begin, ends[sequence].clamp(max=T).int()


class _Call:
    """Tile and kernel arguments. x [B, T, D], weight [B, T, H, K] or [H, K]."""

    def __init__(self, x: Tensor, weight: Tensor, left: int, softmax: bool, extras: Extras) -> None:
        cu_seqlens, dropconnect, seed = extras
        self.kernels = _kernels()
        self.x, self.weight = x.contiguous(), weight.contiguous()
        B, T, D = x.shape
        H, K = weight.shape[-2:]
        R = D // H
        self.tile = choose_tile(T, H, R, K, x.dtype)
        self.blocks = -(-T // self.tile.BT)
        self.tiles = B * self.blocks
        self.heads, self.pieces = -(-H // self.tile.BH), -(-R // self.tile.BR)
        begin, end = (None, None) if cu_seqlens is None else _sequence_bounds(cu_seqlens, T)
        # float32 weights do not fit in float16, unless they are probabilities.
        exact = x.dtype == torch.float32 or (
            x.dtype == torch.float16 != weight.dtype and not softmax
        )
        tl = self.kernels.tl
        self.arguments: dict[str, Any] = {
            **_common(x, dropconnect, seed),
            **self.tile._asdict(),
            **{"weight": self.weight, "begin": begin, "end": end, "T": T, "H": H, "R": R, "K": K},
            "left": min(left, T + K),  # every tap beyond is outside, and it fits in 32 bits
            **{"blocks": self.blocks, "last": self.tiles - 1, "TILES": 8, "TAPS": K},
            "SOFTMAX": softmax,
            "MULTIPLY": tl.float32 if exact else getattr(tl, str(x.dtype)[6:]),
            "PRECISION": "ieee" if torch.version.hip or not exact else "tf32x3",
            "SPLIT": not exact and (softmax or weight.dtype == torch.float32),
        }

    def run(self, kernel: Any, programs: int, **arguments: Any) -> None:
        launch(kernel, programs * self.heads, self.tile.warps, {**self.arguments, **arguments})

    def convolve(self, value: Tensor, lse: Tensor | None, flip: bool = False) -> Tensor:
        """The output from x, or with `flip` the gradient of x from the output's."""
        out = value.new_empty(value.shape)
        given = {"out": out, "value": value, "FLIP": flip}
        if self.weight.dim() == 2:
            programs = -(-self.tiles // self.arguments["TILES"]) * self.pieces
            self.run(self.kernels.convolve_shared, programs, **given)
        else:
            given |= {"taps": None, "x": None, "lse": lse}
            self.run(self.kernels.convolve, self.tiles * self.pieces, **given)
        return out

    def gradients(self, grad: Tensor, lse: Tensor | None) -> tuple[Tensor, Tensor]:
        """Of x and of weight."""
        if self.weight.dim() == 2 or self.pieces > 1 or self.arguments["K"] > 64:
            return self.convolve(grad, lse, flip=True), self.weight_gradient(grad, lse)
        out, taps = self.x.new_empty(self.x.shape), self.weight.new_empty(self.weight.shape)
        given = {"out": out, "taps": taps, "value": grad, "x": self.x, "lse": lse, "FLIP": True}
        self.run(self.kernels.convolve, self.tiles, **given)
        return out, taps

    def weight_gradient(self, grad: Tensor, lse: Tensor | None) -> Tensor:
        """[B, T, H, K] or [H, K]; the latter from a fixed number of partial sums."""
        given: dict[str, Any] = {"value": grad, "x": self.x, "lse": lse, "FLIP": True}
        if self.weight.dim() == 4:
            taps = self.weight.new_empty(self.weight.shape)
            self.run(self.kernels.convolve, self.tiles, out=None, taps=taps, **given)
            return taps
        BT, _, _, BC, _, DOT = self.tile
        H, K = self.weight.shape
        chunks = -(-(K + BT - 1 if DOT else K) // BC)
        partials = max(1, min(self.tiles, PROGRAMS // (self.heads * chunks)))
        out = self.x.new_empty((partials, BT, H, K), dtype=accumulate_dtype(self.x.dtype))
        given |= {"out": out, "partials": partials}
        self.run(self.kernels.lightconv_taps, partials * chunks, **given)
        return out.sum((0, 1)).to(self.weight.dtype)


# --- the operators of schema.py -------------------------------------------------------------------


def _forward_lse(
    x: Tensor, weight: Tensor, left: int, softmax: bool, extras: Extras
) -> tuple[Tensor, Tensor | None]:
    """The output, and with `softmax` the log-sum-exp [B, T, H] of the logits."""
    shape = weight.shape[:3] if softmax else 0
    lse = x.new_empty(shape, dtype=accumulate_dtype(x.dtype)) if softmax else None
    if x.numel() == 0:
        return x.new_empty(x.shape), lse
    call = _Call(x, weight, left, softmax, extras)
    return call.convolve(call.x, lse), lse


def _forward(*arguments: Any) -> Tensor:
    return _forward_lse(*arguments)[0]


def _backward(
    grad: Tensor, x: Tensor, weight: Tensor, *rest: Any, lse: Tensor | None = None
) -> tuple[Tensor, ...]:
    *options, need_x, need_weight = rest
    if x.numel() == 0 or not (need_x or need_weight):
        grad_x = x.new_zeros(x.shape if need_x else 0)
        return grad_x, weight.new_zeros(weight.shape if need_weight else 0)
    grad = grad.contiguous()  # the kernels read it with the strides of x
    call = _Call(x, weight, *options)
    if call.arguments["SOFTMAX"] and lse is None:
        lse = weight.to(accumulate_dtype(x.dtype)).logsumexp(-1)
    if need_x and need_weight:
        return call.gradients(grad, lse)
    if need_x:
        return call.convolve(grad, lse, flip=True), weight.new_empty(0)
    return x.new_empty(0), call.weight_gradient(grad, lse)


def _step(x: Tensor, window: Tensor, position: int, weight: Tensor, softmax: bool) -> Tensor:
    B, n, D = x.shape
    H, K = weight.shape[-2:]
    out, ring = x.new_empty(x.shape), window.contiguous()
    if x.numel() == 0:
        return out
    BR = min(_power_of_two(D // H), 128)
    BH = min(_power_of_two(H), max(1, 64 // BR))
    x, BC = x.contiguous(), min(_power_of_two(K), 32)
    arguments = _common(x, 0.0, None)
    arguments |= {"out": out, "x": x, "window": ring, "weight": weight.contiguous()}
    arguments |= {"position": position, "n": n, "H": H, "K": K, "R": D // H, "SOFTMAX": softmax}
    arguments |= {"DYNAMIC": weight.dim() == 4, "UPDATE": n == 1, "BH": BH, "BR": BR, "BC": BC}
    launch(_kernels().step, B * n * -(-H // BH) * -(-(D // H) // BR), 4, arguments)
    if n > 1 and K > 1:
        kept = min(n, K - 1)
        slots = (position + torch.arange(n - kept, n, device=x.device)) % (K - 1)
        ring.index_copy_(1, slots, x[:, n - kept :])
    if ring is not window:
        window.copy_(ring)
    return out


def _dynamicconv_lse(x: Tensor, weight: Tensor, left: int, *extras: Any) -> tuple[Tensor, Tensor]:
    check_conv("dynamicconv", x, weight, left, Extras(*extras))
    out, lse = _forward_lse(x, weight, left, True, Extras(*extras))
    assert lse is not None
    return out, lse


KERNELS = make_kernels(_forward, _backward, _step) | {"dynamicconv_lse": _dynamicconv_lse}


# --- dropout, residual sum, layer normalisation: the operators of residual.py ---------------------


def _row_block(D: int) -> dict[str, Any]:
    """A program holds a row: 8 numbers a thread of at most 16 warps."""
    BD = max(32, _power_of_two(D))
    return {"D": D, "BD": BD, "warps": min(max(1, BD // 256), 16)}


def residual(out: Tensor, total: Tensor, stats: Tensor, *rest: Any) -> None:
    """Fills out, total [..., D] and stats [..., 2] from the arguments of the operator."""
    _, inner, weight, _, eps, p, seed = rest
    D = inner.shape[-1]
    if inner.numel() == 0:
        return
    arguments = _common(out, p, seed) | _row_block(D) | {"eps": eps}
    for name, each in zip(("x", "inner", "weight", "bias"), rest, strict=False):
        arguments[name] = None if each is None else each.contiguous()
    normalised = weight is not None
    arguments |= {
        "out": out,
        "total": total if normalised else None,
        "stats": stats if normalised else None,
    }
    launch(_kernels().residual, inner.numel() // D, arguments["warps"], arguments)


def residual_backward(
    found: tuple[Tensor, ...],
    grad: Tensor,
    total: Tensor,
    stats: Tensor,
    weight: Tensor,
    *drop: Any,
) -> None:
    """Fills the gradients of x, inner [..., D], weight and bias [D] that are not empty."""
    grad_x, grad_inner, of_weight, _ = (g if g.numel() else None for g in found)
    D = grad.shape[-1]
    rows = grad.numel() // max(D, 1)
    partials = max(1, min(rows, PROGRAMS))
    out = None if of_weight is None else stats.new_zeros((2, partials, D))
    names = ("grad_x", "grad_inner", "out", "rows", "partials")
    arguments = _common(total, *drop) | _row_block(D)
    arguments |= dict(zip(names, (grad_x, grad_inner, out, rows, partials), strict=True))
    for name, each in (("grad", grad), ("total", total), ("stats", stats), ("weight", weight)):
        arguments[name] = each.contiguous()
    if rows and D:
        launch(_kernels().residual_backward, partials, arguments["warps"], arguments)
    if out is not None:
        for target, sums in zip(found[2:], out.sum(1), strict=True):
            target.copy_(sums)


# --- registration ---------------------------------------------------------------------------------


@functools.cache
def _fallback_reason() -> str:
    """Empty if the kernels can run; otherwise why not, after one warning (an error if required)."""
    usable, reason = available()
    if usable:
        return ""
    if os.environ.get("LIGHTCONV_REQUIRE_NATIVE") == "1":
        raise RuntimeError(f"the lightconv kernels for CUDA cannot run: {reason}")
    warnings.warn(
        f"the lightconv kernels for CUDA cannot run: {reason}. "
        "Using the slow reference formulas; LIGHTCONV_REQUIRE_NATIVE=1 makes this an error.",
        RuntimeWarning,
        stacklevel=2,
    )
    return reason


def _guard(kernel: Kernel, formula: Kernel) -> Kernel:
    """The kernel, or the formula if Triton is missing."""

    def run(*arguments: Any, **lse: Tensor) -> Any:
        return (formula if _fallback_reason() else kernel)(*arguments, **lse)

    return run


def register(library: Any, kernels: dict[str, Kernel], formulas: dict[str, Kernel]) -> None:
    """Makes these the kernels of a torch.library.Library's operators for CUDA tensors."""
    for name, kernel in kernels.items():
        library.impl(name, _guard(kernel, formulas[name]), "CUDA")


register(LIBRARY, KERNELS, REFERENCE_KERNELS)
