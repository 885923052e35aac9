"""The demo's pictures, as SVG without a background; a dark page inverts them."""

import io
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Plain = Mapping[str, Any]

# The last letter that matplotlib's font has; others are drawn as a box.
_LAST_LETTER = 0x24F


INK, GRID, SHADES = "#333a42", "#d9dde2", "Blues"
CURVES = ("#0072b2", "#d55e00", "#009e73", "#8f5bb5")


def check_matplotlib() -> None:
    """Raises ValueError if matplotlib is missing."""
    # Its first start on a machine warns that it lists the fonts.
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    try:
        import matplotlib as _  # noqa: F401
    except ImportError:
        raise ValueError(
            "the demo's plots need the package matplotlib. Install it with "
            "pip install 'lightconv[plot]'"
        ) from None


def draw_learning(log: Sequence[Plain]) -> bytes:
    """Loss of training and validation over updates."""

    def draw(figure: "Figure") -> None:
        axis = figure.subplots()
        for kind, name, style in (
            ("train", "training", {"color": CURVES[0], "alpha": 0.55, "lw": 1.1}),
            ("valid", "validation", {"color": CURVES[1], "marker": "o", "lw": 1.8, "ms": 5}),
        ):
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
        _finish(axis)

    return _svg(draw, (8.4, 3.6))


def draw_growth(rows: Sequence[Plain]) -> bytes:
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
                if known:
                    axis.plot(x, y, color=colour, marker=mark, lw=1.8, ms=5, label=name)
            axis.set(xlabel="length of a sequence (tokens)", ylabel=label, title=title)
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_xticks([row["length"] for row in rows])
            axis.xaxis.set_major_formatter("{x:,.0f}")
            axis.yaxis.set_major_formatter("{x:,g}")
            axis.minorticks_off()
            axis.tick_params(axis="x", labelrotation=35)
            _finish(axis)
        axes[0].legend(frameon=False, labelcolor=INK)

    return _svg(draw, (9.6 if len(panels) == 2 else 5.2, 3.9))


def draw_learned(kernels: Sequence[Plain]) -> bytes:
    """Kernels of LightConv layers: a panel for each layer, a row for each head."""

    def draw(figure: "Figure") -> None:
        axes = figure.subplots(1, len(kernels), squeeze=False)[0]
        for axis, layer in zip(axes, kernels, strict=True):
            weights, left = layer["weights"], layer["left"]
            heads, width = len(weights), len(weights[0])
            image = axis.imshow(weights, aspect="auto", cmap=SHADES, vmin=0.0, vmax=1.0)
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
            _finish(axis, grid=False)

    most = max(len(layer["weights"]) for layer in kernels)
    return _svg(draw, (max(4.6, 4.4 * len(kernels)), 1.3 + 0.42 * most))


def draw_dynamic(layer: Plain, tokens: Sequence[str]) -> bytes:
    """Kernels of a DynamicConv layer over a text: a matrix [T, T] for each head."""
    heads, T = len(layer["weights"]), len(tokens)
    labels = [_letters(token) for token in tokens]
    columns = min(heads, 4)
    rows = math.ceil(heads / columns)

    def draw(figure: "Figure") -> None:
        axes = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for place, axis in enumerate(axes.flat):
            if place >= heads:
                axis.set_visible(False)
                continue
            axis.imshow(spread(layer["weights"][place], layer["left"]), cmap=SHADES, vmin=0.0)
            axis.set_xticks(range(T), labels, rotation=90, fontsize=7.5)
            axis.set_title(f"head {place + 1}")
            _finish(axis, grid=False)
        for line in axes:
            line[0].set_yticks(range(T), labels, fontsize=7.5)

    side = 1.0 + 0.115 * T
    below = 0.075 * max(map(len, labels))  # labels of columns are vertical
    return _svg(draw, (0.6 + below + columns * side, 0.3 + rows * (side + 0.35 + below)))


def spread(weights: Sequence[Sequence[float]], left: int) -> list[list[float]]:
    """Kernels [T][K] as a matrix [T][T], without weights outside the text."""
    T = len(weights)
    matrix = [[0.0] * T for _ in range(T)]
    for t, kernel in enumerate(weights):
        for k, weight in enumerate(kernel):
            if 0 <= t + k - left < T:
                matrix[t][t + k - left] = weight
    return matrix


def _finish(axis: "Axes", *, grid: bool = True) -> None:
    if grid:
        axis.grid(color=GRID, lw=0.7)
        axis.spines[["top", "right"]].set_visible(False)
    axis.set_axisbelow(True)
    for spine in axis.spines.values():
        spine.set_color(GRID)
    axis.tick_params(colors=INK, which="both", length=2.5)
    for text in (axis.title, axis.xaxis.label, axis.yaxis.label):
        text.set_color(INK)


def _svg(draw: Callable[["Figure"], None], size: tuple[float, float]) -> bytes:
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {
        "text.parse_math": False,  # a dollar in a text is a dollar
        "svg.hashsalt": "lightconv",
        "font.size": 9.5,
        "axes.titlesize": 10.5,
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        figure.patch.set_alpha(0.0)
        draw(figure)
        for axis in figure.axes:
            axis.set_facecolor("none")
        file = io.BytesIO()
        # Without a date, the same results give the same file.
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _letters(token: str) -> str:
    """A label: spaces are dots, and letters that the font lacks are boxes."""
    seen = "".join(c if c.isprintable() and ord(c) <= _LAST_LETTER else "\u25a1" for c in token)
    return seen.replace(" ", "\u00b7")


def _contrast(colour: Sequence[float]) -> str:
    """Black or white text on this colour."""
    red, green, blue = colour[:3]
    return "#000000" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "#ffffff"
