"""The operators compared with other formulations of the same function, and with attention.

    python -m benchmarks.ops               every table, about ten minutes on two cores
    python -m benchmarks.ops --quick       one table in about a minute
    python -m benchmarks.ops --write docs  also the tables in docs and the plot
    python -m benchmarks.ops --seconds 200 --rows FILE   as much as fits; then again, the rest

All sides run in one process in turns, forward + backward, softmax included; figures are medians.
Before anything is timed, every formulation is compared with the kernel; a difference ends the run.
"""

import argparse
import ctypes
import functools
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import formulations as peers
from benchmarks.bounds import Bound, render
from benchmarks.limits import Probe, measure_limits
from benchmarks.measure import Rows, interleave, machine, peak_bytes
from lightconv import ops
from lightconv.ops import cpu, library
from lightconv.ops.check import PLAIN

TOKENS, D, H = 8192, 1024, 16
STEP_US = 15  # limit of a step's overhead beyond its arithmetic
KERNELS = (3, 7, 31)
LENGTHS = (32, 128, 512, 2048, 8192, 65536)
MOST_BYTES = 6e9  # a formulation that would need more is not run; the table shows a dash

Row = dict[str, Any]


def inputs(operator: str, T: int, K: int, tokens: int = TOKENS, width: int = D) -> list[Tensor]:
    """x and the logits of `operator`, or q, k, v for attention."""
    B = max(1, tokens // T)
    heads = H if width >= H else 1
    shapes = {
        "dynamicconv": [(B, T, width), (B, T, heads, K)],
        "lightconv": [(B, T, width), (heads, K)],
        "attention": [(B, T, width)] * 3,
    }
    return [torch.randn(shape, requires_grad=True) for shape in shapes[operator]]


def sides(operator: str, T: int, K: int) -> dict[str, tuple[str, Callable[..., Tensor]]]:
    """Name -> (kind of inputs, function), ours first, without those that need too much."""
    B = max(1, TOKENS // T)
    unfold_bytes = 3.0 * 4 * B * T * D * K
    band_bytes = 3.0 * 4 * B * H * T * (T + K)
    ours = getattr(ops, f"{operator}_softmax")
    found: dict[str, tuple[str, Callable[..., Tensor]]] = {
        "lightconv": (operator, lambda x, w: ours(x, w, K - 1)),
        "unfold": (operator, peers.of_logits(peers.unfold)),
        "band": (operator, peers.of_logits(peers.band)),
    }
    if operator == "dynamicconv":
        found |= {
            "attention": ("attention", lambda q, k, v: peers.causal_attention(q, k, v, H)),
            "windowed": ("attention", lambda q, k, v: peers.windowed_attention(q, k, v, H, K)),
        }
    else:
        found |= {
            "conv1d": (operator, peers.of_logits(peers.conv1d)),
            "conv2d": (operator, peers.of_logits(peers.conv2d)),
        }
    if unfold_bytes > MOST_BYTES:
        del found["unfold"]
    if band_bytes > MOST_BYTES:
        del found["band"]
    if T > 8192 or K != 31:  # minutes for one call at 65,536; does not depend on K
        found.pop("attention", None)
    if T > 8192:
        found.pop("conv2d", None)  # a quarter of a minute for one call
    return found


def verify() -> None:
    """Compares every formulation with the kernel on a small case, except attention."""
    torch.manual_seed(0)
    for operator in ("dynamicconv", "lightconv"):
        x, logits = inputs(operator, 40, 7, tokens=80)
        named = sides(operator, 40, 7)
        want = named["lightconv"][1](x, logits)
        for takes, function in named.values():
            if takes == operator:
                torch.testing.assert_close(function(x, logits), want, rtol=1e-4, atol=1e-5)


def prepared(takes: str, function: Callable[..., Tensor], T: int, K: int) -> Callable[[], object]:
    """A call of forward + backward with its own inputs."""
    given = inputs(takes, T, K)
    grad = torch.randn_like(given[0])

    def call() -> object:
        out = function(*given)
        return out, torch.autograd.grad(out, given, grad)

    return call


def measure(operator: str, T: int, K: int, rounds: int, memory: bool) -> Row:
    """One row: milliseconds and extra bytes of each side."""
    torch.manual_seed(0)
    calls = {name: prepared(*side, T, K) for name, side in sides(operator, T, K).items()}
    seconds = interleave(calls, rounds, least=1)  # the formulations of seconds need no median
    row: Row = {"operator": operator, "T": T, "K": K, "tokens": max(TOKENS, T)}
    row["ms"] = {name: value * 1e3 for name, value in seconds.items()}
    if memory:
        row["extra_bytes"] = {}
        for name, call in calls.items():
            out, grads = call()  # type: ignore[misc]
            needed = sum(t.nbytes for t in (out, *grads))
            row["needed_bytes"] = 2 * needed  # inputs and the given gradient have the same size
            del out, grads
            row["extra_bytes"][name] = max(0, peak_bytes(call) - needed)
    return row


def forward_share(probe: Probe, rounds: int) -> Row:
    """Forward passes at T = 2,048, K = 31, and their share of the binding limit.

    The limits are measured in turns with them, on memory that has been touched before; so the share
    is that of a call with a preallocated output. A call with a fresh output is measured too.
    """
    found: Row = {}
    T, K = 2048, 31
    for operator in ("dynamicconv", "lightconv"):
        x, weight = (t.detach() for t in inputs(operator, T, K))
        fresh = sides(operator, T, K)["lightconv"][1]
        out = torch.empty_like(x)
        problem = cpu.make_problem(x, weight, K - 1, weight.dim() == 4, PLAIN)
        problem.out = out.data_ptr()
        again = functools.partial(library.call, "lightconv_forward", ctypes.byref(problem))
        calls = {"fresh": lambda f=fresh, a=x, b=weight: f(a, b), "copy": probe.copy}
        seconds = interleave({**calls, "again": again, "fma": probe.fma}, 3 * rounds)
        limits = probe.limits(seconds["copy"], seconds["fma"])
        moved = (2 * x.nbytes + weight.nbytes) / limits.bytes
        computed = 2.0 * x.numel() * K / limits.flops
        found[operator] = {
            "ms": seconds["again"] * 1e3,
            "fresh_ms": seconds["fresh"] * 1e3,
            "memory_ms": moved * 1e3,
            "fma_ms": computed * 1e3,
            "share": max(moved, computed) / seconds["again"],
            "moved_bytes": 2 * x.nbytes + weight.nbytes,
        }
    return found


def step_overhead(rounds: int) -> Row:
    """One step with N = 4 rows, D = 512, K = 31: microseconds of the call and of its arithmetic."""
    x, window = torch.randn(4, 1, 512), torch.zeros(4, 30, 512)
    logits, out = torch.randn(4, 1, 4, 31), torch.empty(4, 1, 512)
    loaded = library.native().library
    assert loaded is not None
    pointers = (x.data_ptr(), window.data_ptr(), logits.data_ptr(), out.data_ptr())
    many = range(1000)

    def call() -> None:
        for _ in many:
            ops.dynamicconv_step(x, window, 7, logits, softmax=True)

    def kernel(rows: int) -> None:
        for _ in many:
            loaded.lightconv_step(*pointers, rows, 1, 512, 4, 31, 7, 0, 0, 0, 1)

    with torch.inference_mode():
        seconds = interleave(
            {"call": call, "kernel": lambda: kernel(4), "empty": lambda: kernel(0)}, rounds
        )
    arithmetic = (seconds["kernel"] - seconds["empty"]) * 1e3
    return {"call_us": seconds["call"] * 1e3, "arithmetic_us": arithmetic}


def bars(rows: Sequence[Row], forward: Row, step: Row) -> list[Bound]:
    """Required bounds."""
    at = {(r["operator"], r["T"], r["K"]): r for r in rows}
    found = []

    def ratio(operator: str, T: int, names: Sequence[str], least: float, what: str) -> None:
        ms = at[operator, T, 31]["ms"]
        value = min(ms[n] for n in names if n in ms) / ms["lightconv"]
        found.append(Bound(f"{what}, T={T}", value, least))

    for T, least in ((32, 3.0), (128, 5.0), (512, 8.0), (2048, 25.0), (8192, 25.0)):
        ratio("dynamicconv", T, ("unfold", "band"), least, "DynamicConv against unfold, band")
    for T, least in ((32, 2.0), (128, 3.0), (512, 3.0), (2048, 3.0), (8192, 3.0), (65536, 3.0)):
        names = ("unfold", "band", "conv1d", "conv2d")
        ratio("lightconv", T, names, least, "LightConv against the fastest formulation")
    for T, least in ((128, 5.0), (8192, 50.0)):
        ratio("dynamicconv", T, ("attention",), least, "DynamicConv against causal attention")
    for operator in ("dynamicconv", "lightconv"):
        long, short = at[operator, 65536, 31], at[operator, 128, 31]
        value = (long["ms"]["lightconv"] / 65536) / (short["ms"]["lightconv"] / TOKENS)
        what = f"{operator}: time per token, T=65,536 against T=128"
        found.append(Bound(what, value, 1.2, most=True))
        row = at[operator, 2048, 31]
        value = row["extra_bytes"]["lightconv"] / row["needed_bytes"]
        found.append(Bound(f"{operator}: extra memory, share", value, 0.05, most=True))
        value = forward[operator]["share"]
        found.append(Bound(f"{operator}: forward, share of the limit", value, 0.6))
    value = step["call_us"] - step["arithmetic_us"]
    found.append(Bound("step: overhead beyond the arithmetic, us", value, STEP_US, most=True))
    return found


def quick() -> int:
    """Prints one table, K = 31."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(f"DynamicConv against attention, K=31, D={D}, H={H}, forward + backward")
    console.print(machine(), style="dim")
    table = Table(box=box.SIMPLE)
    table.add_column("T")
    names = ("lightconv", "band", "attention", "windowed")
    for title in ("DynamicConv", "band matrix", "attention", "windowed\nattention"):
        table.add_column(title, justify="right")
    table.add_column("attention /\nDynamicConv", justify="right")
    for T in (128, 512, 2048, 8192):
        with console.status(f"measuring T = {T:,}, {max(1, TOKENS // T)} sequences"):
            row = measure("dynamicconv", T, 31, rounds=3, memory=True)
        ms, extra = row["ms"], row["extra_bytes"]
        times = [f"{ms[n]:,.0f} ms" if n in ms else "-" for n in names]
        sizes = [f"{extra[n] / 1e6:,.0f} MB" if n in ms else "" for n in names]
        ratio = f"{ms['attention'] / ms['lightconv']:.1f}x"
        table.add_row(f"{T:,}", *times, ratio)
        table.add_row("", *sizes, "", style="dim")
    console.print(table)
    console.print("MB: memory beyond inputs, output and gradients. -: would need over 6 GB.")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Verifies, measures and prints; writes the pages with --write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one table in about a minute")
    parser.add_argument("--step", action="store_true", help="only what one step with state costs")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each side (default 9)")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write tables and plot there")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="append rows to it, skip its own")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop when so many have passed")
    options = parser.parse_args(argv)
    verify()
    if options.quick:
        return quick()
    if options.step:
        step = step_overhead(options.rounds)
        beyond = step["call_us"] - step["arithmetic_us"]
        print(machine())
        print(f"step: {beyond:.1f} us beyond {step['arithmetic_us']:.1f} of arithmetic")
        return 0 if beyond < STEP_US else 1
    start = time.time()
    probe = Probe()
    limits = measure_limits(probe)
    print(
        f"{machine()}\n{limits.flops / 1e9:.0f} GFLOP/s, {limits.bytes / 1e9:.1f} GB/s", flush=True
    )
    kept = Rows(options.rows, options.seconds)
    rows = kept.rows
    known = {(row["operator"], row["T"], row["K"]) for row in rows}
    for operator, T, K in itertools.product(("dynamicconv", "lightconv"), LENGTHS, KERNELS):
        memory = K == 31 and T in (128, 2048)
        row = functools.partial(measure, operator, T, K, options.rounds, memory)
        if (operator, T, K) not in known and not kept.add(row):
            return 1
    forward, step = forward_share(probe, options.rounds), step_overhead(options.rounds)
    checked = bars(rows, forward, step)
    print(render(checked))
    if options.write:
        from benchmarks.report import write

        write(options.write, limits, rows, forward, step, checked)
    print(f"{time.time() - start:.0f} s", file=sys.stderr)
    return 0 if all(bound.holds for bound in checked) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
