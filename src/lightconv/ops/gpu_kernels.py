# mypy: ignore-errors
"""The Triton kernels of dynamicconv and lightconv; gpu.py chooses their blocks and launches them.

A tile is BT positions x BH heads x BR channels of a head: a wide head is cut into pieces, narrow
heads share a tile. Every program owns one tile of its result, programs run in any order, nothing is
added atomically; neighbouring programs hold neighbouring heads of the same positions.

    convolve          out, or the gradient of x. Loops over the taps; the output tile stays in
                      registers, rows of x and a column of weights are loaded from cache per tap
    log_sum_exp       the normaliser of each softmax for the backward pass: one number per (b, t, h)
    dynamicconv_taps  gradient of weight [B, T, H, K]. Loops over blocks of BK taps; a dot product
                      along the channels for each (position, head, tap) stays in registers
    lightconv_taps    gradient of weight [H, K]. The same dot products, summed over a fixed list
                      of time blocks; gpu.py adds the programs' sums

A tap outside the sequence is a masked load and a weight of zero, so a NaN there does not spread.
Offsets in a tile are 32-bit, counted from a 64-bit scalar. ACC is float32, or float64 if x is.
`begin` and `end` are None unless sequences are packed, `seed` is None without DropConnect.
"""

import triton
import triton.language as tl

# These change from call to call: their values must not cause another compilation.
_RUN_TIME = ["T", "left", "blocks", "partials", "threshold"]


@triton.jit
def _mix(h):
    """reference._mix in wrapping uint32 arithmetic."""
    h = h ^ (h >> 16)
    h = h * 0x7FEB352D
    h = h ^ (h >> 15)
    h = h * 0x846CA68B
    return h ^ (h >> 16)


@triton.jit
def _drop(value, seed, index, threshold, scale):
    """DropConnect by reference.random_bits(seed, index): value * scale, or 0 below threshold."""
    key = (seed >> 32).to(tl.uint32) + (seed.to(tl.uint32) + 1) * 0x9E3779B9
    h = _mix((seed ^ index).to(tl.uint32))
    h = _mix((h + key) ^ (index >> 32).to(tl.uint32))
    scale = tl.full((1, 1, 1), scale, value.dtype)
    return tl.where(h >= threshold.to(tl.uint32), value * scale, 0.0)


@triton.jit
def _place(n, T, begin, end, BT: tl.constexpr):
    """Time block n: its first row of [B * T], its positions t, the bounds of their sequences."""
    blocks = tl.cdiv(T, BT)
    start = n % blocks * BT
    row = (n // blocks).to(tl.int64) * T + start
    t = start + tl.arange(0, BT)[:, None, None]
    if begin is not None:
        low = tl.load(begin + t, mask=t < T, other=0)
        high = tl.load(end + t, mask=t < T, other=0)
    else:
        low = tl.zeros_like(t)
        high = tl.where(t < T, T, 0)
    return row, t, low, high


@triton.jit
def _log_sum_exp(rows, live, K, ACC, BT, BH, BK):
    """Over the K logits at each of the pointers rows [BT, BH, 1]."""
    top = tl.full((BT, BH, 1), float("-inf"), ACC)
    total = tl.zeros((BT, BH, 1), ACC)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)[None, None, :]
        logit = tl.load(rows + k, mask=live & (k < K), other=float("-inf")).to(ACC)
        new = tl.maximum(top, tl.max(logit, axis=2, keep_dims=True))
        finite = tl.where(new == float("-inf"), 0.0, new)  # -inf - -inf is NaN
        total *= tl.exp(top - finite)
        total += tl.sum(tl.exp(logit - finite), axis=2, keep_dims=True)
        top = new
    return top + tl.log(total)


@triton.jit(do_not_specialize=_RUN_TIME)
def convolve(
    out,
    x,
    weight,
    lse,
    begin,
    end,
    seed,
    T,
    left,
    threshold: tl.uint32,
    scale: tl.float64,
    H: tl.constexpr,
    K: tl.constexpr,
    R: tl.constexpr,
    DYNAMIC: tl.constexpr,
    SOFTMAX: tl.constexpr,
    FLIP: tl.constexpr,
    ACC: tl.constexpr,
    BT: tl.constexpr,
    BH: tl.constexpr,
    BR: tl.constexpr,
    BK: tl.constexpr,
):
    """out[t] = sum_j w[t, j] x[s], s = t + j - left; FLIP: sum_j w[s, j] x[s], s = t - j + left.

    x, out [B, T, H * R], weight [B, T, H, K] if DYNAMIC else [H, K]. SOFTMAX: weight holds logits,
    and lse [B, T, H] is written, or with FLIP read.
    """
    pieces: tl.constexpr = (R + BR - 1) // BR
    columns = tl.cdiv(H, BH) * pieces
    pid = tl.program_id(0)
    row, t, low, high = _place(pid // columns, T, begin, end, BT)
    h = pid % columns // pieces * BH + tl.arange(0, BH)[None, :, None]
    r = pid % pieces * BR + tl.arange(0, BR)[None, None, :]
    i = tl.arange(0, BT)[:, None, None]
    at_x = i * (H * R) + (h * R + r)
    at_w = i * (H * K) + h * K
    lanes = (h < H) & (r < R)
    at_h = i * H + h
    live = (t < T) & (h < H)
    key = tl.load(seed) if seed is not None else 0
    if SOFTMAX and not FLIP:
        # Through memory, so that each thread gets its own rows here and not anew for every tap.
        # Programs with other channels of the same head write the same numbers.
        norm = _log_sum_exp(weight + row * (H * K) + at_w, live, K, ACC, BT, BH, BK)
        tl.store(lse + row * H + at_h, norm, mask=live)
        tl.debug_barrier()
        norm = tl.load(lse + row * H + at_h, mask=live, other=0.0)
    acc = tl.zeros((BT, BH, BR), ACC)
    for j in range(K):
        shift = left - j if FLIP else j - left
        owner = row + shift if FLIP else row
        s = t + shift
        inside = (s >= low) & (s < high)
        value = tl.load(x + (row + shift) * (H * R) + at_x, mask=inside & lanes, other=0.0)
        if DYNAMIC:
            mask = inside & (h < H)
            w = tl.load(weight + owner * (H * K) + j + at_w, mask=mask, other=0.0).to(ACC)
            if SOFTMAX:
                if FLIP:
                    norm = tl.load(lse + owner * H + at_h, mask=mask, other=0.0)
                w = tl.exp(w - norm)
        else:
            w = tl.load(weight + j + h * K, mask=h < H, other=0.0).to(ACC)
        if seed is not None:
            w = _drop(w, key, owner * (H * K) + j + at_w, threshold, scale)
        acc += tl.where(inside, w, 0.0) * value.to(ACC)
    tl.store(out + row * (H * R) + at_x, acc.to(out.dtype.element_ty), mask=(t < T) & lanes)


@triton.jit(do_not_specialize=_RUN_TIME)
def log_sum_exp(
    out,
    weight,
    T,
    H: tl.constexpr,
    K: tl.constexpr,
    ACC: tl.constexpr,
    BT: tl.constexpr,
    BH: tl.constexpr,
    BK: tl.constexpr,
):
    """weight [B, T, H, K] -> out [B, T, H]."""
    columns = tl.cdiv(H, BH)
    row, t, _, _ = _place(tl.program_id(0) // columns, T, None, None, BT)
    h = tl.program_id(0) % columns * BH + tl.arange(0, BH)[None, :, None]
    i = tl.arange(0, BT)[:, None, None]
    live = (t < T) & (h < H)
    norm = _log_sum_exp(weight + row * (H * K) + i * (H * K) + h * K, live, K, ACC, BT, BH, BK)
    tl.store(out + row * H + (i * H + h), norm, mask=live)


@triton.jit
def _dots(grad, x, row, t, low, high, h, k0, T, left, H, K, R, ACC, BT, BH, BR, BK):
    """grad[t] . x[t + k - left] along each head's channels for k0 <= k < k0 + BK: [BT, BH, BK]."""
    i = tl.arange(0, BT)[:, None, None]
    k = tl.arange(0, BK)[None, None, :]
    tile = tl.zeros((BT, BH, BK), ACC)
    for j in range(tl.minimum(BK, K - k0)):
        shift = k0 + j - left
        s = t + shift
        inside = (s >= low) & (s < high)
        dot = tl.zeros((BT, BH, 1), ACC)
        for r0 in range(0, R, BR):
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
    out,
    grad,
    x,
    weight,
    lse,
    begin,
    end,
    seed,
    T,
    left,
    threshold: tl.uint32,
    scale: tl.float64,
    H: tl.constexpr,
    K: tl.constexpr,
    R: tl.constexpr,
    SOFTMAX: tl.constexpr,
    ACC: tl.constexpr,
    BT: tl.constexpr,
    BH: tl.constexpr,
    BR: tl.constexpr,
    BK: tl.constexpr,
):
    """grad, x [B, T, H * R], weight and out [B, T, H, K]; lse [B, T, H] if SOFTMAX."""
    columns = tl.cdiv(H, BH)
    row, t, low, high = _place(tl.program_id(0) // columns, T, begin, end, BT)
    h = tl.program_id(0) % columns * BH + tl.arange(0, BH)[None, :, None]
    i = tl.arange(0, BT)[:, None, None]
    base = row * (H * K)
    live = (t < T) & (h < H)
    key = tl.load(seed) if seed is not None else 0
    tile = tl.zeros((BT, BH, BK), ACC)
    if SOFTMAX:
        # Softmax's gradient is w * (tile - mean); a second pass repeats the dots if K > BK.
        norm = tl.load(lse + row * H + (i * H + h), mask=live, other=0.0)
        mean = tl.zeros((BT, BH, 1), ACC)
        for k0 in range(0, K, BK):
            k = k0 + tl.arange(0, BK)[None, None, :]
            at = i * (H * K) + (h * K + k)
            tile = _dots(grad, x, row, t, low, high, h, k0, T, left, H, K, R, ACC, BT, BH, BR, BK)
            if seed is not None:
                tile = _drop(tile, key, base + at, threshold, scale)
            w = tl.load(weight + base + at, mask=live & (k < K), other=float("-inf")).to(ACC)
            mean += tl.sum(tl.exp(w - norm) * tile, axis=2, keep_dims=True)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)[None, None, :]
        at = i * (H * K) + (h * K + k)
        if not SOFTMAX or K > BK:
            tile = _dots(grad, x, row, t, low, high, h, k0, T, left, H, K, R, ACC, BT, BH, BR, BK)
            if seed is not None:
                tile = _drop(tile, key, base + at, threshold, scale)
        if SOFTMAX:
            w = tl.load(weight + base + at, mask=live & (k < K), other=float("-inf")).to(ACC)
            tile = tl.exp(w - norm) * (tile - mean)
        tl.store(out + base + at, tile.to(out.dtype.element_ty), mask=live & (k < K))


@triton.jit(do_not_specialize=_RUN_TIME)
def lightconv_taps(
    out,
    grad,
    x,
    begin,
    end,
    seed,
    T,
    left,
    blocks,
    partials,
    threshold: tl.uint32,
    scale: tl.float64,
    H: tl.constexpr,
    K: tl.constexpr,
    R: tl.constexpr,
    ACC: tl.constexpr,
    BT: tl.constexpr,
    BH: tl.constexpr,
    BR: tl.constexpr,
    BK: tl.constexpr,
):
    """grad, x [B, T, H * R] -> out [partials, H, K]: p sums time blocks p, p + partials, ..."""
    tap_blocks: tl.constexpr = (K + BK - 1) // BK
    columns = tl.cdiv(H, BH) * tap_blocks
    pid = tl.program_id(0)
    h = pid % columns // tap_blocks * BH + tl.arange(0, BH)[None, :, None]
    k0 = pid % tap_blocks * BK
    k = k0 + tl.arange(0, BK)[None, None, :]
    key = tl.load(seed) if seed is not None else 0
    acc = tl.zeros((BT, BH, BK), ACC)
    for n in range(pid // columns, blocks, partials):
        row, t, low, high = _place(n, T, begin, end, BT)
        tile = _dots(grad, x, row, t, low, high, h, k0, T, left, H, K, R, ACC, BT, BH, BR, BK)
        if seed is not None:
            at = tl.arange(0, BT)[:, None, None] * (H * K) + (h * K + k)
            tile = _drop(tile, key, row * (H * K) + at, threshold, scale)
        acc += tile
    at = (pid // columns).to(tl.int64) * (H * K) + (h * K + k)
    tl.store(out + at, tl.sum(acc, axis=0, keep_dims=True), mask=(h < H) & (k < K))
