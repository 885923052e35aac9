"""The demo's pictures, as SVG: each twice, for light and for dark pages."""

import io
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Plain = Mapping[str, Any]
Draw = Callable[["Figure", "Theme"], None]

# Letters that the font of matplotlib has; others become a box of ours, without a warning of its.
_LAST_LETTER = 0x24F


class Theme(NamedTuple):
    """Colours: text, lines of the grid, curves, and a map from nothing to much."""

    ink: str
    grid: str
    curves: tuple[str, str, str, str]
    shades: str


LIGHT = Theme("#333a42", "#d9dde2", ("#0072b2", "#d55e00", "#009e73", "#8f5bb5"), "Blues")
DARK = Theme("#d5dae0", "#3c444d", ("#58aee8", "#f08b4b", "#3fc79a", "#c19be0"), "magma")


class Picture(NamedTuple):
    """The same picture for light and dark pages."""

    light: bytes
    dark: bytes


def check_matplotlib() -> None:
    """Raises ValueError where there is no matplotlib."""
    # Its first start on a machine lists the fonts, and would warn about that.
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    try:
        import matplotlib as _  # noqa: F401
    except ImportError:
        raise ValueError(
            "the demo's plots need the package matplotlib. Install it with "
            "pip install 'lightconv[plot]'"
        ) from None


def draw_learning(log: Sequence[Plain]) -> Picture:
    """Loss of training and validation over updates."""

    def draw(figure: "Figure", theme: Theme) -> None:
        axis = figure.subplots()
        train = [(e["step"], e["nll"]) for e in log if e["kind"] == "train" and e["nll"]]
        valid = [(e["step"], e["nll"]) for e in log if e["kind"] == "valid" and e["nll"]]
        if train:
            thin: dict[str, Any] = {"color": theme.curves[0], "alpha": 0.55, "lw": 1.1}
            axis.plot(*zip(*train, strict=True), label="training", **thin)
        if valid:
            dots: dict[str, Any] = {"color": theme.curves[1], "lw": 1.8, "ms": 5}
            axis.plot(*zip(*valid, strict=True), "o-", label="validation", **dots)
            step, nll = valid[-1]
            axis.annotate(
                f"perplexity {math.exp(min(nll, 700.0)):,.1f}",
                (step, nll),
                xytext=(-4, 12),
                textcoords="offset points",
                ha="right",
                color=theme.curves[1],
            )
        axis.set(xlabel="update", ylabel="negative log-likelihood per token (nats)")
        axis.xaxis.set_major_formatter("{x:,.0f}")
        if train or valid:
            axis.legend(frameon=False, labelcolor=theme.ink)
        _finish(axis, theme)

    return _both(draw, (8.4, 3.6))


def draw_growth(rows: Sequence[Plain]) -> Picture:
    """Time and memory of each token over the length of sequences, both axes logarithmic."""
    names = list(dict.fromkeys(name for row in rows for name in row["microseconds"]))
    memory = all(row["bytes"] is not None for row in rows)

    def draw(figure: "Figure", theme: Theme) -> None:
        axes = figure.subplots(1, 2 if memory else 1, squeeze=False)[0]
        for name, colour, mark in zip(names, theme.curves, "os^D", strict=False):
            style: dict[str, Any] = {"color": colour, "marker": mark, "lw": 1.8, "ms": 5}
            _lengths(axes[0], rows, "microseconds", name, 1.0, label=name, **style)
            if memory:
                _lengths(axes[1], rows, "bytes", name, 1024.0, **style)
        axes[0].set(ylabel="microseconds per token", title="time, forward + backward")
        if memory:
            axes[1].set(ylabel="KB per token", title="peak memory, forward + backward")
        axes[0].legend(frameon=False, labelcolor=theme.ink)
        for axis in axes:
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_xlabel("length of a sequence (tokens)")
            axis.set_xticks([row["length"] for row in rows])
            axis.xaxis.set_major_formatter("{x:,.0f}")
            axis.yaxis.set_major_formatter("{x:,g}")
            axis.minorticks_off()
            axis.tick_params(axis="x", labelrotation=35)
            _finish(axis, theme)

    return _both(draw, (9.6 if memory else 5.2, 3.9))


def draw_learned(kernels: Sequence[Plain]) -> Picture:
    """The kernels of LightConv layers: a panel for each layer, a row for each head."""

    def draw(figure: "Figure", theme: Theme) -> None:
        axes = figure.subplots(1, len(kernels), squeeze=False)[0]
        for axis, layer in zip(axes, kernels, strict=True):
            weights, left = layer["weights"], layer["left"]
            heads, width = len(weights), len(weights[0])
            image = axis.imshow(weights, aspect="auto", cmap=theme.shades, vmin=0.0, vmax=1.0)
            for h in range(heads):
                for k in range(width) if width <= 9 else ():
                    share = weights[h][k]
                    colour = _contrast(image.cmap(share))
                    axis.text(k, h, f"{share:.2f}", ha="center", va="center", color=colour)
            every = 1 if width <= 9 else 5
            places = [k for k in range(width) if (k - left) % every == 0]
            axis.set_xticks(places, [f"{k - left:+d}" if k != left else "0" for k in places])
            axis.set_yticks(range(heads), [f"head {h + 1}" for h in range(heads)])
            axis.set(xlabel="position relative to the token", title=layer["layer"])
            _finish(axis, theme, grid=False)

    most = max(len(layer["weights"]) for layer in kernels)
    return _both(draw, (max(4.6, 4.4 * len(kernels)), 1.3 + 0.42 * most))


def draw_dynamic(layer: Plain, tokens: Sequence[str]) -> Picture:
    """A DynamicConv layer over a text: for each head, where each position looks."""
    heads, T = len(layer["weights"]), len(tokens)
    labels = [_letters(token) for token in tokens]
    columns = min(heads, 4)
    rows = math.ceil(heads / columns)

    def draw(figure: "Figure", theme: Theme) -> None:
        axes = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for place, axis in enumerate(axes.flat):
            if place >= heads:
                axis.set_visible(False)
                continue
            axis.imshow(spread(layer["weights"][place], layer["left"]), cmap=theme.shades, vmin=0.0)
            axis.set_xticks(range(T), labels, rotation=90, fontsize=7.5)
            axis.set_title(f"head {place + 1}")
            _finish(axis, theme, grid=False)
        for line in axes:
            line[0].set_yticks(range(T), labels, fontsize=7.5)

    side = 1.0 + 0.115 * T
    below = 0.075 * max(map(len, labels))  # the labels of columns stand upright
    return _both(draw, (0.6 + below + columns * side, 0.3 + rows * (side + 0.35 + below)))


def spread(weights: Sequence[Sequence[float]], left: int) -> list[list[float]]:
    """Kernels [T][K] as a matrix [T][T]: what stands outside the text is left out."""
    T = len(weights)
    matrix = [[0.0] * T for _ in range(T)]
    for t, kernel in enumerate(weights):
        for k, weight in enumerate(kernel):
            if 0 <= t + k - left < T:
                matrix[t][t + k - left] = weight
    return matrix


def _lengths(
    axis: "Axes", rows: Sequence[Plain], field: str, name: str, unit: float, **style: Any
) -> None:
    points = [(row["length"], row[field][name] / unit) for row in rows if name in row[field]]
    points = [(x, y) for x, y in points if y > 0.0]
    if points:
        axis.plot(*zip(*points, strict=True), **style)


def _finish(axis: "Axes", theme: Theme, *, grid: bool = True) -> None:
    if grid:
        axis.grid(color=theme.grid, lw=0.7)
        axis.spines[["top", "right"]].set_visible(False)
    axis.set_axisbelow(True)
    for spine in axis.spines.values():
        spine.set_color(theme.grid)
    axis.tick_params(colors=theme.ink, which="both", length=2.5)
    for text in (axis.title, axis.xaxis.label, axis.yaxis.label):
        text.set_color(theme.ink)


def _both(draw: Draw, size: tuple[float, float]) -> Picture:
    """One drawing in both themes."""
    return Picture(*(_svg(draw, size, theme) for theme in (LIGHT, DARK)))


def _svg(draw: Draw, size: tuple[float, float], theme: Theme) -> bytes:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with _settings():
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        figure.patch.set_alpha(0.0)
        draw(figure, theme)
        for axis in figure.axes:
            axis.set_facecolor("none")
        file = io.BytesIO()
        # No date: the same results are the same file.
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


@contextmanager
def _settings() -> Iterator[None]:
    import matplotlib

    chosen: dict[Any, Any] = {
        "text.parse_math": False,  # a dollar in a text is a dollar
        "svg.hashsalt": "lightconv",
        "font.size": 9.5,
        "axes.titlesize": 10.5,
    }
    with matplotlib.rc_context(chosen):
        yield


def _letters(token: str) -> str:
    """A piece of text as a label: spaces are seen, letters that the font lacks are boxes."""
    seen = "".join(c if c.isprintable() and ord(c) <= _LAST_LETTER else "\u25a1" for c in token)
    return seen.replace(" ", "\u00b7")


def _contrast(colour: Sequence[float]) -> str:
    """Black or white, whichever is read better on it."""
    red, green, blue = colour[:3]
    return "#000000" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "#ffffff"
