"""The operators as formulas: the definition that every kernel is tested against.

    dynamicconv:  out[b, t, c] = sum_j weight[b, t, c // R, j] * x[b, t + j - left, c]
    lightconv:    the same with one weight[h, j] for every b and t

B batch, T length, D channels, H heads, R = D / H, K taps. x is zero outside the sequence. `left`
says how far the kernel reaches back: K - 1 is causal, K // 2 centred. Dilated taps are `dilation`
apart: x[b, t + (j - left) * dilation, c]. A state is what stands before the sequence. Slow and
differentiable, for any float dtype and device; half precision is summed in float32.
docs/operators.md derives the gradients. Arguments are checked by the callers.

DropConnect and dropout draw and store nothing. Element i of a tensor is kept or dropped by a hash
of its flat index and a 64-bit seed, so the backward pass recomputes the forward's mask, a resumed
run repeats it, and the C++ and Triton kernels can be compared with this formula bit for bit.
"""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv.ops.check import PLAIN, Extras, accumulate_dtype, check_boundaries

_MASK32 = 0xFFFFFFFF


def convolve(
    x: Tensor,
    weight: Tensor,
    left: int,
    softmax: bool = False,
    extras: Extras = PLAIN,
    dilation: int = 1,
    state: Tensor | None = None,
) -> Tensor:
    """Convolution of whole sequences; DropConnect draws per (b, t, h, k) in both operators.

    x       [B, T, D]
    weight  [B, T, H, K], one kernel per position, or [H, K]; logits with `softmax`
    state   [B or sequences, (K-1) * dilation, D], oldest first, of a causal kernel; zeros if None
    returns [B, T, D]
    """
    weight = normalize(x, weight, softmax)
    cu_seqlens, dropconnect, seed = extras
    weight = drop(weight, dropconnect, seed)
    if cu_seqlens is None:
        return _convolve(x, weight, left, dilation, state)
    check_boundaries(cu_seqlens, x.shape[1])
    # The leading 0 adds an empty part, so that there is at least one.
    parts = itertools.pairwise([0, *cu_seqlens.tolist()])
    states = [None] * len(cu_seqlens) if state is None else [None, *state.split(1)]
    outs = [
        _convolve(x[:, a:b], weight[:, a:b], left, dilation, past)
        for (a, b), past in zip(parts, states, strict=True)
    ]
    return torch.cat(outs, dim=1)


def step(
    x: Tensor,
    window: Tensor,
    position: int,
    weight: Tensor,
    softmax: bool = False,
    dilation: int = 1,
) -> tuple[Tensor, Tensor]:
    """Causal convolution (left = K - 1) of the next n positions, given those before them.

    x        [B, n, D]
    window   [B, slots, D], slots = (K-1) * dilation: a ring, time t in slot t % slots
    position the time of x[:, 0]
    weight   [B, n, H, K] or [H, K]; logits with `softmax`
    returns  [B, n, D] and the new window
    """
    weight = normalize(x, weight, softmax)
    n, slots = x.shape[1], (weight.shape[3] - 1) * dilation
    if slots == 0:
        return _sum_taps(x, weight).to(x.dtype), window
    recent = torch.cat([window.roll(-(position % slots), dims=1), x], dim=1)
    new = recent[:, recent.shape[1] - slots :].roll((position + n) % slots, dims=1)
    return _sum_taps(recent, weight, dilation).to(x.dtype), new


def normalize(x: Tensor, weight: Tensor, softmax: bool) -> Tensor:
    """weight [B, T, H, K] or [H, K] -> [B, T, H, K] in the dtype of the sum."""
    weight = weight.to(accumulate_dtype(x.dtype))
    if softmax:
        weight = weight.softmax(-1)
    return weight if weight.dim() == 4 else weight.expand(*x.shape[:2], -1, -1)


def _convolve(x: Tensor, weight: Tensor, left: int, dilation: int, state: Tensor | None) -> Tensor:
    T, K = x.shape[1], weight.shape[3]
    left = min(left, T + K)  # every tap beyond is outside the sequence
    after = max(0, K - 1 - left) * dilation
    if state is None:
        padded = F.pad(x, (0, 0, left * dilation, after))
    else:
        padded = torch.cat([state.to(x.dtype), x], dim=1)
    return _sum_taps(padded, weight, dilation).to(x.dtype)


def _sum_taps(padded: Tensor, weight: Tensor, dilation: int = 1) -> Tensor:
    """padded [B, T + (K-1) * dilation or more, D], weight [B, T, H, K] -> [B, T, D]:
    sum_j weight[t, j] * padded[t + j * dilation]."""
    T, H, K = weight.shape[1:]
    heads = padded.to(weight.dtype).unflatten(-1, (H, padded.shape[2] // H))
    out = torch.zeros_like(heads[:, :T])
    for j in range(K):
        out = out + weight[..., j, None] * heads[:, j * dilation : j * dilation + T]
    return out.flatten(-2)


# --- masks ----------------------------------------------------------------------------------------


def _mix(h: Tensor) -> Tensor:
    # A published 32-bit finaliser with low bias ("lowbias32"), in int64 arithmetic modulo 2**32.
    h = h ^ (h >> 16)
    h = (h * 0x7FEB352D) & _MASK32
    h = h ^ (h >> 15)
    h = (h * 0x846CA68B) & _MASK32
    return h ^ (h >> 16)


def random_bits(seed: Tensor, index: Tensor) -> Tensor:
    """Uniform integers in [0, 2**32) as int64, one for each int64 index.

    Two rounds: the first mixes the low halves of index and seed, the second the high halves and the
    seed once more, so that two seeds, also neighbouring ones, give unrelated streams and not
    permuted copies of one.
    """
    low, high = seed & _MASK32, (seed >> 32) & _MASK32
    key = (high + ((low + 1) * 0x9E3779B9 & _MASK32)) & _MASK32
    h = _mix((index & _MASK32) ^ low)
    return _mix(((h + key) & _MASK32) ^ ((index >> 32) & _MASK32))


def drop_threshold(p: float) -> int:
    """Elements whose random bits are below this integer are dropped."""
    return min(math.floor(p * 2**32), _MASK32)


def drop(value: Tensor, p: float, seed: Tensor | None) -> Tensor:
    """value times the factors of its elements; value itself if p is 0."""
    if p == 0.0:
        return value
    assert seed is not None
    return value * drop_scale(seed, tuple(value.shape), p, value.dtype)


def drop_scale(
    seed: Tensor, shape: tuple[int, ...], p: float, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Factors for a tensor of that shape: 0 with probability p, else 1 / (1 - p)."""
    index = torch.arange(math.prod(shape), device=seed.device, dtype=torch.int64)
    kept = random_bits(seed.reshape(()), index) >= drop_threshold(p)
    return (kept.to(dtype) / (1.0 - p)).reshape(shape)
