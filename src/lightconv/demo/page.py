"""Contents of the demo's page: the operator against attention, SVG pictures, HTML.

All sides of the comparison run forward + backward in one process in turns, after a warm-up; a time
is the median of three, memory the rise of the process's resident size during a call.
"""

import base64
import ctypes
import gc
import io
import logging
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv import __version__, ops
from lightconv.ops.library import POOL
from lightconv.train.log import open_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = "https://arxiv.org/abs/1901.10430"

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
        FUSED: (partial(attention, fused=True), qkv),
    }
    if 4.0 * 4 * B * H * length**2 <= MOST_BYTES:
        sides[PLAIN] = (partial(attention, fused=False), qkv)

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


def attention(*qkv: Tensor, fused: bool) -> Tensor:
    """Causal attention, torch's `fused` or with its matrix [B, H, T, T]: [B, T, D] -> [B, T, D]."""
    q, k, v = (x.unflatten(2, (H, D // H)).transpose(1, 2) for x in qkv)
    if fused:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
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


# --- Pictures and page

INK, GRID = "#333a42", "#d9dde2"
CURVES = ("#0072b2", "#d55e00", "#009e73", "#8f5bb5")


def draw_learning(log: Sequence[Mapping[str, Any]]) -> str:
    """Loss of training and validation over updates."""

    def draw(figure: "Figure") -> None:
        axis = figure.subplots()
        thin: dict[str, Any] = {"color": CURVES[0], "alpha": 0.55, "lw": 1.1}
        dots: dict[str, Any] = {"color": CURVES[1], "marker": "o", "lw": 1.8, "ms": 5}
        for kind, name, style in (("train", "training", thin), ("valid", "validation", dots)):
            points = [(e["step"], e["nll"]) for e in log if e["kind"] == kind and e["nll"]]
            if points:
                axis.plot(*zip(*points, strict=True), label=name, **style)
                axis.legend(frameon=False, labelcolor=INK)
            if points and kind == "valid":
                text = f"perplexity {math.exp(min(points[-1][1], 700.0)):,.1f}"
                place: dict[str, Any] = {"xytext": (-4, 12), "textcoords": "offset points"}
                axis.annotate(text, points[-1], ha="right", color=CURVES[1], **place)
        axis.set(xlabel="update", ylabel="negative log-likelihood per token (nats)")
        axis.xaxis.set_major_formatter("{x:,.0f}")

    return _svg(draw, (8.4, 3.6))


def draw_growth(rows: Sequence[Mapping[str, Any]]) -> str:
    """Time and memory per token over the length of sequences, both axes logarithmic."""
    names = list(dict.fromkeys(name for row in rows for name in row["microseconds"]))
    panels = [("microseconds", 1.0, "microseconds per token", "time, forward + backward")]
    if all(row["bytes"] is not None for row in rows):
        panels.append(("bytes", 1024.0, "KB per token", "peak memory, forward + backward"))

    def draw(figure: "Figure") -> None:
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (field, unit, label, title) in zip(axes, panels, strict=True):
            for name, colour, mark in zip(names, CURVES, "os^D", strict=False):
                known = [row for row in rows if row[field].get(name, 0.0) > 0.0]
                x, y = [row["length"] for row in known], [row[field][name] / unit for row in known]
                axis.plot(x, y, color=colour, marker=mark, lw=1.8, ms=5, label=name)
            axis.set(xlabel="length of a sequence (tokens)", ylabel=label, title=title)
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_xticks([row["length"] for row in rows])
            axis.xaxis.set_major_formatter("{x:,.0f}")
            axis.yaxis.set_major_formatter("{x:,g}")
            axis.minorticks_off()
            axis.tick_params(axis="x", labelrotation=35)
        axes[0].legend(frameon=False, labelcolor=INK)

    return _svg(draw, (9.6 if len(panels) == 2 else 5.2, 3.9))


def _svg(draw: Callable[["Figure"], None], size: tuple[float, float]) -> str:
    # Its first start on a machine warns that it lists the fonts.
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    import matplotlib

    # A fixed salt and no date: the same results give the same file.
    with matplotlib.rc_context({"svg.hashsalt": "lightconv", "font.size": 9.5}):
        figure = open_figure(*size)
        figure.patch.set_alpha(0.0)
        draw(figure)
        for axis in figure.axes:
            axis.set_facecolor("none")
            axis.grid(color=GRID, lw=0.7)
            axis.set_axisbelow(True)
            axis.spines[["top", "right"]].set_visible(False)
            axis.spines[["left", "bottom"]].set_color(GRID)
            axis.tick_params(colors=INK, which="both", length=2.5)
            for text in (axis.title, axis.xaxis.label, axis.yaxis.label):
                text.set_color(INK)
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}"


def make_page(facts: Mapping[str, Any]) -> str:
    """The page; texts in it are escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        **facts,
        learning_plot=draw_learning(facts["training"]["log"]),
        growth_plot=draw_growth(facts["growth"]),
        version=__version__,
        paper=PAPER,
    )
