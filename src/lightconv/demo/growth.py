"""DynamicConv's operator against attention as sequences grow: time and memory of each token.

Forward + backward of the same number of tokens in ever longer sequences. All sides run in one
process in turns, after a warm-up; a time is the median of three. Memory is what the process's
resident size reached beyond what it was before the call.
"""

import ctypes
import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv import ops
from lightconv.ops.memory import POOL

D, H, K = 512, 8, 31
ROUNDS = 3
# Attention that holds its whole matrix stops where it would need about so many bytes.
MOST_BYTES = 1.5e9

CONV, FUSED, PLAIN = "DynamicConv", "attention, fused", "attention, textbook"
Call = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One length: microseconds and bytes for each token, by side; None is not measured here."""

    length: int
    tokens: int
    microseconds: dict[str, float]
    bytes: dict[str, float] | None


def measure_growth(lengths: Sequence[int], show: Callable[[int], None], tokens: int) -> list[Row]:
    """A row for each length, of at least `tokens`; `show` is told which one is next."""
    rows = []
    for length in lengths:
        show(length)
        rows.append(_measure(length, max(tokens, length)))
    return rows


def _measure(length: int, tokens: int) -> Row:
    torch.manual_seed(0)
    calls = _calls(max(1, tokens // length), length)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
    peaks = {name: peak_bytes(call) for name, call in calls.items()}
    known = {name: peak / tokens for name, peak in peaks.items() if peak is not None}
    return Row(
        length=length,
        tokens=tokens,
        microseconds={name: statistics.median(each) / tokens * 1e6 for name, each in times.items()},
        bytes=known if len(known) == len(calls) else None,
    )


def _calls(B: int, T: int) -> dict[str, Call]:
    """Forward + backward of each side, with inputs of its own."""
    x = torch.randn(B, T, D, requires_grad=True)
    logits = torch.randn(B, T, H, K, requires_grad=True)
    qkv = [torch.randn(B, T, D, requires_grad=True) for _ in range(3)]
    grad = torch.randn(B, T, D)

    def both(function: Callable[..., Tensor], given: Sequence[Tensor]) -> Call:
        def call() -> object:
            out = function(*given)
            return out, torch.autograd.grad(out, given, grad)

        return call

    calls = {
        CONV: both(lambda x, w: ops.dynamicconv_softmax(x, w, K - 1), [x, logits]),
        FUSED: both(fused_attention, qkv),
    }
    if 4.0 * 4 * B * H * T * T <= MOST_BYTES:
        calls[PLAIN] = both(textbook_attention, qkv)
    return calls


def fused_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention as torch has it, which stores no matrix: [B, T, D] each -> [B, T, D]."""
    q, k, v = (_heads(x) for x in (q, k, v))
    return _join(F.scaled_dot_product_attention(q, k, v, is_causal=True))


def textbook_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same with its matrix [B, H, T, T]: [B, T, D] each -> [B, T, D]."""
    q, k, v = (_heads(x) for x in (q, k, v))
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return _join(scores.masked_fill(future, -math.inf).softmax(-1) @ v)


def _heads(x: Tensor) -> Tensor:
    """[B, T, D] -> [B, H, T, R]."""
    heads: Tensor = x.unflatten(2, (H, D // H))
    return heads.transpose(1, 2)


def _join(x: Tensor) -> Tensor:
    """[B, H, T, R] -> [B, T, D]."""
    return x.transpose(1, 2).flatten(2)


def peak_bytes(call: Call) -> int | None:
    """How far the resident size rises during call(); None where the system does not tell."""
    try:
        gc.collect()
        POOL.clear()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = _status("VmRSS")
    except (OSError, AttributeError):
        return None
    kept = call()
    peak = _status("VmHWM")
    del kept
    return max(0, peak - before)


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
