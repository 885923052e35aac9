"""Kernels of a trained model, and time and memory of the operator against attention.

All sides run forward + backward in one process in turns, after a warm-up; a time is the median of
three, memory the rise of the process's resident size during a call.
"""

import ctypes
import gc
import math
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightconv import ops
from lightconv.mixers import NORMALIZATIONS, DynamicConv, LightConv
from lightconv.models import LanguageModel, Seq2Seq
from lightconv.ops.library import POOL

D, H, K = 512, 8, 31
ROUNDS = 3
# Attention with its whole matrix is left out where it would need more bytes.
MOST_BYTES = 1.5e9
CONV, FUSED, PLAIN = "DynamicConv", "attention, fused", "attention, textbook"


def measure_growth(length: int, tokens: int) -> dict[str, Any]:
    """Microseconds and bytes (None if unknown) per token, for `tokens` or for one sequence."""
    torch.manual_seed(0)
    B, tokens = max(1, tokens // length), max(tokens, length)
    logits = torch.randn(B, length, H, K, requires_grad=True)
    grad, x, *qkv = (torch.randn(B, length, D, requires_grad=True) for _ in range(5))
    sides: dict[str, tuple[Callable[..., Tensor], list[Tensor]]] = {
        CONV: (lambda x, w: ops.dynamicconv_softmax(x, w, K - 1), [x, logits]),
        FUSED: (fused_attention, qkv),
    }
    if 4.0 * 4 * B * H * length**2 <= MOST_BYTES:
        sides[PLAIN] = (textbook_attention, qkv)

    def call(name: str) -> object:
        function, inputs = sides[name]
        out = function(*inputs)
        return out, torch.autograd.grad(out, inputs, grad.detach())

    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(1 + ROUNDS):
        for name in sides:
            begin = time.perf_counter()
            call(name)
            times[name].append(time.perf_counter() - begin)
    medians = {name: statistics.median(each[1:]) / tokens * 1e6 for name, each in times.items()}
    peaks = {name: peak_bytes(partial(call, name)) for name in sides}
    known = {name: peak / tokens for name, peak in peaks.items() if peak is not None}
    memory = known if len(known) == len(sides) else None
    return {"length": length, "tokens": tokens, "microseconds": medians, "bytes": memory}


def fused_attention(*qkv: Tensor) -> Tensor:
    """Causal attention of torch, which stores no matrix: three of [B, T, D] -> [B, T, D]."""
    q, k, v = (x.unflatten(2, (H, D // H)).transpose(1, 2) for x in qkv)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def textbook_attention(*qkv: Tensor) -> Tensor:
    """The same with its matrix [B, H, T, T]: three of [B, T, D] -> [B, T, D]."""
    q, k, v = (x.unflatten(2, (H, D // H)).transpose(1, 2) for x in qkv)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    found: Tensor = scores.masked_fill(future, -math.inf).softmax(-1) @ v
    return found.transpose(1, 2).flatten(2)


def peak_bytes(call: Callable[[], object]) -> int | None:
    """Rise of the resident size during call(); None where the system does not report it."""

    def status(field: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

    try:
        gc.collect()
        POOL.clear()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = status("VmRSS:")
    except (OSError, AttributeError):
        return None
    kept = call()
    peak = status("VmHWM:")
    del kept
    return max(0, peak - before)


# --- Kernels


def learned_kernels(model: nn.Module) -> list[dict[str, Any]]:
    """Normalised kernels [H][K] of every LightConv layer, with its name and reach to the left."""
    layers = [(name, each) for name, each in model.named_modules() if isinstance(each, LightConv)]
    return [_describe(name, mixer, mixer.weight.detach()) for name, mixer in layers]


def dynamic_kernels(model: Seq2Seq | LanguageModel, ids: list[int]) -> list[dict[str, Any]]:
    """Normalised kernels [H][T][K] that DynamicConv layers predict, without those of a target."""
    found: list[dict[str, Any]] = []
    with ExitStack() as stack, torch.inference_mode():
        for name, mixer in model.named_modules():
            if isinstance(mixer, DynamicConv):

                def hear(_: nn.Module, args: Any, out: Tensor, name: str, mixer: Any) -> None:
                    logits = out[0].unflatten(-1, (mixer.heads, mixer.kernel))
                    found.append(_describe(name, mixer, logits.transpose(0, 1)))

                hook = partial(hear, name=name, mixer=mixer)
                stack.callback(mixer.kernel_proj.register_forward_hook(hook).remove)
        tokens = torch.tensor([ids], device=next(model.parameters()).device)
        model.encode(tokens) if isinstance(model, Seq2Seq) else model.features(tokens)
    return found


def _describe(name: str, mixer: LightConv | DynamicConv, logits: Tensor) -> dict[str, Any]:
    weights = NORMALIZATIONS[mixer.normalize](logits).double().mul(1e5).round().div(1e5)
    stack, place, *_ = name.split(".")  # encoder.1.mixer is layer 2 of the encoder
    title = f"{stack.removesuffix('s')} {int(place) + 1}"
    return {"layer": title, "left": mixer.left, "weights": weights.tolist()}
