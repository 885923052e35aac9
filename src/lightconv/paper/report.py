"""A table for people: the paper's figures and ours side by side, as rows, Markdown and a picture.

A figure of the paper never stands in a column of ours: each column says whose it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lightconv.console import Rows, markdown, print_groups
from lightconv.paper.params import total
from lightconv.paper.recipes import RECIPES
from lightconv.paper.results import (
    Experiment,
    Measured,
    Result,
    Results,
    show_results,
    summarize,
)
from lightconv.paper.small import WIDTH
from lightconv.paper.tables import NONE, TABLES, Column, Row, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKDOWN_FILE = "table.md"
PICTURE_FILE = "table.png"
BLUE = "#0072b2"


class Part(NamedTuple):
    """Some rows under a title; columns named in `right` are set to the right."""

    title: str
    header: Sequence[str]
    rows: Rows
    right: Sequence[str]


def print_part(part: Part, *, as_markdown: bool) -> None:
    """To standard output, with an empty line behind it."""
    if as_markdown:
        print(markdown({part.title: part.rows}, part.header, part.right))
    else:
        print_groups({part.title: part.rows}, part.header, part.right)
    print()


def show_paper(table: Table, full: Mapping[str, Sequence[Result]]) -> Part:
    """The paper's rows: its figures, our exact counts, and what was run at full size here."""
    header = ["row", "recipe", "params (paper)", "params (ours)"]
    for column in table.columns:
        header += [f"{column.name} (paper)", f"{column.name} (ours)"]
    rows = []
    for row in table.rows:
        assert row.recipe is not None
        cells = [row.text, row.recipe, row.params, f"{total(RECIPES[row.recipe].model):,}"]
        for column, figure in zip(table.columns, row.figures, strict=True):
            cells += [figure, show_results(full.get(row.recipe, []), column)]
        rows.append(cells)
    return Part(f"{table.title} ({table.place})", header, rows, header[2:])


def show_cited(table: Table) -> Part:
    """The rows that are the work of others."""
    names = [f"{column.name} (paper)" for column in table.columns]
    header = ["row", "params (paper)", *names]
    rows = [[row.text, row.params, *row.figures] for row in table.cited]
    return Part("Work of others, as the paper cites it", header, rows, header[1:])


def rows_of(table: Table, experiment: Experiment) -> dict[str, Row]:
    """The rows an experiment can run, by their recipes: small twins, or those of its corpus."""
    if experiment.scale == "cpu":
        return table.twin_rows
    named = {row.recipe: row for row in table.rows if row.recipe is not None}
    return {n: row for n, row in named.items() if RECIPES[n].task.corpus == experiment.corpus}


def show_experiment(table: Table, results: Results) -> Part:
    """What was run of an experiment; rows that were not say so."""
    found = results.all()
    columns = own_columns(table, results.experiment, found)
    papers = [f"{column.name} (paper, full size)" for column in table.columns]
    ours = [f"{column.name} (ours)" for column in columns]
    header = ["row", "params (ours)", "seeds", *ours, "training (ours)", "tokens/s (ours)", *papers]
    rows = []
    for recipe, row in rows_of(table, results.experiment).items():
        mine = found.get(recipe, [])
        cells = [row.text, _parameters(mine), str(len(mine))]
        cells += [show_results(mine, column) for column in columns]
        cells += [_training(mine), _tokens(mine), *row.figures]
        rows.append(cells)
    return Part(describe(results.experiment, found), header, rows, header[1:])


def own_columns(
    table: Table, experiment: Experiment, found: Mapping[str, Sequence[Result]]
) -> list[Column]:
    """The table's columns, and sentences per second wherever sentences were decoded.

    Where validation stands in for a split the data does not have, the column's name says so; a
    table that has a column for validation anyway gets no second one.
    """
    absent = _absent(experiment)
    columns = [c for c in table.columns if c.measured != "score" or c.split not in absent]
    if not any(column.measured == "score" for column in columns):
        columns = [
            replace(c, name=f"{c.name}, validation", split="valid") if c.split in absent else c
            for c in table.columns
        ]
    speeds = [m.speed for m in _measured([r for each in found.values() for r in each]) if m.speed]
    if speeds and all(column.measured == "score" for column in columns):
        columns.append(Column(name="Sent/sec", measured="sentences/s", digits=1))
    return columns


def _absent(experiment: Experiment) -> list[str]:
    """Splits that its data does not have; `find_splits` took validation data for them."""
    return [s for s in TABLES[experiment.table].splits if s not in experiment.data]


def describe(experiment: Experiment, found: Mapping[str, Sequence[Result]]) -> str:
    """`Small twins on multi30k, 3,000 updates`."""
    steps = {m.training.steps for each in found.values() for m in _measured(each) if m.training}
    updates = f", {max(steps):,} updates" if steps else ""
    name = f"{experiment.name}" + (
        "" if experiment.name == experiment.corpus else f" ({experiment.corpus})"
    )
    limit = "" if experiment.limit is None else f", the first {experiment.limit:,} lines"
    kind = "Small twins" if experiment.scale == "cpu" else "Full size"
    return f"{kind} on {name}{updates}{limit}"


def notes(results: Results) -> list[str]:
    """What made the figures: commands, dates, commits, machines, signatures, what went wrong."""
    found = [result for each in results.all().values() for result in each]
    measured = _measured(found)
    signatures = [
        each.signature for m in measured for scores in m.scores.values() for each in scores[:1]
    ]
    machines = [", ".join(f"{k} {v}" for k, v in m.machine.items()) for m in measured]
    dates = sorted(result.date for result in found)
    bad = [result for result in found if result.status != "done"]
    width = results.experiment.width
    twins = (
        f"rows have the names of the paper; their twins have width {width or WIDTH} and "
        "about half of its layers (`lightconv show RECIPE`), and are changed by the settings below"
    )
    return [
        *([twins] if results.experiment.scale == "cpu" else []),
        *(
            f"the data has no split {each}: validation is scored in its place"
            for each in _absent(results.experiment)
        ),
        *(f"command: {text}" for text in dict.fromkeys(r.command for r in found)),
        *([f"date: {dates[0]} to {dates[-1]}"] if dates else []),
        *(f"commit: {text}" for text in dict.fromkeys(r.commit for r in found if r.commit)),
        *(f"machine: {text}" for text in dict.fromkeys(machines)),
        *([f"settings: {' '.join(each)}"] if (each := results.experiment.settings) else []),
        *(f"score: {text}" for text in dict.fromkeys(signatures)),
        *(f"{each.status}: {each.recipe}, seed {each.seed}: {each.why}" for each in bad),
    ]


def write_markdown(table: Table, results: Results) -> Path:
    """Writes table.md into the folder of the results."""
    part = show_experiment(table, results)
    text = markdown({part.title: part.rows}, part.header, part.right)
    listed = "\n".join(f"- {line}" for line in notes(results))
    head = (
        f"# {table.title}\n\nWritten by `lightconv table {table.name} --write`. Mean and deviation "
        "(of a sample) over seeds. Columns of the paper are of full-size models on its own data: "
        "their order may be compared with ours, not their values.\n"
    )
    path = results.folder / MARKDOWN_FILE
    path.write_text(f"{head}\n{text}\n\n{listed}\n", encoding="utf-8")
    return path


def draw(table: Table, results: Results) -> Path | None:
    """Writes table.png: a panel for each column of ours, dots for seeds. None without results."""
    found = results.all()
    columns = [c for c in own_columns(table, results.experiment, found) if _values(found, c)]
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
        _draw_column(axis, column, list(rows), found)
    axes[0].set_yticks(range(len(rows)), [row.text for row in rows.values()], fontsize="small")
    axes[0].set_ylim(len(rows) - 0.5, -0.5)  # the first row above
    figure.suptitle(f"{describe(results.experiment, found)} (ours)", fontsize="medium")
    path = results.folder / PICTURE_FILE
    figure.savefig(path, dpi=150)
    return path


def _draw_column(
    axis: "Axes", column: Column, recipes: Sequence[str], found: Mapping[str, Sequence[Result]]
) -> None:
    for place, recipe in enumerate(recipes):
        mine = found.get(recipe, [])
        values = [v for result in mine if (v := result.figure(column)) is not None]
        summary = summarize(values)
        if summary is None:
            axis.text(
                0.02,
                place,
                show_results(mine, column),
                va="center",
                fontsize="small",
                transform=axis.get_yaxis_transform(),
                color="#666666",
            )
            continue
        axis.plot(values, [place] * len(values), "o", color=BLUE, alpha=0.35, markersize=4)
        axis.errorbar(
            summary.mean,
            place,
            xerr=summary.deviation or 0.0,
            fmt="|",
            color=BLUE,
            markersize=12,
            capsize=3,
        )
    axis.set_title(f"{column.name} (ours)", fontsize="medium")
    axis.grid(axis="x", alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def _values(found: Mapping[str, Sequence[Result]], column: Column) -> list[float]:
    every = (result.figure(column) for each in found.values() for result in each)
    return [value for value in every if value is not None]


def _measured(results: Sequence[Result]) -> list[Measured]:
    return [result.measured for result in results if result.measured is not None]


def _parameters(results: Sequence[Result]) -> str:
    return next((f"{m.parameters:,}" for m in _measured(results)), NONE)


def _training(results: Sequence[Result]) -> str:
    """Minutes of a whole training, validation and checkpoints included."""
    times = [m.training.total / 60 for m in _measured(results) if m.training and m.scores]
    summary = summarize(times)
    return NONE if summary is None else f"{summary.show(1)} min"


def _tokens(results: Sequence[Result]) -> str:
    """Target tokens per second of updates."""
    rates = [
        m.training.tokens / max(m.training.seconds.get("updates", 0.0), 1e-9)
        for m in _measured(results)
        if m.training and m.scores
    ]
    summary = summarize(rates)
    return NONE if summary is None else summary.show(0)
