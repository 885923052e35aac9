"""Results of a table: one JSON file for each row and seed, in RESULTS/TABLE/EXPERIMENT."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal, TypeVar

from lightconv.config import ConfigError, differences, from_dict, read_plain, to_dict
from lightconv.files import replace_file
from lightconv.paper.rows import NONE
from lightconv.paper.tables import Column

T = TypeVar("T")

EXPERIMENT_FILE = "experiment.json"
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
class Speed:
    """Decoding speed on a split, with at most `sentences` in a batch."""

    split: str
    lines: int
    seconds: float
    tokens: int
    engine: str
    sentences: int


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
            lines = column.measured == "sentences/s"
            count = found.speed.lines if lines else found.speed.tokens
            return count / max(found.speed.seconds, 1e-9)
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
            _write(path, experiment)
        elif changed := differences(_read(path, Experiment), experiment):
            raise ValueError(
                f"{folder} holds results that were made otherwise: {'; '.join(changed)}. Give "
                "the same options, or another --name"
            )
        return cls(folder, experiment)

    @classmethod
    def open(cls, folder: Path) -> "ResultsFolder":
        return cls(folder, _read(folder / EXPERIMENT_FILE, Experiment))

    def path(self, recipe: str, seed: int) -> Path:
        return self.folder / f"{recipe}.seed{seed}.json"

    def save(self, result: Result) -> None:
        _write(self.path(result.recipe, result.seed), result)

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


def show_results(results: Sequence[Result], column: Column) -> str:
    """The cell of a row over its seeds: `26.90 ± 0.20, 1 diverged`."""
    if not results:
        return "not run"
    found = [value for each in results if (value := each.figure(column)) is not None]
    shown = [show_mean(found, column.digits)] if found else []
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


def _write(path: Path, value: object) -> None:
    text = json.dumps(to_dict(value), indent=2, ensure_ascii=False, allow_nan=False)
    replace_file(path, f"{text}\n".encode())
