"""Tables for people: the paper's figures beside ours, as rows, Markdown and a picture.

Each column says whose figures it has, the paper's or ours.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from lightconv.console import Rows, markdown
from lightconv.paper.cited import CITED
from lightconv.paper.recipes import RECIPES
from lightconv.paper.results import (
    Experiment,
    Measurement,
    Result,
    ResultsFolder,
    Training,
    show_mean,
    show_results,
)
from lightconv.paper.rows import NONE, Row
from lightconv.paper.small import WIDTH
from lightconv.paper.tables import TABLES, Column, Table
from lightconv.recipe import count_parameters

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKDOWN_FILE = "table.md"
PICTURE_FILE = "table.png"
BLUE = "#0072b2"

# Arguments of `print_groups` and `markdown`: rows by title, header, columns set to the right.
Section = tuple[dict[str, Rows], Sequence[str], Sequence[str]]
# Results by recipe.
Found = Mapping[str, Sequence[Result]]


def show_paper(table: Table, full: Found) -> Section:
    """The paper's rows: its figures, our exact counts, and what was run at full size here."""
    header = ["row", "recipe", "params (paper)", "params (ours)"]
    for column in table.columns:
        header += [f"{column.name} (paper)", f"{column.name} (ours)"]
    rows = []
    for row in table.rows:
        recipe, count = row.recipe, count_parameters(RECIPES[row.recipe].model)
        cells = [row.text, recipe, row.params, f"{count:,}"]
        for column, figure in zip(table.columns, row.figures, strict=True):
            cells += [figure, show_results(full.get(recipe, []), column)]
        rows.append(cells)
    return {f"{table.title} ({table.place})": rows}, header, header[2:]


def show_cited(table: Table) -> Section:
    """Rows that are the work of others."""
    names = [f"{column.name} (paper)" for column in table.columns]
    header = ["row", "params (paper)", *names]
    rows = [row.split(" | ") for row in CITED[table.name]]
    return {"Work of others, as the paper cites it": rows}, header, header[1:]


def rows_of(table: Table, experiment: Experiment) -> dict[str, Row]:
    """Rows that an experiment can run, by recipe; at full size those of its corpus."""
    rows, small = table.rows_at(experiment.scale), experiment.scale == "cpu"
    corpus = experiment.corpus
    return {n: row for n, row in rows.items() if small or RECIPES[n].task.corpus == corpus}


def show_experiment(table: Table, results: ResultsFolder) -> Section:
    """Rows of an experiment; those without results say so."""
    found = results.all()
    columns = own_columns(table, results.experiment, found)
    papers = [f"{column.name} (paper, full size)" for column in table.columns]
    ours = [f"{column.name} (ours)" for column in columns]
    header = ["row", "params (ours)", "seeds", *ours, "training (ours)", "tokens/s (ours)", *papers]
    rows = []
    for recipe, row in rows_of(table, results.experiment).items():
        mine = found.get(recipe, [])
        size = next((f"{each.parameters:,}" for each in _measured(mine)), NONE)
        cells = [show_results(mine, column) for column in columns]
        cells += [_minutes(mine), _rate(mine), *row.figures]
        rows.append([row.text, size, str(len(mine)), *cells])
    return {describe(results.experiment, found): rows}, header, header[1:]


def own_columns(table: Table, experiment: Experiment, found: Found) -> list[Column]:
    """The table's columns, and sentences per second if sentences were decoded.

    The name of a column says so if validation replaces a split that the data does not have; a table
    with a column for validation gets no second one.
    """
    absent = _absent(experiment)
    columns = [c for c in table.columns if c.measured != "score" or c.split not in absent]
    if not any(column.measured == "score" for column in columns):
        columns = [
            replace(c, name=f"{c.name}, validation", split="valid") if c.split in absent else c
            for c in table.columns
        ]
    decoded = any(each.speed for each in _measured(_all(found)))
    if decoded and all(column.measured == "score" for column in columns):
        columns.append(Column(name="Sent/sec", measured="sentences/s", digits=1))
    return columns


def _absent(experiment: Experiment) -> list[str]:
    """Splits that the data does not have; validation was scored in their place."""
    return [s for s in TABLES[experiment.table].splits if s not in experiment.data]


def describe(experiment: Experiment, found: Found) -> str:
    """`Small twins on multi30k, 3,000 updates`."""
    steps = [each.training.steps for each in _measured(_all(found)) if each.training]
    updates = f", {max(steps):,} updates" if steps else ""
    name, corpus = experiment.name, experiment.corpus
    name += "" if name == corpus else f" ({corpus})"
    limit = "" if experiment.limit is None else f", the first {experiment.limit:,} lines"
    kind = "Small twins" if experiment.scale == "cpu" else "Full size"
    return f"{kind} on {name}{updates}{limit}"


def notes(results: ResultsFolder) -> list[str]:
    """Origin of the figures: commands, dates, commits, machines, signatures, failures."""
    experiment, found = results.experiment, _all(results.all())
    measured = _measured(found)
    dates = sorted(result.date for result in found)
    lines = []
    if experiment.scale == "cpu":
        lines.append(
            f"rows have the names of the paper; their twins have width {experiment.width or WIDTH} "
            "and about half of its layers (`lightconv show RECIPE`), and are changed by the "
            "settings below"
        )
    no_split = "the data has no split {}: validation is scored in its place"
    lines += map(no_split.format, _absent(experiment))
    lines += [f"command: {result.command}" for result in found]
    lines += [f"date: {dates[0]} to {dates[-1]}"] if dates else []
    lines += [f"commit: {result.commit}" for result in found if result.commit]
    for each in measured:
        lines.append(f"machine: {', '.join(f'{k} {v}' for k, v in each.machine.items())}")
    lines += [f"settings: {' '.join(experiment.settings)}"] if experiment.settings else []
    firsts = [scores[0] for each in measured for scores in each.scores.values() if scores]
    lines += [f"score: {score.signature}" for score in firsts]
    for result in found:
        if result.status != "done":
            lines.append(f"{result.status}: {result.recipe}, seed {result.seed}: {result.why}")
    return list(dict.fromkeys(lines))


def write_markdown(table: Table, results: ResultsFolder) -> Path:
    """Writes table.md into the folder of the results."""
    text = markdown(*show_experiment(table, results))
    listed = "\n".join(f"- {line}" for line in notes(results))
    head = (
        f"# {table.title}\n\nWritten by `lightconv table {table.name} --write`. Mean and deviation "
        "(of a sample) over seeds. Columns of the paper are of full-size models on its own data: "
        "their order may be compared with ours, not their values.\n"
    )
    path = results.folder / MARKDOWN_FILE
    path.write_text(f"{head}\n{text}\n\n{listed}\n", encoding="utf-8")
    return path


def draw(table: Table, results: ResultsFolder) -> Path | None:
    """Writes table.png: a panel for each column of ours, dots for seeds. None without results."""
    found = results.all()
    columns = own_columns(table, results.experiment, found)
    columns = [c for c in columns if any(r.figure(c) is not None for r in _all(found))]
    if not columns:
        return None
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError(
            "a picture needs the package matplotlib. Install it with pip install 'lightconv[plot]'"
        ) from None
    rows = rows_of(table, results.experiment)
    size = (4.2 + 3.2 * len(columns), 1.2 + 0.36 * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(columns), squeeze=False, sharey=True)[0]
    for axis, column in zip(axes, columns, strict=True):
        _draw_column(axis, column, rows, found)
    axes[0].set_yticks(range(len(rows)), [row.text for row in rows.values()], fontsize="small")
    axes[0].set_ylim(len(rows) - 0.5, -0.5)  # the first row above
    figure.suptitle(f"{describe(results.experiment, found)} (ours)", fontsize="medium")
    path = results.folder / PICTURE_FILE
    figure.savefig(path, dpi=150)
    return path


def _draw_column(axis: "Axes", column: Column, recipes: Iterable[str], found: Found) -> None:
    for place, recipe in enumerate(recipes):
        mine = found.get(recipe, [])
        values = [v for result in mine if (v := result.figure(column)) is not None]
        if not values:
            gray: dict[str, Any] = {"color": "#666666", "fontsize": "small", "va": "center"}
            text, within = show_results(mine, column), axis.get_yaxis_transform()
            axis.text(0.02, place, text, transform=within, **gray)
            continue
        axis.plot(values, [place] * len(values), "o", color=BLUE, alpha=0.35, markersize=4)
        bar: dict[str, Any] = {"fmt": "|", "color": BLUE, "markersize": 12, "capsize": 3}
        deviation = stdev(values) if len(values) > 1 else 0.0
        axis.errorbar(fmean(values), place, xerr=deviation, **bar)
    axis.set_title(f"{column.name} (ours)", fontsize="medium")
    axis.grid(axis="x", alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def _all(found: Found) -> list[Result]:
    return [result for each in found.values() for result in each]


def _measured(results: Sequence[Result]) -> list[Measurement]:
    return [result.measured for result in results if result.measured is not None]


def _trained(results: Sequence[Result]) -> list[Training]:
    return [m.training for m in _measured(results) if m.training and m.scores]


def _minutes(results: Sequence[Result]) -> str:
    """Minutes of a whole training, validation and checkpoints included."""
    shown = show_mean([sum(each.seconds.values()) / 60 for each in _trained(results)], 1)
    return f"{shown} min" if shown else NONE


def _rate(results: Sequence[Result]) -> str:
    """Target tokens per second of updates."""
    spent = [(t.tokens, max(t.seconds.get("updates", 0.0), 1e-9)) for t in _trained(results)]
    return show_mean([tokens / seconds for tokens, seconds in spent], 0) or NONE
