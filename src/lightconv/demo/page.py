"""The results of a demo as one HTML page with SVG pictures."""

import base64
import io
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightconv import __version__
from lightconv.demo.plan import DemoPlan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Plain = Mapping[str, Any]
INK, GRID = "#333a42", "#d9dde2"
CURVES = ("#0072b2", "#d55e00", "#009e73", "#8f5bb5")


def draw_learning(log: Sequence[Plain]) -> str:
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


def draw_growth(rows: Sequence[Plain]) -> str:
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
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    # A fixed salt and no date: the same results give the same file.
    with matplotlib.rc_context({"svg.hashsalt": "lightconv", "font.size": 9.5}):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
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


PAPER = "https://arxiv.org/abs/1901.10430"
# Names of the first score, of the source, and of baselines.
METRICS = {"translation": "BLEU", "lm": "perplexity per subword", "summary": "ROUGE-L"}
SOURCES = {"translation": "source", "lm": "begin", "summary": "text"}
BASELINES = {
    ("translation", "copy"): "copying the source",
    ("translation", "nearest"): "the translation of the nearest training sentence",
    ("lm", "unigram"): "counting words",
    ("summary", "lead"): "the first words",
    ("summary", "nearest"): "the summary of the nearest training text",
}


def make_page(task: str, plan: DemoPlan, results: Mapping[str, Any]) -> str:
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
        **results,
        task=task,
        plan=plan,
        metric=METRICS[task],
        source=SOURCES[task],
        headline=headline(task, results),
        learning_plot=draw_learning(results["training"]["log"]),
        growth_plot=draw_growth(results["growth"]),
        version=__version__,
        paper=PAPER,
    )


def headline(task: str, results: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Systems and their first score, the model first; perplexity is that of a subword."""
    return [
        (
            BASELINES.get((task, system), "the model"),
            float(scores[0]["parts"].get("per_subword", scores[0]["value"])),
        )
        for system, scores in results["scores"].items()
    ]
