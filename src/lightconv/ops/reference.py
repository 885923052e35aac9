"""The operators as formulas: slow, differentiable, any float dtype, any device. The truth.

    dynamicconv:  out[b, t, c] = sum_j weight[b, t, c // R, j] * x[b, t + j - left, c]
    lightconv:    the same with one weight[h, j] for every b and t

B batch, T length, D channels, H heads, R = D / H, K taps. x is zero outside the sequence. `left`
says how far the kernel reaches back: K - 1 is causal, K // 2 centred. Half precision is summed in
float32. docs/operators.md derives the gradients.
"""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv.ops.check import (
    accumulate_dtype,
    check_boundaries,
    check_dynamicconv,
    check_lightconv,
    check_step,
)
from lightconv.ops.random import drop_scale


def dynamicconv(
    x: Tensor,
    weight: Tensor,
    left: int,
    softmax: bool = False,
    cu_seqlens: Tensor | None = None,
    dropconnect: float = 0.0,
    seed: Tensor | None = None,
) -> Tensor:
    """One kernel per position.

    x [B, T, D], weight [B, T, H, K] -> [B, T, D]. With `softmax`, weight holds logits.
    """
    check_dynamicconv(x, weight, left, cu_seqlens, dropconnect, seed)
    weight = weight.to(accumulate_dtype(x.dtype))
    if softmax:
        weight = weight.softmax(-1)
    if dropconnect > 0.0:
        assert seed is not None
        weight = weight * drop_scale(seed, tuple(weight.shape), dropconnect, weight.dtype)
    return _sum_taps(x, weight, left, cu_seqlens)


def lightconv(
    x: Tensor,
    weight: Tensor,
    left: int,
    cu_seqlens: Tensor | None = None,
    dropconnect: float = 0.0,
    seed: Tensor | None = None,
) -> Tensor:
    """One kernel per head for all positions; DropConnect still draws per (b, t, h, k).

    x [B, T, D], weight [H, K] -> [B, T, D].
    """
    check_lightconv(x, weight, left, cu_seqlens, dropconnect, seed)
    weight = weight.to(accumulate_dtype(x.dtype)).expand(*x.shape[:2], -1, -1)
    if dropconnect > 0.0:
        assert seed is not None
        weight = weight * drop_scale(seed, tuple(weight.shape), dropconnect, weight.dtype)
    return _sum_taps(x, weight, left, cu_seqlens)


def _sum_taps(x: Tensor, weight: Tensor, left: int, cu_seqlens: Tensor | None) -> Tensor:
    """x [B, T, D], weight [B, T, H, K] in the dtype of the sum -> [B, T, D]."""
    if cu_seqlens is not None:
        boundaries = cu_seqlens.tolist()
        check_boundaries("cu_seqlens", boundaries, x.shape[1])
        parts = [
            _sum_taps(x[:, a:b], weight[:, a:b], left, None)
            for a, b in itertools.pairwise(
                [0, *boundaries]
            )  # at least one part, if only an empty one
        ]
        return torch.cat(parts, dim=1)
    T = x.shape[1]
    H, K = weight.shape[2:]
    left = min(left, T + K)  # there is nothing further back
    padded = F.pad(x.to(weight.dtype), (0, 0, left, max(0, K - 1 - left)))
    heads = padded.unflatten(-1, (H, x.shape[2] // H))
    out = torch.zeros_like(heads[:, :T])
    for j in range(K):
        out = out + weight[..., j, None] * heads[:, j : j + T]
    return out.flatten(-2).to(x.dtype)


def dynamicconv_step(
    x: Tensor, window: Tensor, position: int, weight: Tensor, softmax: bool = False
) -> tuple[Tensor, Tensor]:
    """The causal dynamicconv (left = K - 1) of the next n positions, given the K - 1 before them.

    x [B, n, D], window [B, K-1, D], weight [B, n, H, K] -> out [B, n, D], new window.
    The window is a ring: time t lives in slot t % (K - 1); `position` is the time of x[:, 0].
    """
    check_dynamicconv(x, weight, 0)
    check_step("dynamicconv_step", x, window, position, weight)
    weight = weight.to(accumulate_dtype(x.dtype))
    if softmax:
        weight = weight.softmax(-1)
    return _step(x, window, position, weight)


def lightconv_step(
    x: Tensor, window: Tensor, position: int, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """The causal lightconv (left = K - 1) of the next n positions, given the K - 1 before them.

    x [B, n, D], window [B, K-1, D], weight [H, K] -> out [B, n, D], new window.
    """
    check_lightconv(x, weight, 0)
    check_step("lightconv_step", x, window, position, weight)
    weight = weight.to(accumulate_dtype(x.dtype)).expand(*x.shape[:2], -1, -1)
    return _step(x, window, position, weight)


def _step(x: Tensor, window: Tensor, position: int, weight: Tensor) -> tuple[Tensor, Tensor]:
    n, (H, K) = x.shape[1], weight.shape[2:]
    if K == 1:
        return _sum_taps(x, weight, 0, None), window
    recent = torch.cat([window.roll(-(position % (K - 1)), dims=1), x], dim=1)
    heads = recent.to(weight.dtype).unflatten(-1, (H, x.shape[2] // H))
    out = torch.zeros_like(heads[:, :n])
    for j in range(K):
        out = out + weight[..., j, None] * heads[:, j : j + n]
    kept = recent[:, recent.shape[1] - (K - 1) :]
    return out.flatten(-2).to(x.dtype), kept.roll((position + n) % (K - 1), dims=1)
