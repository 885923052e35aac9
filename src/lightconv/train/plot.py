"""Curves of runs from their logs: loss, metric, learning rate."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightconv.console import tell
from lightconv.train.log import LOG_FILE, Entry, read_log

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLOT_FILE = "plot.png"
SUFFIXES = (".png", ".svg", ".pdf")
# Distinct for colour-blind readers.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#999933")


def draw(runs: Sequence[Path], out: Path) -> None:
    """Writes a picture of all runs; the suffix of its name is its format."""
    if out.suffix.lower() not in SUFFIXES:
        raise ValueError(f"--out {out}, expected a name that ends in {', '.join(SUFFIXES)}")
    logs = {name: _read(run) for name, run in zip(_names(runs), runs, strict=True)}
    metrics = sorted({name for log in logs.values() for entry in log for name in _metric(entry)})
    figure = open_figure(5.2 * (2 + len(metrics)), 4.4)
    axes = figure.subplots(1, 2 + len(metrics), squeeze=False)[0]
    titles = ["loss per token", *(f"{metric} (validation)" for metric in metrics), "learning rate"]
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, fontsize="medium")
        axis.set_xlabel("step")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.xaxis.set_major_formatter("{x:,.0f}")
    for place, (name, log) in enumerate(logs.items()):
        train, valid = ([e for e in log if e.get("kind") == kind] for kind in ("train", "valid"))
        colour = COLOURS[place % len(COLOURS)]
        dots = {"color": colour, "linewidth": 1.4, "marker": "o", "markersize": 3}
        thin = {"color": colour, "linewidth": 1.0, "alpha": 0.5}
        _curve(axes[0], train, "loss", label=f"{name}, training", **thin)
        _curve(axes[0], valid, "loss", label=f"{name}, validation", **dots)
        for axis, metric in zip(axes[1:], metrics, strict=False):
            _curve(axis, [{"step": e["step"], **_metric(e)} for e in valid], metric, **dots)
        # Runs often have the same rate: a later curve leaves a rim of the earlier ones.
        width = 1.4 + 2.0 * (len(logs) - place - 1)
        _curve(axes[-1], train, "lr", color=colour, linewidth=width)
    axes[0].legend(frameon=False, fontsize="small")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)


def open_figure(width: float, height: float) -> "Figure":
    """An empty figure of this size in inches; ValueError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError(
            "a plot needs the package matplotlib. Install it with pip install 'lightconv[plot]'"
        ) from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _curve(axis: "Axes", entries: Sequence[Entry], field: str, **style: Any) -> None:
    points = [(e["step"], e[field]) for e in entries if isinstance(e.get(field), int | float)]
    if points:
        axis.plot(*zip(*points, strict=True), **style)


def _metric(entry: Entry) -> dict[str, float]:
    found = entry.get("metric")
    return found if isinstance(found, dict) else {}


def _read(run: Path) -> list[Entry]:
    path = run / LOG_FILE
    if not path.exists():
        raise ValueError(f"{run} is not a run folder: it has no {LOG_FILE}")
    if entries := read_log(path, tell):
        return entries
    raise ValueError(f"{path} has no entries yet. Wait for the first one")


def _names(runs: Sequence[Path]) -> list[str]:
    short = [run.absolute().name for run in runs]
    names = [s if short.count(s) == 1 else str(run) for s, run in zip(short, runs, strict=True)]
    double = [name for name in names if names.count(name) > 1]
    if double:
        raise ValueError(f"{double[0]} is given twice, expected each run once")
    return names
