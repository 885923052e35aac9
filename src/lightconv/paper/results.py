"""What was really run: one JSON file for each row and seed, in RESULTS/TABLE/EXPERIMENT."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal, NamedTuple, TypeVar

from lightconv.config import ConfigError, differences, from_dict, read_plain, to_dict
from lightconv.files import sync
from lightconv.paper.tables import NONE, TABLES, Column

EXPERIMENT_FILE = "experiment.json"
Scale = Literal["paper", "cpu"]
Status = Literal["done", "diverged", "failed"]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What all results of a folder share, so that their figures may stand in one table.

    data      digests of the splits
    settings  laid over every recipe
    width     of the models, if it is not the recipes' own
    limit     how many lines of a split are decoded; None is all
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
class Scored:
    """A score with its signature."""

    metric: str
    value: float
    parts: dict[str, float]
    signature: str


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How fast a split was decoded."""

    split: str
    lines: int
    seconds: float
    tokens: int
    engine: str
    # At most so many sentences in a batch.
    sentences: int


@dataclass(frozen=True, kw_only=True)
class Training:
    """What a training took: seconds by what was done, of which `updates` is the most."""

    steps: int
    tokens: int
    seconds: dict[str, float]

    @property
    def total(self) -> float:
        """All seconds."""
        return sum(self.seconds.values())


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a run is worth.

    training  as far as there was one
    scores    by split, the measure of the task first; none if the training diverged
    """

    machine: dict[str, str]
    parameters: int
    training: Training | None = None
    scores: dict[str, tuple[Scored, ...]] = field(default_factory=dict)
    speed: Speed | None = None


@dataclass(frozen=True, kw_only=True)
class Result:
    """One row with one seed.

    why       what a training said that diverged, or a command that failed
    command   what makes this result again, with all others of its experiment
    measured  absent where a command failed
    """

    row: str
    recipe: str
    seed: int
    status: Status
    why: str = ""
    command: str
    date: str
    commit: str | None = None
    measured: Measured | None = None

    def figure(self, column: Column) -> float | None:
        """What stands in a column; None if this result has nothing for it."""
        found = self.measured
        if found is None:
            return None
        if column.measured != "score":
            if found.speed is None:
                return None
            count = found.speed.lines if column.measured == "sentences/s" else found.speed.tokens
            return count / max(found.speed.seconds, 1e-9)
        scores = found.scores.get(column.split)
        if not scores:
            return None
        return scores[0].value if column.part is None else scores[0].parts.get(column.part)


class Summary(NamedTuple):
    """Mean and deviation (of a sample) over seeds."""

    mean: float
    deviation: float | None

    def show(self, digits: int) -> str:
        """`26.90 ± 0.20`; a single seed has no deviation."""
        if self.deviation is None:
            return f"{self.mean:,.{digits}f}"
        return f"{self.mean:,.{digits}f} ± {self.deviation:.{digits}f}"


def summarize(values: Sequence[float]) -> Summary | None:
    """None of no values."""
    if not values:
        return None
    return Summary(fmean(values), stdev(values) if len(values) > 1 else None)


T = TypeVar("T")


class Results:
    """The folder of one experiment."""

    def __init__(self, folder: Path, experiment: Experiment) -> None:
        self.folder = folder
        self.experiment = experiment

    @classmethod
    def create(cls, root: Path, experiment: Experiment) -> "Results":
        """The folder for it, new or old; ValueError if an old one was made otherwise."""
        folder = root / experiment.table / experiment.name
        path = folder / EXPERIMENT_FILE
        if path.exists():
            changed = differences(_read(path, Experiment), experiment)
            if changed:
                raise ValueError(
                    f"{folder} holds results that were made otherwise: {'; '.join(changed)}. Give "
                    "the same options, or another --name"
                )
        else:
            folder.mkdir(parents=True, exist_ok=True)
            _write(path, experiment)
        return cls(folder, experiment)

    @classmethod
    def open(cls, folder: Path) -> "Results":
        """What somebody left there."""
        return cls(folder, _read(folder / EXPERIMENT_FILE, Experiment))

    def path(self, recipe: str, seed: int) -> Path:
        """The file of one result."""
        return self.folder / f"{recipe}.seed{seed}.json"

    def save(self, result: Result) -> None:
        """Writes a result, whole or not at all."""
        _write(self.path(result.recipe, result.seed), result)

    def find(self, recipe: str, seed: int) -> Result | None:
        """A result that is there."""
        path = self.path(recipe, seed)
        return _read(path, Result) if path.exists() else None

    def all(self) -> dict[str, list[Result]]:
        """All results by recipe, in order of seeds."""
        found: dict[str, list[Result]] = {}
        for path in sorted(self.folder.glob("*.seed*.json")):
            result = _read(path, Result)
            found.setdefault(result.recipe, []).append(result)
        return {name: sorted(each, key=lambda r: r.seed) for name, each in found.items()}


def results_folder(given: Path | None) -> Path:
    """The one that is given, else docs/results of a checkout, else ./results."""
    docs = Path("docs") / "results"
    return given or (docs if docs.is_dir() else Path("results"))


def find_results(root: Path, table: str) -> list[Results]:
    """All experiments of a table, by name."""
    assert table in TABLES
    paths = sorted((root / table).glob(f"*/{EXPERIMENT_FILE}"))
    return [Results.open(path.parent) for path in paths]


def show_results(results: Sequence[Result], column: Column) -> str:
    """What stands in a column for the seeds of one row: `26.90 ± 0.20, 1 diverged`."""
    if not results:
        return "not run"
    found = [value for each in results if (value := each.figure(column)) is not None]
    shown = [summary.show(column.digits)] if (summary := summarize(found)) else []
    if column.measured == "score":  # a speed needs no excuse: the score beside it has it
        for status in ("diverged", "failed"):
            bad = sum(each.status == status for each in results)
            if bad:
                shown.append(status if bad == len(results) else f"{bad} {status}")
    return ", ".join(shown) or NONE


def _read(path: Path, cls: type[T]) -> T:
    try:
        return from_dict(cls, read_plain(path))
    except ConfigError as error:
        raise ValueError(
            f"result ({path}): {error}, expected what `lightconv table` wrote. Remove it, and run "
            "the row again"
        ) from None


def _write(path: Path, value: object) -> None:
    text = json.dumps(to_dict(value), indent=2, ensure_ascii=False, allow_nan=False)
    fresh = path.with_name(f".{path.name}.new")
    with fresh.open("wb") as file:
        file.write(f"{text}\n".encode())
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync(path.parent)
