# mypy: ignore-errors
"""Triton kernels of dynamicconv and lightconv; gpu.py launches them.

One tile is BT positions x BH heads x BR channels of a head: channel c = h * R + r, so a wide head
is cut into pieces of BR channels (BH = 1) and narrow heads share a tile. Every program owns one
tile of its output, so nothing is added atomically and results are the same on every run.

    convolve           out, or the gradient of x: loops over taps, keeps the output tile in
                       registers, reloads rows of x and one column of weights per tap from cache
    log_sum_exp        what the backward pass needs of the softmax: one number per (b, t, h)
    dynamicconv_taps   gradient of weight [B, T, H, K]: loops over blocks of BK taps, keeps one dot
                       product along the channels per (position, head, tap) of the block
    lightconv_taps     gradient of weight [H, K]: the same dot products summed over the positions
                       of a fixed list of time blocks; gpu.py adds the programs' partial sums

A tap outside the sequence is a masked load and a weight of zero, so a NaN there stays there. Tile
offsets are 32-bit, counted from a 64-bit scalar. Sums are in ACC: float32, float64 for float64.
"""

import triton
import triton.language as tl

# T, left and the chance of a drop change from call to call: they must not cause a compilation.
_RUN_TIME = ["T", "H", "left", "threshold"]


@triton.jit
def _mix(h):
    """random._mix in wrapping uint32 arithmetic."""
    h = h ^ (h >> 16)
    h = h * 0x7FEB352D
    h = h ^ (h >> 15)
    h = h * 0x846CA68B
    return h ^ (h >> 16)


@triton.jit
def _drop(value, seed, index, threshold, scale):
    """DropConnect of random.py: value * scale, or 0 where the bits of the int64 index say so."""
    bits = seed ^ index
    h = _mix((seed ^ index).to(tl.uint32))
    h = _mix((h + (seed >> 32).to(tl.uint32)) ^ (index >> 32).to(tl.uint32))
    return tl.where(h >= threshold.to(tl.uint32), value * tl.full((1, 1, 1), scale, value.dtype), 0.0)


@triton.jit
def _place(n, T, begin, end, BT: tl.constexpr, PACKED: tl.constexpr):
    """Time block n: its first row of [B * T], its positions, and the bounds of their sequences."""
    blocks = tl.cdiv(T, BT)
    start = n % blocks * BT
    row = (n // blocks).to(tl.int64) * T + start
    t = start + tl.arange(0, BT)[:, None, None]
    if PACKED:
        low = tl.load(begin + t, mask=t < T, other=0)
        high = tl.load(end + t, mask=t < T, other=0)
    else:
        low = tl.zeros_like(t)
        high = tl.where(t < T, T, 0)
    return row, t, low, high


@triton.jit
def _softmax_stats(weight, at, live, K: tl.constexpr, BT: tl.constexpr, BH: tl.constexpr,
                   BK: tl.constexpr, ACC: tl.constexpr):
    """The maximum and the sum of exp(logit - maximum) over the K taps at weight + at."""
    top = tl.full((BT, BH, 1), float("-inf"), ACC)
    total = tl.zeros((BT, BH, 1), ACC)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)[None, None, :]
        logit = tl.load(weight + (at + k), mask=live & (k < K), other=float("-inf")).to(ACC)
        new = tl.maximum(top, tl.max(logit, axis=2, keep_dims=True))
        safe = tl.where(new == float("-inf"), 0.0, new)
        total = total * tl.exp(top - safe) + tl.sum(tl.exp(logit - safe), axis=2, keep_dims=True)
        top = new
    return top, total


@triton.jit(do_not_specialize=_RUN_TIME)
def convolve(
    out, x, weight, lse, begin, end, seed,
    T, H, left, threshold: "u32", scale: "fp64",
    K: tl.constexpr, R: tl.constexpr,
    DYNAMIC: tl.constexpr, FLIP: tl.constexpr, SOFTMAX: tl.constexpr,
    PACKED: tl.constexpr, DROP: tl.constexpr, ACC: tl.constexpr,
    BT: tl.constexpr, BH: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
):
    """out[t] = sum_j w[t, j] * x[t + j - left]; FLIP: out[s] = sum_j w[t, j] * x[t], s = t + j - left.

    x and out [B, T, H * R], weight [B, T, H, K] if DYNAMIC, else [H, K].
    """
    pieces: tl.constexpr = (R + BR - 1) // BR
    heads = tl.cdiv(H, BH)
    pid = tl.program_id(0)
    n = pid // (heads * pieces)
    row, t, low, high = _place(n, T, begin, end, BT, PACKED)
    h = pid % (heads * pieces) // pieces * BH + tl.arange(0, BH)[None, :, None]
    r = pid % pieces * BR + tl.arange(0, BR)[None, None, :]
    i = tl.arange(0, BT)[:, None, None]
    at_x = i * (H * R) + (h * R + r)
    at_w = i * (H * K) + h * K
    lanes = (h < H) & (r < R)
    if DROP:
        key = tl.load(seed)
    if SOFTMAX and not FLIP:
        top, total = _softmax_stats(weight + row * (H * K), at_w, (t < T) & (h < H), K, BT, BH, BK, ACC)
        total = 1.0 / total
    acc = tl.zeros((BT, BH, BR), ACC)
    for j in range(K):
        if FLIP:
            shift = left - j
            owner = row + shift
        else:
            shift = j - left
            owner = row
        s = t + shift
        inside = (s >= low) & (s < high)
        value = tl.load(x + (row + shift) * (H * R) + at_x, mask=inside & lanes, other=0.0).to(ACC)
        if DYNAMIC:
            w = tl.load(weight + owner * (H * K) + j + at_w, mask=inside & (h < H), other=0.0).to(ACC)
            if SOFTMAX:
                if FLIP:
                    w = tl.exp(w - tl.load(lse + owner * H + (i * H + h), mask=inside & (h < H), other=0.0))
                else:
                    w = tl.exp(w - top) * total
        else:
            w = tl.load(weight + j + h * K, mask=h < H, other=0.0).to(ACC)
        if DROP:
            w = _drop(w, key, (owner * (H * K) + j) + at_w, threshold, scale)
        acc += tl.where(inside, w, 0.0) * value
    tl.store(out + row * (H * R) + at_x, acc.to(out.dtype.element_ty), mask=(t < T) & lanes)


@triton.jit(do_not_specialize=_RUN_TIME)
def log_sum_exp(
    lse, weight, T, H,
    K: tl.constexpr, ACC: tl.constexpr, BT: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr,
):
    """lse [B, T, H] of the logits weight [B, T, H, K]; T counts the rows of all B."""
    heads = tl.cdiv(H, BH)
    row, t, low, high = _place(tl.program_id(0) // heads, T, lse, lse, BT, False)
    h = tl.program_id(0) % heads * BH + tl.arange(0, BH)[None, :, None]
    i = tl.arange(0, BT)[:, None, None]
    live = (t < T) & (h < H)
    top, total = _softmax_stats(weight + row * (H * K), i * (H * K) + h * K, live, K, BT, BH, BK, ACC)
    tl.store(lse + row * H + (i * H + h), top + tl.log(total), mask=live)


@triton.jit
def _dots(grad, x, row, t, low, high, h, k0, T, H, left, K: tl.constexpr, R: tl.constexpr,
          ACC: tl.constexpr, BT: tl.constexpr, BH: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr):
    """grad[t] . x[t + k - left] along the channels of each head, for taps k0 .. k0 + BK.

    grad, x [B, T, H * R] -> [BT, BH, BK], zero for taps outside the sequence.
    """
    i = tl.arange(0, BT)[:, None, None]
    k = tl.arange(0, BK)[None, None, :]
    tile = tl.zeros((BT, BH, BK), ACC)
    for j in range(BK):
        shift = k0 + j - left
        s = t + shift
        inside = (s >= low) & (s < high)
        dot = tl.zeros((BT, BH, 1), ACC)
        for r0 in tl.static_range(0, R, BR):
            r = r0 + tl.arange(0, BR)[None, None, :]
            at = i * (H * R) + (h * R + r)
            lanes = (h < H) & (r < R)
            g = tl.load(grad + row * (H * R) + at, mask=(t < T) & lanes, other=0.0).to(ACC)
            v = tl.load(x + (row + shift) * (H * R) + at, mask=inside & lanes, other=0.0).to(ACC)
            dot += tl.sum(g * v, axis=2, keep_dims=True)
        tile = tl.where(k == j, dot, tile)
    s = t + (k0 - left) + k
    return tl.where((s >= low) & (s < high), tile, 0.0)


@triton.jit(do_not_specialize=_RUN_TIME)
def dynamicconv_taps(
    out, grad, x, weight, lse, begin, end, seed,
    T, H, left, threshold: "u32", scale: "fp64",
    K: tl.constexpr, R: tl.constexpr,
    SOFTMAX: tl.constexpr, PACKED: tl.constexpr, DROP: tl.constexpr, ACC: tl.constexpr,
    BT: tl.constexpr, BH: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
):
    """The gradient of weight, or of logits with SOFTMAX: out [B, T, H, K]."""
    heads = tl.cdiv(H, BH)
    row, t, low, high = _place(tl.program_id(0) // heads, T, begin, end, BT, PACKED)
    h = tl.program_id(0) % heads * BH + tl.arange(0, BH)[None, :, None]
    i = tl.arange(0, BT)[:, None, None]
    base = row * (H * K)
    live = (t < T) & (h < H)
    if DROP:
        key = tl.load(seed)
    tile = tl.zeros((BT, BH, BK), ACC)
    if SOFTMAX:
        norm = tl.load(lse + row * H + (i * H + h), mask=live, other=0.0)
        mean = tl.zeros((BT, BH, 1), ACC)
        for k0 in range(0, K, BK):
            at = i * (H * K) + h * K + (k0 + tl.arange(0, BK)[None, None, :])
            mask = live & (k0 + tl.arange(0, BK)[None, None, :] < K)
            tile = _dots(grad, x, row, t, low, high, h, k0, T, H, left, K, R, ACC, BT, BH, BR, BK)
            if DROP:
                tile = _drop(tile, key, base + at, threshold, scale)
            w = tl.exp(tl.load(weight + base + at, mask=mask, other=float("-inf")).to(ACC) - norm)
            mean += tl.sum(w * tile, axis=2, keep_dims=True)
    for k0 in range(0, K, BK):
        at = i * (H * K) + h * K + (k0 + tl.arange(0, BK)[None, None, :])
        mask = live & (k0 + tl.arange(0, BK)[None, None, :] < K)
        if not SOFTMAX or K > BK:
            tile = _dots(grad, x, row, t, low, high, h, k0, T, H, left, K, R, ACC, BT, BH, BR, BK)
            if DROP:
                tile = _drop(tile, key, base + at, threshold, scale)
        if SOFTMAX:
            w = tl.exp(tl.load(weight + base + at, mask=mask, other=float("-inf")).to(ACC) - norm)
            tile = w * (tile - mean)
        tl.store(out + base + at, tile.to(out.dtype.element_ty), mask=mask)
