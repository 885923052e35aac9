"""Results of a table: one JSON file for each row and seed, in RESULTS/TABLE/EXPERIMENT.

Reports have the paper's figures beside ours, as rows, Markdown and a picture; each column says
whose figures it has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from lightconv.config import ConfigError, differences, from_dict, read_plain, to_json
from lightconv.console import Rows, markdown
from lightconv.decode.speed import Speed
from lightconv.files import replace_file
from lightconv.paper.recipes import RECIPES, describe_row
from lightconv.paper.tables import NONE, TABLES, Column, Table
from lightconv.recipe import count_parameters
from lightconv.train.log import open_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

T = TypeVar("T")

EXPERIMENT_FILE = "experiment.json"
VOCABULARY = tuple(
    f"model.{n}=" for n in ("share_embeddings", "vocab", "source_vocab", "target_vocab")
)
Scale = Literal["paper", "cpu"]
Status = Literal["done", "diverged", "failed"]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Values that all results of a folder share, so that their figures are comparable.

    data      digests of the splits
    settings  changes of every recipe
    width     of the models, if it is not the recipes' own
    limit     lines of a split that are decoded; None is all
    """

    table: str
    name: str
    scale: Scale
    corpus: str
    data: dict[str, str]
    settings: tuple[str, ...] = ()
    width: int | None = None
    limit: int | None = None


@dataclass(frozen=True, kw_only=True)
class SplitScore:
    """A score of one split, as a file keeps it."""

    metric: str
    value: float
    parts: dict[str, float]
    signature: str


@dataclass(frozen=True, kw_only=True)
class Training:
    """Length of a training; seconds by activity, such as `updates`."""

    steps: int
    tokens: int
    seconds: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Size, training and scores of a run.

    training  None without a checkpoint
    scores    by split, the metric of the task first; empty if the training diverged
    """

    machine: dict[str, str]
    parameters: int
    training: Training | None = None
    scores: dict[str, tuple[SplitScore, ...]] = field(default_factory=dict)
    speed: Speed | None = None


@dataclass(frozen=True, kw_only=True)
class Result:
    """One row with one seed.

    why       last line of a training that diverged, or of a command that failed
    command   makes this result again, and all others of its experiment
    measured  None if a command failed
    """

    row: str
    recipe: str
    seed: int
    status: Status
    why: str = ""
    command: str
    date: str
    commit: str | None = None
    measured: Measurement | None = None

    def figure(self, column: Column) -> float | None:
        """The value of a column; None if this result has none."""
        found = self.measured
        if found and column.measured == "score":
            for score in found.scores.get(column.split, ())[:1]:
                return score.value if column.part is None else score.parts.get(column.part)
        elif found and found.speed:
            return found.speed.rates(column.measured)[0]
        return None


def show_mean(values: Sequence[float], digits: int) -> str:
    """`26.90 ± 0.20`: mean and deviation (of a sample) over seeds; empty without values."""
    if len(values) < 2:
        return "".join(f"{value:,.{digits}f}" for value in values)
    return f"{fmean(values):,.{digits}f} ± {stdev(values):.{digits}f}"


@dataclass(frozen=True)
class ResultsFolder:
    """The folder of one experiment."""

    folder: Path
    experiment: Experiment

    @classmethod
    def create(cls, root: Path, experiment: Experiment) -> "ResultsFolder":
        """The folder of an experiment; ValueError if it exists with another one."""
        folder = root / experiment.table / experiment.name
        path = folder / EXPERIMENT_FILE
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(path, to_json(experiment).encode())
            return cls(folder, experiment)
        old = _read(path, Experiment)
        # In 0.1.0 these came from the data, unless somebody had set them.
        same = [s for s in old.settings if s in experiment.settings or not s.startswith(VOCABULARY)]
        if changed := differences(replace(old, settings=tuple(same)), experiment):
            raise ValueError(
                f"{folder} holds results that were made otherwise: {'; '.join(changed)}. Give "
                "the same options, or another --name"
            )
        return cls(folder, old)

    @classmethod
    def open(cls, folder: Path) -> "ResultsFolder":
        return cls(folder, _read(folder / EXPERIMENT_FILE, Experiment))

    def path(self, recipe: str, seed: int) -> Path:
        return self.folder / f"{recipe}.seed{seed}.json"

    def save(self, result: Result) -> None:
        replace_file(self.path(result.recipe, result.seed), to_json(result).encode())

    def find(self, recipe: str, seed: int) -> Result | None:
        path = self.path(recipe, seed)
        return _read(path, Result) if path.exists() else None

    def all(self) -> dict[str, list[Result]]:
        """All results by recipe, in order of seeds."""
        found: dict[str, list[Result]] = {}
        for path in sorted(self.folder.glob("*.seed*.json")):
            result = _read(path, Result)
            found.setdefault(result.recipe, []).append(result)
        return {name: sorted(each, key=lambda r: r.seed) for name, each in found.items()}


def find_results(root: Path, table: str) -> list[ResultsFolder]:
    """All experiments of a table, by name."""
    paths = sorted((root / table).glob(f"*/{EXPERIMENT_FILE}"))
    return [ResultsFolder.open(path.parent) for path in paths]


def figures(results: Sequence[Result], column: Column) -> list[float]:
    return [value for each in results if (value := each.figure(column)) is not None]


def choose_seed(results: Sequence[Result], column: Column) -> Result | None:
    """The result with the best validation score; None if one that has a figure has no such."""
    scored = [each for each in results if each.figure(column) is not None]
    values = figures(scored, Column(name="", split="valid"))
    return scored[values.index(max(values))] if values and len(values) == len(scored) else None


def show_results(results: Sequence[Result], column: Column) -> str:
    """The cell of a row over its seeds: `26.90 ± 0.20, 1 diverged`.

    A column of the best seed has its figure first, `29.70 (29.40 ± 0.30)`; one of speed, measured
    in rounds, the median, the lowest and the highest, `63.3 (62.9 to 63.5)`.
    """
    if not results:
        return "not run"
    speeds = [each.measured.speed for each in results if each.measured and each.measured.speed]
    if column.measured != "score" and (timed := [speed for speed in speeds if speed.rounds]):
        return timed[0].show(column.measured, column.digits)
    found = figures(results, column)
    shown = [show_mean(found, column.digits)] if found else []
    if column.best and len(found) > 1 and (best := choose_seed(results, column)):
        shown = [f"{best.figure(column):,.{column.digits}f} ({shown[0]})"]
    if column.measured == "score":  # the column of the score explains a missing speed
        counts = {s: sum(each.status == s for each in results) for s in ("diverged", "failed")}
        shown += [s if n == len(results) else f"{n} {s}" for s, n in counts.items() if n]
    return ", ".join(shown) or NONE


def _read(path: Path, cls: type[T]) -> T:
    try:
        return from_dict(cls, read_plain(path))
    except ConfigError as error:
        raise ValueError(
            f"result ({path}): {error}, expected what `lightconv table` wrote. Remove it, and run "
            "the row again"
        ) from None


BLUE = "#0072b2"
BEST = "of several seeds: the test score of the best on validation (mean and deviation of all)"
NOT_BEST = "validation was not scored: of several seeds the mean, not the best on validation"
# Arguments of `print_groups` and `markdown`: rows by title, header, columns set to the right.
Section = tuple[dict[str, Rows], Sequence[str], Sequence[str]]


def show_paper(table: Table, full: Mapping[str, Sequence[Result]]) -> Section:
    """The paper's rows: its figures, our exact counts, and results at full size by recipe."""
    header = ["row", "recipe", "params (paper)", "params (ours)"]
    for column in table.columns:
        header += [f"{column.name} (paper)", f"{column.name} (ours)"]
    rows = []
    for recipe, row in table.rows_at("paper").items():
        cells = [row.text, recipe, row.params, f"{count_parameters(RECIPES[recipe].model):,}"]
        for column, figure in zip(table.columns, row.figures, strict=True):
            cells += [figure, show_results(full.get(recipe, []), column)]
        rows.append(cells)
    return {f"{table.title} ({table.place})": rows}, header, header[2:]


def show_cited(table: Table) -> Section:
    """Rows that are the work of others."""
    header = ["row", "params (paper)", *(f"{column.name} (paper)" for column in table.columns)]
    rows = [row.split(" | ") for row in table.cited]
    return {"Work of others, as the paper cites it": rows}, header, header[1:]


class TableReport:
    """The results of one experiment."""

    def __init__(self, results: ResultsFolder) -> None:
        self.folder, self.experiment = results.folder, results.experiment
        self.table = TABLES[self.experiment.table]
        self.found = results.all()
        self.every = [result for each in self.found.values() for result in each]
        self.measured = [result.measured for result in self.every if result.measured is not None]
        # Splits that the data does not have; validation was scored in their place.
        self.absent = [s for s in self.table.splits if s not in self.experiment.data]
        small, corpus = self.experiment.scale == "cpu", self.experiment.corpus
        rows = self.table.rows_at(self.experiment.scale)
        self.rows = {n: r for n, r in rows.items() if small or RECIPES[n].task.corpus == corpus}
        width, settings = self.experiment.width, self.experiment.settings
        self.names = {recipe: describe_row(recipe, width, settings) for recipe in self.rows}

    @property
    def columns(self) -> list[Column]:
        """The table's columns, and sentences per second if sentences were decoded.

        A column's name says so if validation replaces a split that the data does not have; a table
        with a column for validation gets no second one.
        """
        absent, columns = self.absent, list(self.table.columns)
        columns = [c for c in columns if c.measured != "score" or c.split not in absent]
        if not any(column.measured == "score" for column in columns):
            columns = [
                replace(c, name=f"{c.name}, validation", split="valid", best=False)
                if c.split in absent
                else c
                for c in self.table.columns
            ]
        decoded = any(each.speed for each in self.measured)
        if decoded and all(column.measured == "score" for column in columns):
            columns.append(Column(name="Sent/sec", measured="sentences/s", digits=1))
        return columns

    @property
    def title(self) -> str:
        """`Small twins on multi30k, 3,000 updates`."""
        experiment = self.experiment
        steps = [each.training.steps for each in self.measured if each.training]
        updates = f", {max(steps):,} updates" if steps else ""
        name = experiment.name
        name += "" if name == experiment.corpus else f" ({experiment.corpus})"
        limit = "" if experiment.limit is None else f", the first {experiment.limit:,} lines"
        kind = "Small twins" if experiment.scale == "cpu" else "Full size"
        return f"{kind} on {name}{updates}{limit}"

    def show(self) -> Section:
        """Rows of the experiment; those without results say so."""
        ours = [f"{column.name} (ours)" for column in self.columns]
        papers = [f"{column.name} (paper, full size)" for column in self.table.columns]
        spent = ["training (ours)", "tokens/s (ours)"]
        header = ["row", "params (ours)", "seeds", *ours, *spent, "row (paper)", *papers]
        rows = []
        for recipe, row in self.rows.items():
            mine = self.found.get(recipe, [])
            measured = [result.measured for result in mine if result.measured is not None]
            trained = [each.training for each in measured if each.training and each.scores]
            minutes = show_mean([sum(each.seconds.values()) / 60 for each in trained], 1)
            rates = [t.tokens / max(t.seconds.get("updates", 0.0), 1e-9) for t in trained]
            count = f"{measured[0].parameters:,}" if measured else NONE
            cells = [self.names[recipe], count, str(len(mine))]
            cells += [show_results(mine, column) for column in self.columns]
            cells += [f"{minutes} min" if minutes else NONE, show_mean(rates, 0) or NONE]
            rows.append([*cells, row.recipe, *row.figures])
        return {self.title: rows}, header, [name for name in header[1:] if name != "row (paper)"]

    def notes(self) -> list[str]:
        """Origin of the figures: commands, dates, commits, machines, signatures, failures."""
        dates, settings = sorted(result.date for result in self.every), self.experiment.settings
        lines = []
        if self.experiment.scale == "cpu":
            lines.append("rows have the mixers and sizes of the models that were trained here")
        if any(column.best for column in self.columns):
            scored = [each.scores for each in self.measured if each.scores]
            lines.append(BEST if all("valid" in each for each in scored) else NOT_BEST)
        lines += [each.speed.origin() for each in self.measured if each.speed]
        no_split = "the data has no split {}: validation is scored in its place"
        lines += map(no_split.format, self.absent)
        lines += [f"command: {result.command}" for result in self.every]
        lines += [f"date: {dates[0]} to {dates[-1]}"] if dates else []
        lines += [f"commit: {result.commit}" for result in self.every if result.commit]
        machines = [[f"{k} {v}" for k, v in each.machine.items()] for each in self.measured]
        lines += [f"machine: {', '.join(parts)}" for parts in machines]
        lines += [f"settings: {' '.join(settings)}"] if settings else []
        scores = [each[0] for m in self.measured for each in m.scores.values() if each]
        lines += [f"score: {score.signature}" for score in scores]
        bad = [result for result in self.every if result.status != "done"]
        lines += [f"{each.status}: {each.recipe}, seed {each.seed}: {each.why}" for each in bad]
        return list(dict.fromkeys(lines))

    def write(self) -> Path:
        """Writes table.md into the folder of the results."""
        head = (
            f"# {self.table.title}\n\nWritten by `lightconv table {self.table.name} --write`. Mean "
            "and deviation (of a sample) over seeds. Columns of the paper are of full-size models "
            "on its own data: their order may be compared with ours, not their values.\n"
        )
        listed = "\n".join(f"- {line}" for line in self.notes())
        path = self.folder / "table.md"
        path.write_text(f"{head}\n{markdown(*self.show())}\n\n{listed}\n", encoding="utf-8")
        return path

    def draw(self) -> Path | None:
        """Writes table.png: a panel for each column, dots for seeds. None without results."""
        columns = [column for column in self.columns if figures(self.every, column)]
        if not columns:
            return None
        figure = open_figure(4.2 + 3.2 * len(columns), 1.2 + 0.36 * len(self.rows))
        axes = figure.subplots(1, len(columns), squeeze=False, sharey=True)[0]
        for axis, column in zip(axes, columns, strict=True):
            self._draw_column(axis, column)
        names = [name.replace(", ", ",\n", 1) for name in self.names.values()]
        axes[0].set_yticks(range(len(names)), names, fontsize="small")
        axes[0].set_ylim(len(names) - 0.5, -0.5)  # the first row above
        figure.suptitle(f"{self.title} (ours)", fontsize="medium")
        path = self.folder / "table.png"
        figure.savefig(path, dpi=150)
        return path

    def _draw_column(self, axis: "Axes", column: Column) -> None:
        gray: dict[str, Any] = {"color": "#666666", "fontsize": "small", "va": "center"}
        bar: dict[str, Any] = {"fmt": "|", "color": BLUE, "markersize": 12, "capsize": 3}
        for place, recipe in enumerate(self.rows):
            mine = self.found.get(recipe, [])
            if values := figures(mine, column):
                axis.plot(values, [place] * len(values), "o", color=BLUE, alpha=0.35, markersize=4)
                deviation = stdev(values) if len(values) > 1 else 0.0
                axis.errorbar(fmean(values), place, xerr=deviation, **bar)
            else:
                text, within = show_results(mine, column), axis.get_yaxis_transform()
                axis.text(0.02, place, text, transform=within, **gray)
        axis.set_title(f"{column.name} (ours)", fontsize="medium")
        axis.grid(axis="x", alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
