"""Record of a run: log.jsonl, curves for TensorBoard and as a picture, lines for people."""

import errno
import json
import math
import os
import stat
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightconv.console import show_duration, tell
from lightconv.lazy import needed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lightconv.train.trainer import Record

LOG_FILE = "log.jsonl"
BOARD_FOLDER = "tensorboard"
PLOT_FILE = "plot.png"
SUFFIXES = (".png", ".svg", ".pdf")
# Distinct for colour-blind readers.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#999933")
# Updates over which the shown rates are means.
RECENT = 50
# Fields of an entry that are not curves.
_PLAIN = ("kind", "step", "seconds")

Entry = dict[str, Any]
Curves = dict[tuple[str, str, str], list[tuple[float, float]]]  # by run, kind of entry and field
Report = Callable[[str], None]


class Log(ExitStack):
    """Appends to log.jsonl: one JSON object for each logged update and validation, by step.

    Entries that `keep` refuses will be written again: the file is cut after the last kept one. A
    damaged line before that stays in the file, is reported, and counts for nothing.
    """

    def __init__(
        self,
        path: Path,
        keep: Callable[[Entry], bool] = lambda entry: True,
        *,
        report: Report = lambda text: None,
        board: "Board | None" = None,
    ) -> None:
        super().__init__()
        self.path = path
        self._board = board
        if board is not None:
            self.callback(board.close)
        self._file = _open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        self.callback(os.close, self._file)
        with os.fdopen(os.dup(self._file), "rb") as file:
            data = file.read()
        self.entries, size = _parse(path, data, keep, report)
        if size < len(data):
            os.ftruncate(self._file, size)

    def write(self, entry: Mapping[str, Any]) -> None:
        """Appends one line; a number that is not finite becomes null."""
        plain = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in entry.items()
        }
        self.entries.append(plain)
        rest = json.dumps(plain, allow_nan=False).encode() + b"\n"
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None
        if self._board is not None:
            self._board.write(entry)

    def sync(self) -> None:
        os.fsync(self._file)


def read_log(path: str | Path, report: Report = lambda text: None) -> list[Entry]:
    """Entries of a log, which may still be written to.

    report  called with a line about each damaged line but a torn last one
    """
    path = Path(path)
    with os.fdopen(_open(path, os.O_RDONLY), "rb") as file:
        whole = file.read().rpartition(b"\n")
    return _parse(path, whole[0] + whole[1], lambda entry: True, report)[0]


def _open(path: Path, flags: int) -> int:
    # A link is refused, since what it points to would be cut.
    try:
        file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ValueError(f"{path} is a link, expected a regular file. Remove it") from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise ValueError(f"{path} is not a regular file. Remove it")
    return file


def _parse(
    path: Path, data: bytes, keep: Callable[[Entry], bool], report: Report
) -> tuple[list[Entry], int]:
    """The kept entries, and the bytes up to the end of the last of them."""
    *lines, rest = data.split(b"\n")
    entries: list[Entry] = []
    size = place = 0
    for number, line in enumerate(lines, 1):
        place += len(line) + 1
        entry = None
        with suppress(ValueError, RecursionError):
            entry = json.loads(line)
        if not isinstance(entry, dict) or type(entry.get("step")) is not int:
            report(f"{path}: line {number} is damaged and left out")
        elif keep(entry):
            entries.append(entry)
            size = place
    if rest:
        report(f"{path}: the last line is torn and cut off")
    return entries, size


class Board:
    """TensorBoard files: log entries as curves `train/loss`, `valid/nll`, ...

    step  the last step that an older file may show
    """

    def __init__(self, folder: Path, step: int = 0) -> None:
        with needed("--tensorboard", "tensorboardX", "tensorboard"):
            from tensorboardX import SummaryWriter
        self._writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def write(self, entry: Mapping[str, Any]) -> None:
        for name, value in {**entry, **entry.get("metric", {})}.items():
            if name not in _PLAIN and isinstance(value, int | float):
                self._writer.add_scalar(f"{entry['kind']}/{name}", value, entry["step"])

    def close(self) -> None:
        self._writer.close()


class Pace:
    """Tokens per second and remaining time, from the last updates.

    The first update, which includes all of a start, counts for neither.
    """

    def __init__(self, max_steps: int) -> None:
        self.max_steps = max_steps
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT)

    def add(self, tokens: int) -> None:
        self._recent.append((time.monotonic(), tokens))

    def describe(self, record: "Record") -> str:
        text = (
            f"step {record.step:,}/{self.max_steps:,}  loss {record.loss:.3f}  "
            f"ppl {perplexity(record.nll):.4g}  lr {record.lr:.2e}"
        )
        if (updates := len(self._recent) - 1) < 1:
            return text
        seconds = max(self._recent[-1][0] - self._recent[0][0], 1e-9)
        tokens = sum(count for _, count in self._recent) - self._recent[0][1]
        left = (self.max_steps - record.step) * seconds / updates
        return f"{text}  {tokens / seconds:,.0f} tokens/s  {show_duration(left)} left"


def describe_validation(entry: Mapping[str, Any], *, improved: bool) -> str:
    parts = [f"step {entry['step']:,}  validation", f"loss {entry['loss']:.3f}"]
    parts.append(f"ppl {entry['perplexity']:.4g}")
    parts += [f"{name} {value:.4g}" for name, value in entry.get("metric", {}).items()]
    return "  ".join(parts) + ("  (best so far)" if improved else "")


def perplexity(nll: float) -> float:
    """exp(nll), infinite beyond the range of floats."""
    return math.inf if nll > 700.0 else math.exp(nll)


# Marks of training and validation in a plot of text, its columns and lines.
SIGNS = (".o", ",x", "'+", "`*")
COLUMNS, LINES = 66, 14


def draw(runs: Sequence[Path], out: Path) -> None:
    """Writes a picture of all runs; the suffix of its name is its format."""
    if out.suffix.lower() not in SUFFIXES:
        raise ValueError(f"--out {out}, expected a name that ends in {', '.join(SUFFIXES)}")
    names, metrics, curves = _read_curves(runs)
    figure = open_figure(5.2 * (2 + len(metrics)), 4.4)
    axes = figure.subplots(1, 2 + len(metrics), squeeze=False)[0]
    titles = ["loss per token", *(f"{metric} (validation)" for metric in metrics), "learning rate"]
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, fontsize="medium")
        axis.set_xlabel("step")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.xaxis.set_major_formatter("{x:,.0f}")
    for place, name in enumerate(names):
        colour = COLOURS[place % len(COLOURS)]
        dots = {"color": colour, "linewidth": 1.4, "marker": "o", "markersize": 3}
        thin = {"color": colour, "linewidth": 1.0, "alpha": 0.5}
        # Runs often have the same rate: a later curve leaves a rim of the earlier ones.
        rim = {"color": colour, "linewidth": 1.4 + 2.0 * (len(names) - place - 1)}
        for axis, kind, field, style in [
            (axes[0], "train", "loss", thin | {"label": f"{name}, training"}),
            (axes[0], "valid", "loss", dots | {"label": f"{name}, validation"}),
            *((axes[n], "valid", metric, dots) for n, metric in enumerate(metrics, 1)),
            (axes[-1], "train", "lr", rim),
        ]:
            if points := curves.get((name, kind, field)):
                axis.plot(*zip(*points, strict=True), **style)
    axes[0].legend(frameon=False, fontsize="small")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)


def draw_text(runs: Sequence[Path]) -> str:
    """Loss, and metrics of validation, over updates as text of 72 columns."""
    names, metrics, found = _read_curves(runs)
    parts = []
    for field in ("loss", *metrics):
        curves = {}
        for name, (thin, thick) in zip(names, SIGNS * len(names), strict=False):
            if field == "loss":
                curves[f"{thin} {name}, training"] = found[name, "train", field]
            curves[f"{thick} {name}, validation"] = found[name, "valid", field]
        parts.append(f"{field}\n{_plot_text(curves)}")
    return "\n\n".join(parts)


def _plot_text(curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Points of curves, whose names begin with their marks, in a frame with its bounds."""
    points = [point for curve in curves.values() for point in curve]
    if not points:
        return "nothing yet"
    (left, right), (low, high) = ((min(each), max(each)) for each in zip(*points, strict=True))
    rows = [[" "] * COLUMNS for _ in range(LINES)]
    for name, curve in curves.items():
        for x, y in curve:
            column = round((x - left) / max(right - left, 1e-12) * (COLUMNS - 1))
            row = round((high - y) / max(high - low, 1e-12) * (LINES - 1))
            rows[row][column] = name[0]
    bounds = [f"{high:.4g}", *[""] * (LINES - 2), f"{low:.4g}"]
    lines = [f"{b:>9} |{''.join(row).rstrip()}" for b, row in zip(bounds, rows, strict=True)]
    start, end = f"{left:,.0f}", f"{right:,.0f} updates"
    below = [f"{start}{end:>{COLUMNS - len(start)}}", *(name for name in curves if curves[name])]
    return "\n".join([*lines, f"{'':10}+{'-' * COLUMNS}", *(f"{'':11}{line}" for line in below)])


def open_figure(width: float, height: float) -> "Figure":
    """An empty figure of this size in inches; ValueError without matplotlib."""
    with needed("a plot", "matplotlib", "plot"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _read_curves(runs: Sequence[Path]) -> tuple[list[str], list[str], Curves]:
    """Names of the runs and of their metrics, and the points of all curves."""
    short = [run.absolute().name for run in runs]
    names = [s if short.count(s) == 1 else str(run) for s, run in zip(short, runs, strict=True)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{twice[0]} is given twice, expected each run once")
    metrics: set[str] = set()
    curves: Curves = defaultdict(list)
    for name, run in zip(names, runs, strict=True):
        path = run / LOG_FILE
        if not path.exists():
            raise ValueError(f"{run} is not a run folder: it has no {LOG_FILE}")
        if not (log := read_log(path, tell)):
            raise ValueError(f"{path} has no entries yet. Wait for the first one")
        for entry in log:
            own = entry["metric"] if isinstance(entry.get("metric"), dict) else {}
            metrics |= own.keys()
            for field, value in {**entry, **own}.items():
                if isinstance(value, int | float):
                    curves[name, str(entry.get("kind")), field].append((entry["step"], value))
    return names, sorted(metrics), curves
