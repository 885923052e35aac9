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

from lightconv.ops.check import Extras, accumulate_dtype, check_boundaries
from lightconv.ops.reference import drop_threshold
from lightconv.ops.schema import REFERENCE_KERNELS, Kernel, make_kernels


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

# Programs of lightconv's weight gradient: enough for any GPU, and a constant, so that the order of
# its sum depends on the shapes alone.
PROGRAMS = 1024


class Tile(NamedTuple):
    """BT positions x BH heads x BR channels, BK taps at a time, warps that share it."""

    BT: int
    BH: int
    BR: int
    BK: int
    warps: int


def _power_of_two(n: int) -> int:  # the smallest >= n
    return 1 << (n - 1).bit_length()


def choose_tile(T: int, H: int, R: int, K: int) -> Tile:
    """32 positions x 64 channels (128 in wider heads), 8 elements a thread.

    With 16 elements a thread some kernels spill registers, with 8 none does. 64 channels are whole
    cache lines in every dtype; narrower heads share a tile. Taps come in blocks that make a second
    tile no larger than the first: all of K <= 64 at once if R >= 64.
    """
    BR = min(_power_of_two(R), 128)
    BH = min(_power_of_two(H), max(1, 64 // BR))
    BT = min(_power_of_two(max(T, 16)), 32)
    BK = min(_power_of_two(K), 64, 2048 // (BT * BH))
    return Tile(BT, BH, BR, BK, warps=max(1, BT * BH * BR // 256))


def launch(kernel: Any, programs: int, warps: int, arguments: dict[str, Any]) -> None:
    """Runs a Triton kernel with those of the arguments it has parameters for."""
    device = arguments["out"].device
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        kernel[(programs,)](
            **{name: arguments[name] for name in kernel.arg_names},
            num_warps=warps,
            enable_fp_fusion=True,
        )


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
        from lightconv.ops import gpu_kernels

        cu_seqlens, dropconnect, seed = extras
        self.kernels: Any = gpu_kernels
        self.x, self.weight = x.contiguous(), weight.contiguous()
        B, T, D = x.shape
        H, K = weight.shape[-2:]
        self.tile = choose_tile(T, H, D // H, K)
        self.time_blocks = B * -(-T // self.tile.BT)
        self.head_blocks = -(-H // self.tile.BH)
        begin, end = (None, None) if cu_seqlens is None else _sequence_bounds(cu_seqlens, T)
        self.arguments: dict[str, Any] = {
            "weight": self.weight,
            "begin": begin,
            "end": end,
            "seed": seed if dropconnect > 0.0 else None,
            "threshold": drop_threshold(dropconnect),
            "scale": 1.0 / (1.0 - dropconnect),
            "left": min(left, T + K),  # every tap beyond is outside, and it fits in 32 bits
            "T": T,
            "H": H,
            "R": D // H,
            "K": K,
            "DYNAMIC": weight.dim() == 4,
            "SOFTMAX": softmax,
            "ACC": self.kernels.tl.float64 if x.dtype == torch.float64 else self.kernels.tl.float32,
            **self.tile._asdict(),
        }

    def run(
        self, kernel: Any, programs: int, out: Tensor, warps: int = 0, **arguments: Any
    ) -> Tensor:
        arguments = {**self.arguments, "out": out, **arguments}
        launch(kernel, programs, warps or self.tile.warps, arguments)
        return out

    def convolve(self, x: Tensor, flip: bool, lse: Tensor | None) -> Tensor:
        """The output from x, or with `flip` the gradient of x from the output's."""
        pieces = -(-self.arguments["R"] // self.tile.BR)
        programs = self.time_blocks * self.head_blocks * pieces
        out = x.new_empty(x.shape)
        return self.run(self.kernels.convolve, programs, out, x=x, FLIP=flip, lse=lse)

    def empty_lse(self) -> Tensor:
        """Room for one number for each softmax: [B, T, H]."""
        return self.x.new_empty(self.weight.shape[:3], dtype=accumulate_dtype(self.x.dtype))

    def log_sum_exp(self) -> Tensor:
        """The normaliser of each softmax: [B, T, H]."""
        BT, BH, _, BK, _ = self.tile
        programs, warps = self.time_blocks * self.head_blocks, max(1, BT * BH * BK // 256)
        return self.run(self.kernels.log_sum_exp, programs, self.empty_lse(), warps)

    def weight_gradient(self, grad: Tensor, lse: Tensor | None) -> Tensor:
        """[B, T, H, K] or [H, K]; the latter from a fixed number of partial sums."""
        if self.weight.dim() == 4:
            out = self.weight.new_empty(self.weight.shape)
            programs = self.time_blocks * self.head_blocks
            return self.run(
                self.kernels.dynamicconv_taps, programs, out, grad=grad, x=self.x, lse=lse
            )
        H, K = self.weight.shape
        columns = self.head_blocks * -(-K // self.tile.BK)
        partials = max(1, min(self.time_blocks, PROGRAMS // columns))
        out = self.x.new_empty((partials, H, K), dtype=accumulate_dtype(self.x.dtype))
        counts = {"blocks": self.time_blocks, "partials": partials}
        kernel, programs = self.kernels.lightconv_taps, partials * columns
        self.run(kernel, programs, out, grad=grad, x=self.x, **counts)
        return out.sum(0).to(self.weight.dtype)


# --- the operators of schema.py -------------------------------------------------------------------


def _forward(x: Tensor, weight: Tensor, left: int, softmax: bool, extras: Extras) -> Tensor:
    if x.numel() == 0:
        return x.new_empty(x.shape)
    call = _Call(x, weight, left, softmax, extras)
    return call.convolve(call.x, flip=False, lse=call.empty_lse() if softmax else None)


def _backward(grad: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *options, need_x, need_weight = rest
    if x.numel() == 0 or not (need_x or need_weight):
        grad_x = x.new_zeros(x.shape if need_x else 0)
        return grad_x, weight.new_zeros(weight.shape if need_weight else 0)
    grad = grad.contiguous()  # the kernels read it with the strides of x
    call = _Call(x, weight, *options)
    lse = call.log_sum_exp() if call.arguments["SOFTMAX"] else None
    return (
        call.convolve(grad, flip=True, lse=lse) if need_x else x.new_empty(0),
        call.weight_gradient(grad, lse) if need_weight else weight.new_empty(0),
    )


KERNELS = make_kernels(_forward, _backward)


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


def _guard(name: str) -> Kernel:
    """The kernel, or the reference formula if Triton is missing."""

    def run(*arguments: Any) -> Any:
        return (REFERENCE_KERNELS if _fallback_reason() else KERNELS)[name](*arguments)

    return run


def register(library: Any) -> None:
    """Makes these the kernels of a torch.library.Library's operators for CUDA tensors."""
    for name in KERNELS:
        library.impl(name, _guard(name), "CUDA")
