"""Quality against speed of all translation models of docs/results, beside published engines.

python -m benchmarks.quality [--write docs/results/quality-speed.png]
"""

import argparse
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from lightconv.console import print_groups
from lightconv.paper.results import Result, ResultsFolder, find_results
from lightconv.train.log import open_figure

RESULTS = Path(__file__).parents[1] / "docs" / "results"
TABLES = ("mt1", "mt2", "ablation", "decoders")
FEWEST = 3  # models of an experiment that is shown
COLUMNS = 3
LEARNED = 0.5  # a model below this share of the best BLEU has not learned: it is only listed
MARKS = {"selfattention": "o", "lightconv": "s", "dynamicconv": "D"}
OURS, THEIRS = "#1f5fa8", "#888888"


class Point(NamedTuple):
    """One system: sentences or tokens per second, and BLEU."""

    name: str
    speed: float
    bleu: float


class Panel(NamedTuple):
    """Systems on one test set and one machine; only points of one panel can be compared."""

    title: str
    unit: str
    points: list[Point]


# Other machines, models and test sets. CTranslate2: the README of its version 1.2.1, base
# Transformer, newstest2014, i7-6700K, 4 threads. Firefox: its project's figure for English to
# German, one thread.
PUBLISHED = Panel(
    "published, other machines and text",
    "tokens/s (CTranslate2), sentences/s (Firefox)",
    [
        Point("CTranslate2 float", 381.31, 26.69),
        Point("CTranslate2 int16", 395.46, 26.68),
        Point("CTranslate2 int8", 448.21, 26.84),
        Point("CTranslate2 int8, shortlist", 591.78, 26.59),
        Point("Firefox tiny11 int8, shortlist", 63, 44.7),
    ],
)


def read_panel(folder: ResultsFolder) -> Panel:
    """Means over seeds of the models that were scored and timed."""
    points, splits = [], set()
    for recipe, results in folder.all().items():
        found = [each for each in map(_figures, results) if each is not None]
        if found:
            names, speeds, scores = zip(*found, strict=True)
            splits |= set(names)
            points.append(Point(_shorten(recipe), fmean(speeds), fmean(scores)))
    about = folder.experiment
    return Panel(f"{about.table}, {about.name}, {'/'.join(sorted(splits))}", "sentences/s", points)


def _figures(result: Result) -> tuple[str, float, float] | None:
    found = result.measured
    if found is None or found.speed is None or not found.scores:
        return None
    split = "test" if "test" in found.scores else "valid"
    score = found.scores[split][0]
    return (split, found.speed.rates()[0], score.value) if "bleu" in score.metric else None


def _shorten(recipe: str) -> str:
    for head in (
        "iwslt-de-en-",
        "wmt-en-de-ablation-",
        "wmt-en-de-",
        "wmt-zh-en-",
        "debian-en-de-",
    ):
        recipe = recipe.removeprefix(head)
    return recipe.removesuffix("-small")


def draw(panels: list[Panel], path: Path) -> None:
    """A panel for each experiment, with the names in a column at its right."""
    rows = -(-len(panels) // COLUMNS)
    figure = open_figure(4.8 * COLUMNS, 3.4 * rows)
    axes = figure.subplots(rows, COLUMNS, squeeze=False).flatten()
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    for axis, panel in zip(axes, panels, strict=False):
        color = THEIRS if panel is PUBLISHED else OURS
        best = max(point.bleu for point in panel.points)
        shown = sorted((p for p in panel.points if p.bleu >= LEARNED * best), key=lambda p: p.bleu)
        for place, point in enumerate(shown):
            axis.plot(point.speed, point.bleu, MARKS.get(point.name, "o"), color=color)
            at = (1.04, (place + 0.5) / len(shown))
            how: dict[str, Any] = {"textcoords": "axes fraction", "fontsize": 8, "va": "center"}
            line = {"arrowstyle": "-", "color": color, "alpha": 0.35, "linewidth": 0.7}
            axis.annotate(point.name, (point.speed, point.bleu), at, arrowprops=line, **how)
        axis.margins(0.1)
        axis.set_title(panel.title, fontsize=9)
        axis.set_xlabel(panel.unit, fontsize=8)
        axis.set_ylabel("BLEU", fontsize=8)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="the picture")
    options = parser.parse_args()
    found = [read_panel(each) for table in TABLES for each in find_results(RESULTS, table)]
    panels = [*(panel for panel in found if len(panel.points) >= FEWEST), PUBLISHED]
    for panel in panels:
        rows = [[point.name, f"{point.speed:,.1f}", f"{point.bleu:.2f}"] for point in panel.points]
        print_groups({panel.title: rows}, ("system", panel.unit, "BLEU"), (panel.unit, "BLEU"))
    if options.write:
        draw(panels, options.write)


if __name__ == "__main__":
    main()
