"""Writes the results of benchmarks/ops.py: Markdown tables between markers, raw rows, one plot."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.bounds import Bound, render
from benchmarks.limits import Limits
from benchmarks.measure import machine
from benchmarks.pages import commit, measured, replace, table

Row = dict[str, Any]
NAMES = {
    "lightconv": "**this project**",
    "unfold": "unfold",
    "band": "band matrix",
    "conv1d": "grouped conv1d",
    "conv2d": "channels-last conv2d",
    "attention": "causal attention",
    "windowed": "windowed attention",
}


def _speed(operator: str, rows: Sequence[Row]) -> str:
    chosen = [r for r in rows if r["operator"] == operator]
    names = list(dict.fromkeys(name for r in chosen for name in r["ms"]))
    lines = []
    for r in chosen:
        ms = r["ms"]
        others = [v for n, v in ms.items() if n not in ("lightconv", "attention", "windowed")]
        cells = [f"{ms[n]:,.1f}" if n in ms else "-" for n in names]
        ratio = f"{min(others) / ms['lightconv']:.1f}x" if others else "-"
        lines.append([f"{r['T']:,}", str(r["K"]), *cells, ratio])
    return table(["T", "K", *(NAMES[n] for n in names), "fastest other / ours"], lines)


def first_screen(rows: Sequence[Row]) -> str:
    """The README's table: K = 31, the operator's time and the slowdown of the others."""
    lines = []
    for r in rows:
        if r["K"] != 31 or r["operator"] != "dynamicconv":
            continue
        ms = r["ms"]
        others = [
            f"{ms[n] / ms['lightconv']:.1f}x" if n in ms else "-"
            for n in ("unfold", "band", "attention", "windowed")
        ]
        lines.append([f"{r['T']:,}", f"{ms['lightconv'] * 1e3 / r['tokens']:.2f} us", *others])
    header = [
        "T",
        "DynamicConv, per token",
        "unfold",
        "band matrix",
        "attention",
        "windowed attention",
    ]
    return table(header, lines) + "\n\n-: would need more than 6 GB, or minutes."


def _memory(rows: Sequence[Row]) -> str:
    lines = []
    for r in (r for r in rows if "extra_bytes" in r):
        extra = ", ".join(f"{NAMES[n]} {b / 1e6:,.0f}" for n, b in r["extra_bytes"].items())
        lines.append([r["operator"], f"{r['T']:,}", f"{r['needed_bytes'] / 1e6:,.0f}", extra])
    return table(["operator", "T", "needed, MB", "extra, MB"], lines)


def write(
    folder: Path,
    limits: Limits,
    rows: Sequence[Row],
    forward: Row,
    step: Row,
    checked: list[Bound],
) -> None:
    """Writes the tables (between their markers), performance-ops.json and performance-ops.png."""
    facts = {
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "gflops": limits.flops / 1e9,
        "gbytes": limits.bytes / 1e9,
        "forward": forward,
        "step": step,
        "rows": rows,
    }
    (folder / "performance-ops.json").write_text(json.dumps(facts, indent=1) + "\n")
    shares = table(
        [
            "forward, T=2,048, K=31",
            "ms, output reused",
            "ms, output fresh",
            "memory limit, ms",
            "FMA limit, ms",
            "share of the limit",
            "share of the copy alone",
        ],
        [
            [
                n,
                *(f"{f[k]:.1f}" for k in ("ms", "fresh_ms", "memory_ms", "fma_ms")),
                f"{f['share']:.0%}",
                f"{f['moved_bytes'] / limits.bytes / (f['ms'] / 1e3):.0%}",
            ]
            for n, f in forward.items()
        ],
    )
    text = f"""
{measured()}; limits of the machine in the same run:
{facts["gflops"]:.0f} GFLOP/s of fused multiply-adds, {facts["gbytes"]:.1f} GB/s read + written.

{render(checked)}

{shares}

One step with state (N=4 rows, D=512, K=31, inference mode): {step["call_us"]:.1f} us for the call,
of which {step["arithmetic_us"]:.1f} us are arithmetic.

### DynamicConv, ms, forward + backward

{_speed("dynamicconv", rows)}

### LightConv, ms, forward + backward

{_speed("lightconv", rows)}

### Memory beyond inputs, output and gradients, K=31

{_memory(rows)}
"""
    screen = first_screen(rows)
    replace(folder, "benchmarks.ops", text)
    replace(folder, "benchmarks.ops summary", f"{measured()}.\n\n{screen}")
    replace(folder.parent / "README.md", "benchmarks.ops", screen)
    _plot(folder / "performance-ops.png", rows)


def _plot(path: Path, rows: Sequence[Row]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.8), sharey=True)
    for axis, operator in zip(axes, ("dynamicconv", "lightconv"), strict=True):
        chosen = [r for r in rows if r["operator"] == operator and r["K"] == 31]
        for name in dict.fromkeys(n for r in chosen for n in r["ms"]):
            points = [
                (r["T"], r["ms"][name] * 1e3 / r["tokens"]) for r in chosen if name in r["ms"]
            ]
            ours = name == "lightconv"
            axis.plot(
                *zip(*points, strict=True),
                marker="o",
                linewidth=2.5 if ours else 1.2,
                color="black" if ours else None,
                label=NAMES[name].strip("*"),
            )
        axis.set(xscale="log", yscale="log", xlabel="sequence length T")
        axis.set_title(
            {"dynamicconv": "DynamicConv", "lightconv": "LightConv"}[operator] + ", K = 31"
        )
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncol=3)
    axes[0].set_ylabel("forward + backward, us per token")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
