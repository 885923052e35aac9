# mypy: ignore-errors
"""The Triton kernels; gpu.py chooses their blocks and launches them.

The convolution of BT positions of one head is a product with a band: row i of the band holds the K
weights of position i, shifted by i, and meets BT + K - 1 rows of x. All three passes are `tl.dot`
over that layout (DOT), in BC columns at a time:

    out              band @ x
    gradient of x    the same with the band of the transpose (FLIP) and the output's gradient
    gradient of w    grad @ x^T, of which the band is kept

Heads below 16 channels and float64 loop over the taps instead: BT positions x BH heads x BR
channels. Every program owns its part of the results, programs run in any order, nothing is added
atomically; neighbouring programs hold neighbouring heads of the same positions.

A tap outside the sequence is a masked load and a weight of zero. A product would still spread a NaN
or an infinity along its rows (0 * NaN): a tile with a result that is not finite is computed again,
tap by tap. Offsets in a tile are 32-bit, counted from a 64-bit scalar. ACC is float32, or float64
if x is. `begin` and `end` are None unless sequences are packed, `seed` is None without DropConnect.
TAPS is K; with 0 in its place what is left is what runs if all is finite, for counting.
"""

import triton
import triton.language as tl

# These change from call to call: their values must not cause another compilation.
_RUN_TIME = ["T", "left", "blocks", "last", "partials", "threshold", "position", "n", "rows"]
_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def _mix(h):
    """reference._mix in wrapping uint32 arithmetic."""
    h = h ^ (h >> 16)
    h = h * 0x7FEB352D
    h = h ^ (h >> 15)
    h = h * 0x846CA68B
    return h ^ (h >> 16)


@triton.jit
def _kept(seed, index, threshold):
    """Elements that reference.random_bits(seed, index) keeps: those not below the threshold."""
    key = (seed >> 32).to(tl.uint32) + (seed.to(tl.uint32) + 1) * 0x9E3779B9
    h = _mix((seed ^ index).to(tl.uint32))
    return _mix((h + key) ^ (index >> 32).to(tl.uint32)) >= threshold.to(tl.uint32)


@triton.jit
def _dot(a, b, acc, PRECISION: tl.constexpr):
    if _INTERPRETED:  # Triton's interpreter multiplies the bits of a bfloat16
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def _bounds(t, T, begin, end):
    """Begin and end of the sequence of each position t; both 0 beyond T."""
    if begin is not None:
        return tl.load(begin + t, mask=t < T, other=0), tl.load(end + t, mask=t < T, other=0)
    return tl.zeros_like(t), tl.where(t < T, T, 0)


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


# --- the output and the gradient of x -------------------------------------------------------------


@triton.jit
def _store_by_taps(
    out, x, weight, lse, begin, end, seed, row, t0, h0, r0, T, left, threshold, scale,
    H, K, R, TAPS, DYNAMIC, SOFTMAX, FLIP, ACC, BT, BH, BR,
):  # fmt: skip
    """Stores the sum over the taps, one after another, of a tile [BT, BH, BR]."""
    i = tl.arange(0, BT)[:, None, None]
    h = h0 + tl.arange(0, BH)[None, :, None]
    r = r0 + tl.arange(0, BR)[None, None, :]
    t = t0 + i
    low, high = _bounds(t, T, begin, end)
    at_x, at_w, at_h = i * (H * R) + (h * R + r), i * (H * K) + h * K, i * H + h
    if SOFTMAX and not FLIP:
        norm = tl.load(lse + row * H + at_h, mask=(t < T) & (h < H), other=0.0)
    acc = tl.zeros((BT, BH, BR), ACC)
    for j in range(TAPS):
        shift = left - j if FLIP else j - left
        owner = row + shift if FLIP else row
        s = t + shift
        inside = (s >= low) & (s < high)
        mask = inside & (h < H)
        value = tl.load(x + (row + shift) * (H * R) + at_x, mask=mask & (r < R), other=0.0)
        if DYNAMIC:
            w = tl.load(weight + owner * (H * K) + j + at_w, mask=mask, other=0.0).to(ACC)
            if SOFTMAX:
                if FLIP:
                    norm = tl.load(lse + owner * H + at_h, mask=mask, other=0.0)
                w = tl.exp(w - norm)
        else:
            w = tl.load(weight + j + h * K, mask=h < H, other=0.0).to(ACC)
        if seed is not None:
            kept = _kept(tl.load(seed), owner * (H * K) + j + at_w, threshold)
            inside = inside & kept
        acc += tl.where(inside, w, 0.0) * value.to(ACC)
    acc *= tl.full((1, 1, 1), scale, ACC)
    mask = (t < T) & (h < H) & (r < R)
    tl.store(out + row * (H * R) + at_x, acc.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _rows(x, row, t0, h, r0, T, H, R, N, BR):
    """Rows of x [.., H * R] from `row`, position t0 of a sequence, one head: [N, BR], else 0."""
    i = tl.arange(0, N)[:, None]
    r = r0 + tl.arange(0, BR)[None, :]
    mask = (t0 + i >= 0) & (t0 + i < T) & (r < R)
    return tl.load(x + row * (H * R) + (i * (H * R) + (h * R + r)), mask=mask, other=0.0)


@triton.jit
def _store_tile(out, tile, scale, row, t0, h, r0, T, H, R, BT, BR):
    """Stores tile [BT, BR] * scale; True if it has a number that is not finite."""
    i = tl.arange(0, BT)[:, None]
    r = r0 + tl.arange(0, BR)[None, :]
    tile *= tl.full((1, 1), scale, tl.float32)
    at = i * (H * R) + (h * R + r)
    mask = (t0 + i < T) & (r < R)
    tl.store(out + row * (H * R) + at, tile.to(out.dtype.element_ty), mask=mask)
    return tl.sum(tile * 0.0) != 0.0


@triton.jit
def _band(i, c, K, FLIP):
    """The tap at row i and column c of the band, in it if 0 <= tap < K."""
    return i + (K - 1) - c if FLIP else c - i


@triton.jit
def _product(w, x, acc, SPLIT, MULTIPLY, PRECISION):
    """acc + w @ x; SPLIT: w as the sum of two narrow numbers, which together are fine enough."""
    x = x.to(MULTIPLY)
    high = w.to(MULTIPLY)
    acc = _dot(high, x, acc, PRECISION)
    if SPLIT:
        acc = _dot((w - high.to(w.dtype)).to(MULTIPLY), x, acc, PRECISION)
    return acc


@triton.jit
def _by_band(
    x, weight, lse, begin, end, seed, row, t0, h, r0, T, left, threshold,
    H, K, R, SOFTMAX, FLIP, SPLIT, MULTIPLY, PRECISION, BT, BR, BC,
):  # fmt: skip
    """Product of a dynamic band and x: [BT, BR]; stores lse if SOFTMAX, with FLIP reads it."""
    i = tl.arange(0, BT)[:, None]
    t = t0 + i
    low, high = _bounds(t, T, begin, end)
    shift = left - (K - 1) if FLIP else -left
    acc = tl.zeros((BT, BR), tl.float32)
    top = tl.full((BT, 1), float("-inf"), tl.float32)
    total = tl.zeros((BT, 1), tl.float32)
    for c0 in tl.range(0, BT + K - 1, BC):
        c = c0 + tl.arange(0, BC)[None, :]
        k = _band(i, c, K, FLIP)
        s = t0 + shift + c
        owner = row + shift if FLIP else row
        at = (c if FLIP else i) * (H * K) + h * K + k
        live = (k >= 0) & (k < K) & (t < T)
        if FLIP:
            live = live & (s >= 0) & (s < T)
        w = tl.load(
            weight + owner * (H * K) + at, mask=live, other=float("-inf") if SOFTMAX else 0.0
        ).to(tl.float32)
        if SOFTMAX:
            if FLIP:
                norm = tl.load(lse + owner * H + c * H + h, mask=(s >= 0) & (s < T), other=0.0)
                w = tl.exp(w - norm)
            else:
                # A product with zeros that the compiler cannot see: it gives the logits the layout
                # of a product's result, in which the sum of a row takes few exchanges.
                zeros = tl.full((BT, 16), T >> 31, MULTIPLY)
                w = _dot(zeros, tl.full((16, BC), T >> 31, MULTIPLY), w, PRECISION)
                new = tl.maximum(top, tl.max(w, axis=1, keep_dims=True))
                finite = tl.where(new == float("-inf"), 0.0, new)  # -inf - -inf is NaN
                w = tl.exp(w - finite)
                if BC < BT + K - 1:
                    factor = tl.exp(top - finite)
                    total *= factor
                    acc *= factor
                total += tl.sum(w, axis=1, keep_dims=True)
                top = new
        if begin is not None:
            w = tl.where((s >= low) & (s < high), w, 0.0)
        if seed is not None:
            w = tl.where(_kept(tl.load(seed), owner * (H * K) + at, threshold), w, 0.0)
        value = _rows(x, row + shift + c0, t0 + shift + c0, h, r0, T, H, R, BC, BR)
        acc = _product(w, value, acc, SPLIT, MULTIPLY, PRECISION)
    if SOFTMAX and not FLIP:
        tl.store(lse + row * H + i * H + h, top + tl.log(total), mask=t < T)
        acc = acc / tl.where(t < T, total, 1.0)  # 0 / 0 would ask for another pass
    return acc


@triton.jit(do_not_specialize=_RUN_TIME)
def convolve(
    out, taps, value, x, weight, lse, begin, end, seed,
    T, left, blocks, threshold: tl.uint32, scale: tl.float64,
    H: tl.constexpr, K: tl.constexpr, R: tl.constexpr, SOFTMAX: tl.constexpr, FLIP: tl.constexpr,
    DOT: tl.constexpr, SPLIT: tl.constexpr, TAPS: tl.constexpr,
    ACC: tl.constexpr, MULTIPLY: tl.constexpr, PRECISION: tl.constexpr,
    BT: tl.constexpr, BH: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """out[t] = sum_j w[t, j] v[s], s = t + j - left; FLIP: sum_j w[s, j] v[s], s = t - j + left.

    value, x, out [B, T, H * R], weight, taps [B, T, H, K]; out or taps is None if not wanted.
    Value is x, or with FLIP the gradient of the output, and taps becomes that of the weight.
    SOFTMAX: weight holds logits, and lse [B, T, H] is written, or with FLIP read.
    """
    pieces: tl.constexpr = 1 if out is None else (R + BR - 1) // BR
    columns = tl.cdiv(H, BH) * pieces
    pid = tl.program_id(0)
    n = pid // columns
    t0 = n % blocks * BT
    row = (n // blocks).to(tl.int64) * T + t0
    h0 = pid % columns // pieces * BH
    r0 = pid % pieces * BR
    if out is not None:
        if DOT:
            acc = _by_band(
                value, weight, lse, begin, end, seed, row, t0, h0, r0, T, left, threshold,
                H, K, R, SOFTMAX, FLIP, SPLIT, MULTIPLY, PRECISION, BT, BR, BC,
            )  # fmt: skip
            again = _store_tile(out, acc, scale, row, t0, h0, r0, T, H, R, BT, BR)
        else:
            if SOFTMAX and not FLIP:
                # Programs with other channels of the same head write the same numbers.
                i = tl.arange(0, BT)[:, None, None]
                h = h0 + tl.arange(0, BH)[None, :, None]
                live = (t0 + i < T) & (h < H)
                rows = weight + row * (H * K) + i * (H * K) + h * K
                norm = _log_sum_exp(rows, live, K, ACC, BT, BH, BC)
                tl.store(lse + row * H + (i * H + h), norm, mask=live)
            again = True
        if again:
            # The log-sum-exp comes through memory: each thread gets its own rows at once.
            tl.debug_barrier()
            _store_by_taps(
                out, value, weight, lse, begin, end, seed, row, t0, h0, r0, T, left, threshold,
                scale, H, K, R, TAPS, True, SOFTMAX, FLIP, ACC, BT, BH, BR,
            )  # fmt: skip
    if taps is not None:
        _store_taps(
            taps, value, x, weight, lse, begin, end, seed, row, t0, h0, T, left, threshold, scale,
            H, K, R, SOFTMAX, DOT, ACC, PRECISION, BT, BH, BR, BC,
        )  # fmt: skip


@triton.jit
def _shared_band(weight, c0, h, K, FLIP, BT, BC):
    """Columns c0 and on of the band of weight [H, K]: [BT, BC]."""
    k = _band(tl.arange(0, BT)[:, None], c0 + tl.arange(0, BC)[None, :], K, FLIP)
    return tl.load(weight + h * K + k, mask=(k >= 0) & (k < K), other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=_RUN_TIME)
def convolve_shared(
    out, value, weight, begin, end, seed,
    T, left, blocks, last, threshold: tl.uint32, scale: tl.float64,
    H: tl.constexpr, K: tl.constexpr, R: tl.constexpr, FLIP: tl.constexpr,
    DOT: tl.constexpr, SPLIT: tl.constexpr, TAPS: tl.constexpr,
    ACC: tl.constexpr, MULTIPLY: tl.constexpr, PRECISION: tl.constexpr,
    BT: tl.constexpr, BH: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """convolve with one weight [H, K] for every position, TILES tiles a program."""
    pieces: tl.constexpr = (R + BR - 1) // BR
    columns = tl.cdiv(H, BH) * pieces
    pid = tl.program_id(0)
    h0 = pid % columns // pieces * BH
    r0 = pid % pieces * BR
    again = not DOT
    if DOT:
        i = tl.arange(0, BT)[:, None]
        shift = left - (K - 1) if FLIP else -left
        whole = _shared_band(weight, 0, h0, K, FLIP, BT, BC)
        bad = 0.0
        for m in range(TILES):
            n = tl.minimum(pid // columns * TILES + m, last)  # the last tile again, not beyond it
            t0 = n % blocks * BT
            row = (n // blocks).to(tl.int64) * T + t0
            low, high = _bounds(t0 + i, T, begin, end)
            acc = tl.zeros((BT, BR), tl.float32)
            for c0 in tl.range(0, BT + K - 1, BC):
                w = whole if BC >= BT + K - 1 else _shared_band(weight, c0, h0, K, FLIP, BT, BC)
                c = c0 + tl.arange(0, BC)[None, :]
                if begin is not None:
                    s = t0 + shift + c
                    w = tl.where((s >= low) & (s < high), w, 0.0)
                if seed is not None:
                    k = _band(i, c, K, FLIP)
                    at = (c + shift if FLIP else i) * (H * K) + h0 * K + k
                    w = tl.where(_kept(tl.load(seed), row * (H * K) + at, threshold), w, 0.0)
                v = _rows(value, row + shift + c0, t0 + shift + c0, h0, r0, T, H, R, BC, BR)
                acc = _product(w, v, acc, SPLIT, MULTIPLY, PRECISION)
            bad += _store_tile(out, acc, scale, row, t0, h0, r0, T, H, R, BT, BR).to(tl.float32)
        again = bad > 0.0
    if again:
        for m in range(TILES):
            n = tl.minimum(pid // columns * TILES + m, last)
            t0 = n % blocks * BT
            row = (n // blocks).to(tl.int64) * T + t0
            _store_by_taps(
                out, value, weight, None, begin, end, seed, row, t0, h0, r0, T, left, threshold,
                scale, H, K, R, TAPS, False, False, FLIP, ACC, BT, BH, BR,
            )  # fmt: skip


# --- the gradient of the weight -------------------------------------------------------------------


@triton.jit
def _dots(grad, x, row, t0, h0, k0, T, left, low, high, H, K, R, ACC, BT, BH, BR, BK):
    """grad[t] . x[t + k - left] along each head's channels for k0 <= k < k0 + BK: [BT, BH, BK]."""
    i = tl.arange(0, BT)[:, None, None]
    h = h0 + tl.arange(0, BH)[None, :, None]
    k = tl.arange(0, BK)[None, None, :]
    t = t0 + i
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
    return tile


@triton.jit
def _places(h0, k0, DOT, BT, BH, BK):
    """Positions, heads and taps of a tile [BT, BH, BK], or with DOT of the band [BT, BK]."""
    if DOT:
        i, h = tl.arange(0, BT)[:, None], h0 + tl.arange(0, BH)[None, :]
        k = k0 + tl.arange(0, BK)[None, :] - i
    else:
        i, h = tl.arange(0, BT)[:, None, None], h0 + tl.arange(0, BH)[None, :, None]
        k = k0 + tl.arange(0, BK)[None, None, :]
    return i, h, k


@triton.jit
def _tap_tile(
    grad, x, begin, end, seed, row, t0, h0, k0, T, left, threshold,
    H, K, R, DOT, ACC, PRECISION, BT, BH, BR, BK,
):  # fmt: skip
    """Products of positions and taps from k0 (DOT: columns of the band), offsets of their weights.

    [BT, BH, BK], or with DOT [BT, BK]; the third result says which are weights at all.
    """
    i, h, k = _places(h0, k0, DOT, BT, BH, BK)
    t = t0 + i
    low, high = _bounds(t, T, begin, end)
    if DOT:
        tile = tl.zeros((BT, BK), tl.float32)
        for r0 in tl.static_range(0, R, BR):
            g = _rows(grad, row, t0, h0, r0, T, H, R, BT, BR)
            v = _rows(x, row + k0 - left, t0 + k0 - left, h0, r0, T, H, R, BK, BR)
            tile = _dot(g, tl.trans(v), tile, PRECISION)
    else:
        tile = _dots(grad, x, row, t0, h0, k0, T, left, low, high, H, K, R, ACC, BT, BH, BR, BK)
    at = i * (H * K) + (h * K + k)
    s = t + k - left
    inside = (s >= low) & (s < high)
    if seed is not None:
        inside = inside & _kept(tl.load(seed), row * (H * K) + at, threshold)
    valid = (k >= 0) & (k < K) & (t < T) & (h < H)
    return tl.where(inside, tile, 0.0), at, valid


@triton.jit
def _store_taps(
    taps, grad, x, weight, lse, begin, end, seed, row, t0, h0, T, left, threshold, scale,
    H, K, R, SOFTMAX, DOT, ACC, PRECISION, BT, BH, BR, BK,
):  # fmt: skip
    """Gradient of a dynamic weight, or of its logits."""
    columns: tl.constexpr = BT + K - 1 if DOT else K
    axis: tl.constexpr = 1 if DOT else 2
    base = row * (H * K)
    if SOFTMAX:
        i, h, _ = _places(h0, 0, DOT, BT, BH, BK)
        norm = tl.load(lse + row * H + (i * H + h), mask=(t0 + i < T) & (h < H), other=0.0)
        mean = tl.zeros_like(norm)
    # The gradient is w * (tile - mean): several tiles are computed twice, first for their mean.
    passes: tl.constexpr = 2 if SOFTMAX and columns > BK else 1
    for turn in tl.static_range(passes):
        for k0 in tl.range(0, columns, BK):
            tile, at, valid = _tap_tile(
                grad, x, begin, end, seed, row, t0, h0, k0, T, left, threshold,
                H, K, R, DOT, ACC, PRECISION, BT, BH, BR, BK,
            )  # fmt: skip
            if SOFTMAX:
                w = tl.load(weight + base + at, mask=valid, other=float("-inf")).to(ACC)
                w = tl.exp(w - norm)
                if turn == 0:
                    mean += tl.sum(tl.where(valid, w * tile, 0.0), axis=axis, keep_dims=True)
                tile = w * (tile - mean)
            if turn == passes - 1:
                tile *= tl.full((1,), scale, ACC)
                tl.store(taps + base + at, tile.to(taps.dtype.element_ty), mask=valid)


@triton.jit(do_not_specialize=_RUN_TIME)
def lightconv_taps(
    out, value, x, begin, end, seed,
    T, left, blocks, last, partials, threshold: tl.uint32, scale: tl.float64,
    H: tl.constexpr, K: tl.constexpr, R: tl.constexpr,
    DOT: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
    BT: tl.constexpr, BH: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """value, x [B, T, H * R] -> out [partials, BT, H, K]: p sums tiles p, p + partials, ..."""
    chunks: tl.constexpr = ((BT + K - 1 if DOT else K) + BC - 1) // BC
    columns = tl.cdiv(H, BH) * chunks
    pid = tl.program_id(0)
    h0 = pid % columns // chunks * BH
    k0 = pid % chunks * BC
    acc = tl.zeros((BT, BC) if DOT else (BT, BH, BC), ACC)
    for n in range(pid // columns, last + 1, partials):
        t0 = n % blocks * BT
        row = (n // blocks).to(tl.int64) * T + t0
        tile, _, _ = _tap_tile(
            value, x, begin, end, seed, row, t0, h0, k0, T, left, threshold,
            H, K, R, DOT, ACC, PRECISION, BT, BH, BR, BC,
        )  # fmt: skip
        acc += tile
    i, h, k = _places(h0, k0, DOT, BT, BH, BC)
    at = (pid // columns * BT + i).to(tl.int64) * (H * K) + (h * K + k)
    acc *= tl.full((1,), scale, ACC)
    tl.store(out + at, acc, mask=(k >= 0) & (k < K) & (h < H))


# --- one position of a stream ---------------------------------------------------------------------


@triton.jit(do_not_specialize=_RUN_TIME)
def step(
    out, x, window, weight, position: tl.int64, n,
    H: tl.constexpr, K: tl.constexpr, R: tl.constexpr,
    DYNAMIC: tl.constexpr, SOFTMAX: tl.constexpr, UPDATE: tl.constexpr, ACC: tl.constexpr,
    BH: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """One position x heads of out, x [B, n, H * R]; window [B, K-1, H * R], time t in t % (K-1).

    UPDATE: n is 1, and x takes the slot of the oldest input.
    """
    pieces: tl.constexpr = (R + BR - 1) // BR
    columns = tl.cdiv(H, BH) * pieces
    pid = tl.program_id(0)
    row = (pid // columns).to(tl.int64)
    b, m = row // n, row % n
    h = pid % columns // pieces * BH + tl.arange(0, BH)[None, :, None]
    r = pid % pieces * BR + tl.arange(0, BR)[None, None, :]
    lanes = (h < H) & (r < R)
    at = h * R + r
    base = row * (H * K) if DYNAMIC else 0
    if SOFTMAX:
        norm = _log_sum_exp(weight + base + h * K, h < H, K, ACC, 1, BH, BC)
    acc = tl.zeros((1, BH, BR), ACC)
    for k0 in range(0, K, BC):
        k = k0 + tl.arange(0, BC)[:, None, None]
        w = tl.load(weight + base + h * K + k, mask=(k < K) & (h < H), other=0.0).to(ACC)
        if SOFTMAX:
            w = tl.exp(w - norm)
        since = m + k - (K - 1)  # the time of the input, counted from x[:, 0]
        new = tl.load(
            x + (b * n + since) * (H * R) + at, mask=(since >= 0) & (k < K) & lanes, other=0.0
        ).to(ACC)
        if K > 1:
            slot = (position + since + (K - 1)) % (K - 1)
            old = tl.load(
                window + (b * (K - 1) + slot) * (H * R) + at, mask=(since < 0) & lanes, other=0.0
            ).to(ACC)
            new = tl.where(since < 0, old, new)
        acc += tl.sum(tl.where(k < K, w, 0.0) * new, axis=0, keep_dims=True)
    tl.store(out + row * (H * R) + at, acc.to(out.dtype.element_ty), mask=lanes)
    if UPDATE and K > 1:
        value = tl.load(x + row * (H * R) + at, mask=lanes)
        tl.debug_barrier()  # every thread has read the window
        tl.store(window + (b * (K - 1) + position % (K - 1)) * (H * R) + at, value, mask=lanes)


# --- dropout, residual sum, layer normalisation ---------------------------------------------------


@triton.jit(do_not_specialize=_RUN_TIME)
def residual(
    out, total, stats, x, inner, weight, bias, seed, threshold: tl.uint32, scale: tl.float64,
    eps: tl.float64, D: tl.constexpr, ACC: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """One row: out = x + dropout(inner), and with weight layer_norm(total), all [rows, D]."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BD)
    at, mask = row * D + c, c < D
    value = tl.load(inner + at, mask=mask, other=0.0).to(ACC)
    if seed is not None:
        value *= tl.where(_kept(tl.load(seed), at, threshold), tl.full((1,), scale, ACC), 0.0)
    if x is not None:
        value += tl.load(x + at, mask=mask, other=0.0).to(ACC)
    if weight is not None:
        narrow = value.to(total.dtype.element_ty)
        tl.store(total + at, narrow, mask=mask)
        value = narrow.to(ACC)
        mean = tl.sum(value, axis=0) / D
        value = tl.where(mask, value - mean, 0.0)
        variance = tl.sum(value * value, axis=0) / D
        deviation = tl.sqrt(variance + tl.full((), eps, ACC))
        tl.store(stats + row * 2, mean)
        tl.store(stats + row * 2 + 1, 1.0 / deviation)
        value *= tl.load(weight + c, mask=mask, other=0.0).to(ACC) / deviation
        value += tl.load(bias + c, mask=mask, other=0.0).to(ACC)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=_RUN_TIME)
def residual_backward(
    grad_x, grad_inner, out, grad, total, stats, weight, seed, rows, partials,
    threshold: tl.uint32, scale: tl.float64,
    D: tl.constexpr, ACC: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Gradients of x and inner [rows, D]; out [2, partials, D] of weight and bias, partial sums.

    Program p takes rows p, p + partials, ...; a gradient that is None is not wanted.
    """
    c = tl.arange(0, BD)
    mask = c < D
    w = tl.load(weight + c, mask=mask, other=0.0).to(ACC)
    of_weight, of_bias = tl.zeros((BD,), ACC), tl.zeros((BD,), ACC)
    for row in range(tl.program_id(0), rows, partials):
        at = (tl.zeros((BD,), tl.int64) + row) * D + c
        g = tl.load(grad + at, mask=mask, other=0.0).to(ACC)
        mean, scale_row = tl.load(stats + 2 * row), tl.load(stats + 2 * row + 1)
        normal = (tl.load(total + at, mask=mask, other=0.0).to(ACC) - mean) * scale_row
        of_weight += tl.where(mask, g * normal, 0.0)
        of_bias += g
        g *= w
        slope = tl.sum(tl.where(mask, g * normal, 0.0), axis=0) / D
        g = (g - tl.sum(g, axis=0) / D - normal * slope) * scale_row
        if grad_x is not None:
            tl.store(grad_x + at, g.to(grad_x.dtype.element_ty), mask=mask)
        if grad_inner is not None:
            if seed is not None:
                g *= tl.where(_kept(tl.load(seed), at, threshold), tl.full((1,), scale, ACC), 0.0)
            tl.store(grad_inner + at, g.to(grad_inner.dtype.element_ty), mask=mask)
    if out is not None:
        at = tl.program_id(0) * D + c
        tl.store(out + at, of_weight, mask=mask)
        tl.store(out + partials * D + at, of_bias, mask=mask)
