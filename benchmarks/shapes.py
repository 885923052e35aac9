"""The operators over many shapes: narrow heads, 16 bits, share of the limit, a random sweep.

    python -m benchmarks.shapes                   what must hold, about three minutes on two cores
    python -m benchmarks.shapes --sweep 300       random shapes against the fastest formulation
    python -m benchmarks.shapes --sweep 300 --seconds 200 --rows FILE   as much as fits; then again

All sides run in one process in turns. Figures are medians, with OMP_NUM_THREADS=1 of the CPU's
time: for a machine that is not idle. Before a random shape is timed, its formulations are compared
with the kernel.
"""

import argparse
import functools
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import formulations as peers
from benchmarks.bounds import Bound, render
from benchmarks.limits import Probe
from benchmarks.measure import Call, Rows, interleave, machine
from benchmarks.pages import measured, replace, table
from lightconv import ops

Function = Callable[..., Tensor]


def repeated(call: Call, least: float = 2e-3) -> tuple[Call, int]:
    """A call that repeats `call` until it takes `least` seconds, and how often."""
    call()
    start = time.perf_counter()
    call()
    times = max(1, min(1000, math.ceil(least / (time.perf_counter() - start))))

    def many() -> float | None:
        each = [call() for _ in range(times)]
        own = [seconds for seconds in each if isinstance(seconds, float)]
        return sum(own) if own else None

    return many, times


def clock() -> Callable[[], float]:
    """The processor's time if this is one thread."""
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def per_call(sides: dict[str, Call], rounds: int) -> dict[str, float]:
    """Seconds per call of each side."""
    many = {name: repeated(call) for name, call in sides.items()}
    calls = {name: call for name, (call, _) in many.items()}
    seconds = interleave(calls, rounds, patience=1.0, clock=clock())
    return {name: value / many[name][1] for name, value in seconds.items()}


def call_of(function: Function, given: Sequence[Tensor], backward: bool) -> Call:
    """forward, or forward + backward, of function(*given)."""
    leaves = [t.detach().requires_grad_(backward) for t in given]
    grad = torch.randn_like(leaves[0])

    def call() -> object:
        if not backward:
            with torch.no_grad():
                return function(*leaves)
        return torch.autograd.grad(function(*leaves), leaves, grad)

    return call


def backward_of(function: Function, given: Sequence[Tensor]) -> Call:
    """The backward pass alone."""
    x, weight = (t.detach().requires_grad_() for t in given)
    out = function(x, weight)
    grad = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (x, weight), grad, retain_graph=True)


def causal(op: Callable[..., Tensor]) -> Function:
    return lambda x, weight: op(x, weight, weight.shape[-1] - 1)


def inputs(op: str, B: int, T: int, H: int, R: int, K: int) -> list[Tensor]:
    rows = (B, T) if op == "dynamicconv" else ()
    return [torch.randn(B, T, H * R), torch.randn(*rows, H, K)]


# --- what must hold -------------------------------------------------------------------------------


def narrow_heads(rounds: int) -> list[Bound]:
    """Heads of fewer channels than a vector, against a sum of K shifted products."""
    found = []
    for B, T in ((8, 512), (1, 2048)):
        for R in (1, 2, 4, 8):
            given = inputs("dynamicconv", B, T, 1024 // R, R, 4)
            for backward in (False, True):
                sides = {
                    "ours": call_of(causal(ops.dynamicconv), given, backward),
                    "theirs": call_of(peers.shifted, given, backward),
                }
                seconds = per_call(sides, rounds)
                what = f"dynamicconv [{B}, {T}, 1024], R={R}, K=4, " + (
                    "f+b" if backward else "forward"
                )
                ratio = seconds["theirs"] / seconds["ours"]
                found.append(Bound(f"{what} against shifted sum", ratio, 2.0))
    return found


def steps(rounds: int) -> list[Bound]:
    """A step with one kernel per channel against one per 128 channels; a call of one position."""
    B, D, K = 8, 2048, 4
    x, window = torch.randn(B, 1, D), torch.zeros(B, K - 1, D)
    with torch.inference_mode():
        calls: dict[str, Call] = {}
        for H in (16, D):
            weight = torch.randn(B, 1, H, K)
            step = functools.partial(ops.dynamicconv_step, x, window, 7, weight, softmax=True)
            calls[str(H)] = step
        seconds = per_call(calls, 3 * rounds)
    found = [
        Bound(
            "step, B=8, D=2048, K=4: H=D against H=16", seconds[str(D)] / seconds["16"], 1.5, True
        )
    ]
    given = inputs("dynamicconv", 1, 1, 16, 64, 31)
    for backward in (False, True):
        sides = {
            "ours": call_of(causal(ops.dynamicconv_softmax), given, backward),
            "theirs": call_of(peers.of_logits(peers.unfold), given, backward),
        }
        seconds = per_call(sides, 3 * rounds)
        what = f"call with T=1, B=1, {'f+b' if backward else 'forward'} against unfold"
        found.append(Bound(what, seconds["theirs"] / seconds["ours"], 1.0))
    return found


def tails(rounds: int) -> list[Bound]:
    """Bias, SiLU and residual in the operator against calls of their own."""
    given = [*inputs("lightconv", 8, 512, 1024, 1, 4), torch.randn(1024)]
    options: Any = {"activation": "silu", "residual": True}
    fused = lambda x, w, bias: ops.lightconv(x, w, 3, bias=bias, **options)
    separate = lambda x, w, bias: x + F.silu(ops.lightconv(x, w, 3) + bias)
    torch.testing.assert_close(fused(*given), separate(*given), rtol=1e-4, atol=1e-4)
    sides = {"ours": call_of(fused, given, True), "theirs": call_of(separate, given, True)}
    seconds = per_call(sides, 3 * rounds)
    what = "lightconv [8, 512, 1024], K=4, bias, SiLU, residual, f+b against separate calls"
    return [Bound(what, seconds["theirs"] / seconds["ours"], 1.5)]


def half_precision(rounds: int) -> list[Bound]:
    """bfloat16 against float32 and against oneDNN's depthwise convolution in bfloat16."""
    found = []
    for op in ("dynamicconv", "lightconv"):
        for B, T in ((64, 128), (4, 2048)):
            for K in (3, 7, 31):
                given = inputs(op, B, T, 16, 64, K)
                half = [t.bfloat16() for t in given]
                ours = causal(getattr(ops, f"{op}_softmax"))
                sides = {
                    "bf16": call_of(ours, half, False),
                    "fp32": call_of(ours, given, False),
                    "bf16 backward": backward_of(ours, half),
                    "fp32 backward": backward_of(ours, given),
                }
                if op == "lightconv":
                    sides["oneDNN"] = call_of(peers.of_logits(peers.conv2d), half, False)
                seconds = per_call(sides, rounds)
                shape = f"{op} [{B}, {T}, 1024], K={K}, bf16"
                for way in ("", " backward"):
                    ratio = seconds["fp32" + way] / seconds["bf16" + way]
                    found.append(Bound(f"{shape}{way or ' forward'} against fp32", ratio, 1.3))
                if op == "lightconv":
                    ratio = seconds["oneDNN"] / seconds["bf16"]
                    found.append(Bound(f"{shape} forward against oneDNN", ratio, 1.2))
    return found


def shares(rounds: int) -> list[Bound]:
    """Share of the larger of the memory and the FMA limit, measured in the same turns."""
    probe = Probe(clock())
    found = []
    for op, least in (("dynamicconv", 0.55), ("lightconv", 0.0)):
        for T in (128, 2048):
            for K in (7, 31, 63):
                given = inputs(op, 8192 // T, T, 16, 64, K)
                ours = causal(getattr(ops, f"{op}_softmax"))
                sides = {
                    "forward": call_of(ours, given, False),
                    "backward": backward_of(ours, given),
                    "copy": probe.copy,
                    "fma": probe.fma,
                }
                seconds = per_call(sides, rounds)
                limits = probe.limits(seconds["copy"], seconds["fma"])
                x, weight = (t.nbytes for t in given)
                work = 2.0 * given[0].numel() * K / limits.flops
                for way, moved, passes in (
                    ("forward", 2 * x + weight, 1),
                    ("backward", 3 * x + 2 * weight, 2),
                ):
                    share = max(moved / limits.bytes, passes * work) / seconds[way]
                    bound = least if way == "backward" and K == 31 else 0.0
                    found.append(
                        Bound(f"{op}, T={T}, K={K}: {way}, share of the limit", share, bound)
                    )
    return found


# --- random shapes --------------------------------------------------------------------------------

TAPS = (1, 2, 3, 4, 5, 7, 9, 15, 31, 63, 127)
MOST = 3 << 20  # numbers of x, or of the weights


def random_shapes(count: int) -> list[dict[str, Any]]:
    """Shapes spread evenly over the logarithm of every size; the first n of them never change."""
    draw = random.Random(0)
    even = lambda most: min(most, round(math.exp(draw.uniform(0, math.log(most + 1)))))
    shapes: list[dict[str, Any]] = []
    while len(shapes) < count:
        shape = {
            "op": draw.choice(("dynamicconv", "lightconv")),
            **{"B": even(2048), "T": even(65536), "H": even(64), "R": even(256)},
            "K": draw.choice(TAPS),
            "backward": draw.random() < 0.5,
        }
        rows = shape["B"] * shape["T"] * shape["H"]
        weights = shape["K"] if shape["op"] == "dynamicconv" else 0
        if rows * max(shape["R"], weights) <= MOST and shape["H"] * shape["R"] >= 8:
            shapes.append(shape)
    return shapes


def formulations(op: str, B: int, T: int, H: int, R: int, K: int) -> dict[str, Function]:
    """All that fit into memory."""
    size = B * T * H * R
    found = {"tap loop": peers.shifted}
    if size * K <= 128 << 20:
        found["unfold"] = peers.unfold
    if B * H * T * (T + K) <= 64 << 20:
        found["band"] = peers.band
    if op == "lightconv":
        found |= {"conv1d": peers.conv1d, "conv2d": peers.conv2d}
    if K <= 31 and min(B, T, H, R, K) > 1:  # a size of one compiles to a program of its own
        found["compiled tap loop"] = peers.compiled()
    return found


def measure_shape(shape: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Milliseconds of each formulation worth more than one call."""
    torch.manual_seed(0)
    op, backward = shape["op"], shape["backward"]
    sizes = {name: shape[name] for name in "BTHRK"}
    given = inputs(op, **sizes)
    ours = causal(getattr(ops, op))
    sides = {"lightconv": call_of(ours, given, backward)}
    sides["lightconv"]()
    start = time.perf_counter()
    sides["lightconv"]()
    patience = 4 * (time.perf_counter() - start) + 2e-5
    want = ours(*given)
    slow = {}
    for name, function in formulations(op, **sizes).items():
        torch.testing.assert_close(function(*given), want, rtol=2e-3, atol=2e-3)
        call = call_of(function, given, backward)
        call()
        start = time.perf_counter()
        call()
        took = time.perf_counter() - start
        if took <= patience:
            sides[name] = call
        else:
            slow[name] = took
    seconds = slow | per_call(sides, rounds)
    best = min((name for name in seconds if name != "lightconv"), key=lambda n: seconds[n])
    ratio = seconds[best] / seconds["lightconv"]
    ms = {name: value * 1e3 for name, value in seconds.items()}
    return {**shape, "best": best, "ratio": ratio, "ms": ms}


def sweep_table(rows: Sequence[dict[str, Any]]) -> str:
    """The distribution of the ratios, and every shape below 0.95."""
    ratios = sorted(row["ratio"] for row in rows)
    at = lambda share: f"{ratios[int(share * (len(ratios) - 1))]:.2f}x"
    below = [row for row in rows if row["ratio"] < 0.95]
    head = (
        f"{len(rows)} shapes: slowest {at(0)}, one in ten below {at(0.1)}, median {at(0.5)}; "
        f"{len(below)} below 0.95x."
    )
    names = ("op", "B", "T", "H", "R", "K", "backward", "best", "ratio")
    lines = [[f"{row[n]:.2f}" if n == "ratio" else str(row[n]) for n in names] for row in below]
    return f"{head}\n\n{table(names, lines)}" if below else head


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parts = {"narrow": narrow_heads, "steps": steps, "tails": tails, "half": half_precision}
    parts["shares"] = shares
    parser.add_argument("--only", choices=parts, help="one part")
    parser.add_argument("--sweep", type=int, metavar="N", help="N random shapes instead")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="append shapes, skip its own")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop when so many have passed")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each side (default 7)")
    parser.add_argument("--write", type=Path, metavar="DOCS", help="write the table there")
    options = parser.parse_args(argv)
    print(machine(), flush=True)
    if options.sweep:
        kept = Rows(options.rows, options.seconds)
        for shape in random_shapes(options.sweep)[len(kept.rows) :]:
            if not kept.add(functools.partial(measure_shape, shape, options.rounds)):
                return 1
        text, good = sweep_table(kept.rows), all(row["ratio"] >= 0.95 for row in kept.rows)
    else:
        bars = []
        for name, part in parts.items():
            if options.only in (None, name):
                bars += part(options.rounds)
        text = render(bars)
        good = all(bar.holds for bar in bars)
    print(text)
    if options.write:
        command = "benchmarks.shapes" + (" --sweep" if options.sweep else "")
        replace(options.write, command, f"{measured()}.\n\n{text}")
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
