"""Measurements of the demo: kernels of a trained model, and the operator against attention.

Time and memory are those of forward + backward of the same number of tokens in ever longer
sequences. All sides run in one process in turns, after a warm-up; a time is the median of three.
Memory is the rise of the process's resident size during a call.
"""

import ctypes
import gc
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightconv import ops
from lightconv.mixers import NORMALIZATIONS, DynamicConv, LightConv
from lightconv.models import LanguageModel, Seq2Seq
from lightconv.ops.memory import POOL

D, H, K = 512, 8, 31
ROUNDS = 3
# Attention with its whole matrix is left out where it would need more bytes.
MOST_BYTES = 1.5e9
CONV, FUSED, PLAIN = "DynamicConv", "attention, fused", "attention, textbook"


def measure_growth(length: int, tokens: int) -> dict[str, Any]:
    """Microseconds and bytes per token by side, with `tokens` or one sequence.

    Bytes are None where the system does not report them.
    """
    torch.manual_seed(0)
    tokens = max(tokens, length)
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
    medians = {name: statistics.median(each) / tokens * 1e6 for name, each in times.items()}
    bytes_ = known if len(known) == len(calls) else None
    return {"length": length, "tokens": tokens, "microseconds": medians, "bytes": bytes_}


def _calls(B: int, T: int) -> dict[str, Callable[[], object]]:
    logits = torch.randn(B, T, H, K, requires_grad=True)
    x, *qkv = (torch.randn(B, T, D, requires_grad=True) for _ in range(4))
    grad = torch.randn(B, T, D)

    def both(function: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], object]:
        def call() -> object:
            out = function(*inputs)
            return out, torch.autograd.grad(out, inputs, grad)

        return call

    calls = {
        CONV: both(lambda x, w: ops.dynamicconv_softmax(x, w, K - 1), x, logits),
        FUSED: both(fused_attention, *qkv),
    }
    if 4.0 * 4 * B * H * T * T <= MOST_BYTES:
        calls[PLAIN] = both(textbook_attention, *qkv)
    return calls


def fused_attention(*qkv: Tensor) -> Tensor:
    """Causal attention of torch, which stores no matrix: three of [B, T, D] -> [B, T, D]."""
    q, k, v = (_split_heads(x) for x in qkv)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def textbook_attention(*qkv: Tensor) -> Tensor:
    """The same with its matrix [B, H, T, T]: three of [B, T, D] -> [B, T, D]."""
    q, k, v = (_split_heads(x) for x in qkv)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return (scores.masked_fill(future, -math.inf).softmax(-1) @ v).transpose(1, 2).flatten(2)


def _split_heads(x: Tensor) -> Tensor:
    """[B, T, D] -> [B, H, T, R]."""
    return x.view(*x.shape[:2], H, D // H).transpose(1, 2)


def peak_bytes(call: Callable[[], object]) -> int | None:
    """Rise of the resident size during call(); None where the system does not report it."""
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


# --- Kernels: {"layer": title, "left": positions before its own, "weights": nested lists}


def learned_kernels(model: nn.Module) -> list[dict[str, Any]]:
    """Normalised kernels [H][K] of every LightConv layer."""
    return [
        _kernels(name, mixer, mixer.weight.detach())
        for name, mixer in model.named_modules()
        if isinstance(mixer, LightConv)
    ]


def dynamic_kernels(model: Seq2Seq | LanguageModel, ids: list[int]) -> list[dict[str, Any]]:
    """Normalised kernels [H][T][K] that DynamicConv layers predict for `ids`.

    Layers over a target, which does not exist yet, are left out.
    """
    logits: dict[nn.Module, Tensor] = {}
    mixers = {name: each for name, each in model.named_modules() if isinstance(each, DynamicConv)}
    handles = [
        mixer.kernel_proj.register_forward_hook(
            lambda module, args, out: logits.__setitem__(module, out)
        )
        for mixer in mixers.values()
    ]
    tokens = torch.tensor([ids], device=next(model.parameters()).device)
    with torch.inference_mode():
        model.encode(tokens) if isinstance(model, Seq2Seq) else model.features(tokens)
    for handle in handles:
        handle.remove()
    return [
        _kernels(name, mixer, logits[mixer.kernel_proj][0].unflatten(-1, (mixer.heads, -1)))
        for name, mixer in mixers.items()
        if mixer.kernel_proj in logits
    ]


def _kernels(name: str, mixer: LightConv | DynamicConv, logits: Tensor) -> dict[str, Any]:
    """logits  [H, K] or [T, H, K]"""
    weights = NORMALIZATIONS[mixer.normalize](logits).double().mul(1e5).round().div(1e5)
    stack, place, *_ = name.split(".")  # encoder.1.mixer is layer 2 of the encoder
    return {
        "layer": f"{stack.removesuffix('s')} {int(place) + 1}",
        "left": mixer.left,
        "weights": (weights.transpose(0, 1) if weights.dim() == 3 else weights).tolist(),
    }
