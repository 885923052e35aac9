"""Experiments: the jobs of a table, run one after the other in processes of their own.

A training that diverges is a result; one that fails is tried again by the next run. A result is
written as soon as it is measured, so that a stopped or killed run resumes from there.
"""

import json
import math
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import lightconv
from lightconv.config import read
from lightconv.console import Display, tell
from lightconv.data.prepared import Prepared, is_prepared
from lightconv.decode.speed import Speeds
from lightconv.device import count_cores, processor_name
from lightconv.files import lock
from lightconv.paper.jobs import DATA, Job, TableOptions, TablePlan
from lightconv.paper.results import (
    Experiment,
    Measurement,
    Result,
    ResultsFolder,
    SplitScore,
    Status,
    TableReport,
    Training,
)
from lightconv.paper.tables import Table
from lightconv.processes import EXIT_DIVERGED, EXIT_FAILURE, EXIT_INPUT, EXIT_INTERRUPT, PARENT
from lightconv.recipe import count_parameters
from lightconv.train.launch import Stop

if TYPE_CHECKING:
    import torch

    from lightconv.evaluate.metrics import Score

# Module that is started for training and measuring.
WORKER = "lightconv"
PAUSE = 0.2
# Seconds in which the processes of a killed run save and end by themselves.
PATIENCE = 45.0
LOCK_FILE = ".lock"


def prepare_corpus(options: TableOptions) -> int | None:
    """Exit code of `lightconv prepare` for the corpus of twins; None if it is prepared."""
    folder = options.twin_data()
    if options.corpus is None or is_prepared(folder):
        return None
    words = ["-m", "lightconv", "prepare", options.corpus, "--out", str(folder)]
    parent = {**os.environ, PARENT: str(os.getpid())}
    return subprocess.run([sys.executable, *words], env=parent, check=False).returncode


def find_series(table: Table, options: TableOptions) -> Iterator["Series"]:
    """The jobs of a table by corpus; at full size only where the data is prepared."""
    if options.scale == "cpu":
        yield Series(table, options, Prepared.open(options.twin_data()))
        return
    root = options.data or DATA
    corpora = dict.fromkeys(job.corpus for job in TablePlan(table, options).jobs)
    found: dict[str, Prepared] = {}
    for corpus in corpora:
        for folder in (root, root / corpus):
            if is_prepared(folder) and (data := Prepared.open(folder)).task.corpus == corpus:
                found[corpus] = data
    for corpus in (name for name in corpora if name not in found):
        text = f"{root / corpus} has no prepared data of {corpus}"
        remedy = f"`lightconv prepare {corpus} --from PATH --out {root / corpus}` makes it"
        if not found:
            raise ValueError(f"--data: {text}, expected it for --run. {remedy}")
        tell(f"note: {text}; its rows are not run. {remedy}")
    for data in found.values():
        yield Series(table, options, data)


class Series(TablePlan):
    """Jobs of a table on one prepared corpus; ValueError if other results are in their place."""

    def __init__(self, table: Table, options: TableOptions, data: Prepared) -> None:
        super().__init__(table, options, data)
        self.folder, corpus = data.folder, data.task.corpus
        if not self.small:
            self.jobs = [job for job in self.jobs if job.corpus == corpus]
        experiment = Experiment(
            table=table.name,
            name=self.runs.name if self.small else f"{options.name or 'paper'}-{corpus}",
            scale=options.scale,
            corpus=corpus,
            data={split: each.digest for split, each in data.contents.splits.items()},
            settings=tuple(self.settings),
            width=options.width,
            limit=options.limit,
        )
        self.results = ResultsFolder.create(options.results, experiment)
        first = [s for s in self.results.experiment.settings if s not in self.settings]
        self.jobs = [replace(job, settings=(*first, *job.settings)) for job in self.jobs]

    def run(self) -> int:
        """Runs the jobs that have no result yet; returns the exit code."""
        code = 0
        with ExitStack() as stack:
            self._stop = stack.enter_context(Stop(self.options.max_seconds))
            self._display = stack.enter_context(Display())
            self._lock = _wait_for_lock(stack, self.runs, self._display)
            for place, job in enumerate(self.jobs, 1):
                old = self.results.find(job.recipe, job.seed)
                if old is not None and old.status != "failed":
                    continue
                where = f"{self.table.name} {place} of {len(self.jobs)}"
                what = f"{where}: {job.recipe}, seed {job.seed}"
                result = None if self._stop.code else self._run(job, what)
                if result is None:
                    return self._stop.code
                self.results.save(result)
                TableReport(self.results).write()
                if result.status != "done":
                    self._display.note(f"{what}: {result.status}: {result.why}")
                if result.status == "failed":
                    code = EXIT_FAILURE
            return code or (self._measure_speed() if self.table.speed else 0)

    def _run(self, job: Job, what: str) -> Result | None:
        """The result of a job; None if it was stopped."""
        words = [*job.train(self.folder), "--device", self.options.device]
        if self.options.processes is not None:
            words += ["--processes", str(self.options.processes)]
        code = self._start(job, words, what)
        if code == 0 and job.tune:
            code = self._start(job, job.choose(self.folder), what, "tuning")
        if code == EXIT_INPUT:
            raise ValueError(f"{job.recipe}: {job.last_line().removeprefix('error: ')}")
        status: Status = "diverged" if code == EXIT_DIVERGED else "done"
        why = job.last_line() if status == "diverged" else ""
        path = job.run.with_name(f"{job.run.name}.measured.json")
        path.unlink(missing_ok=True)
        if code in (0, EXIT_DIVERGED):
            code = self._start(job, self._measure(job, path, status), what, "measuring")
        if code is None:
            return None
        measured = None
        if code == 0:
            measured = read(path, Measurement)
            path.unlink()
        else:
            status, why = "failed", f"exit code {code}: {job.last_line()}"
        return Result(
            row=job.row,
            recipe=job.recipe,
            seed=job.seed,
            status=status,
            why=why,
            command=self.options.command(self.table),
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            commit=find_commit(),
            measured=measured,
        )

    def _measure(self, job: Job, out: Path, status: Status) -> list[str]:
        asked = {
            **{"path": str(job.run), "data": str(self.folder), "splits": self.splits},
            **{"limit": self.options.limit, "ended": status != "diverged"},
            **{"device": self.options.device, "out": str(out)},
        }
        return ["measure", json.dumps(asked)]

    def _measure_speed(self) -> int:
        """Measures the speed of all rows together, if one has none; returns the exit code."""
        rows: dict[str, tuple[Result, Measurement]] = {}
        for result in (each for seeds in self.results.all().values() for each in seeds):
            if result.status == "done" and result.measured and self._run_folder(result).exists():
                rows.setdefault(result.recipe, (result, result.measured))
        if all(measured.speed and measured.speed.rounds for _, measured in rows.values()):
            return 0
        job, path = self.jobs[-1], self.runs / "speed.json"
        words = self.speed([self._run_folder(result) for result, _ in rows.values()], self.folder)
        words += ["--device", self.options.device, "--out", str(path)]
        what = f"{self.table.name}: speed of {len(rows)} rows"
        code = self._start(job, words, what, "measuring")
        if code is None:
            return self._stop.code
        if code:
            self._display.note(f"{what}: exit code {code}: {job.last_line()}")
            return EXIT_FAILURE
        for (result, measured), speed in zip(rows.values(), read(path, Speeds).speeds, strict=True):
            self.results.save(replace(result, measured=replace(measured, speed=speed)))
        path.unlink()
        return 0

    def _run_folder(self, result: Result) -> Path:
        return self.runs / f"{result.recipe}.seed{result.seed}"

    def _start(self, job: Job, words: Sequence[str], what: str, activity: str = "") -> int | None:
        """Runs a worker and returns its exit code; None if this process was asked to stop.

        activity  shown with its seconds; without one, the updates of the run are shown
        """
        with job.output.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", WORKER, *words],
                env={**os.environ, PARENT: str(os.getpid()), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C reaches this process, which passes it on; both hold the lock.
                start_new_session=True,
                pass_fds=[self._lock],
            )
        begin, told, steps = time.monotonic(), False, job.changed().train.max_steps
        try:
            while process.poll() is None:
                if self._stop.code and not told:
                    told = True
                    interrupted = self._stop.code == EXIT_INTERRUPT
                    process.send_signal(signal.SIGINT if interrupted else signal.SIGTERM)
                if activity:
                    seconds = int(time.monotonic() - begin)
                    self._display.show(f"{what}: {activity}, seconds", seconds)
                else:
                    self._display.show(f"{what}: updates", job.step(), steps)
                time.sleep(PAUSE)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        return None if self._stop.code else process.returncode


def _wait_for_lock(stack: ExitStack, folder: Path, display: Display) -> int:
    """Locks a folder of runs; the processes of a killed run hold it until they end."""
    busy = (
        f"--out ({folder}): another `lightconv table` is running there, expected none. Wait for "
        "it, or choose another folder"
    )
    begin, told = time.monotonic(), False
    while True:
        try:
            return stack.enter_context(lock(folder / LOCK_FILE, busy, inherited=True))
        except ValueError:
            if time.monotonic() > begin + PATIENCE:
                raise
        if not told:
            display.note(f"waiting for another process that is at work in {folder}")
        told = True
        time.sleep(PAUSE)


# --- Measurement


def measure(
    path: Path | str,
    data: Path | str,
    splits: Sequence[str],
    *,
    device: "torch.device",
    limit: int | None = None,
    ended: bool = True,
) -> Measurement:
    """Decodes and scores splits with the model of a run.

    ended  False for a training that diverged, which has no model to score
    """
    # The process that starts this one needs none of these, and no torch.
    from lightconv.evaluate.system import Examples, find_metrics, open_model
    from lightconv.models import LanguageModel
    from lightconv.ops.products import choose
    from lightconv.train.distributed import Group
    from lightconv.train.loop import describe_machine
    from lightconv.train.run import Run

    run = Run.open(Path(path))
    last = run.checkpoints().latest()
    used = {"products": choose() if device.type == "cpu" else "default"}
    used["precision"] = (last.values["machine"] if last else {}).get("precision", "")
    machine = {
        **{"processor": processor_name(), "processors": count_cores()},
        **{"python": platform.python_version(), **describe_machine(device, Group(), **used)},
    }
    found = Measurement(
        machine={name: str(value) for name, value in machine.items()},
        parameters=count_parameters(run.model_config),
    )
    if last is not None:
        spent = {name: last.values["progress"][name] for name in ("tokens", "seconds")}
        found = replace(found, training=Training(steps=last.step, **spent))
    if not ended:
        return found
    prepared = Prepared.open(data)
    folder, decode = open_model(Path(path), prepared)
    model = folder.load(device)
    for split in splits:
        examples = Examples(prepared, split, limit)
        if isinstance(model, LanguageModel):
            scores = [examples.evaluate_texts(model)]
        else:
            *_, scores = examples.evaluate(model, decode, find_metrics(prepared))
        found = replace(found, scores={**found.scores, split: tuple(map(keep, scores))})
    return found


def keep(score: "Score") -> SplitScore:
    """A score for a file; an infinite value becomes the largest number."""
    finite = {name: _finite(part) for name, part in score.parts.items()}
    return SplitScore(**{**score.plain(), "value": _finite(score.value), "parts": finite})


def _finite(value: float) -> float:
    return float(value) if math.isfinite(value) else math.copysign(1e308, value)


def find_commit() -> str | None:
    """Commit of the checkout of this package, `+` if its code was changed; None if installed."""
    root = Path(lightconv.__file__).resolve().parents[2]
    if not (root / ".git").exists() or not (root / "src" / "lightconv").is_dir():
        return None

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
        return done.stdout.strip()

    try:
        commit = git("rev-parse", "--short=12", "HEAD")
        # Changes outside the code, such as new results, do not count.
        return commit + ("+" if git("status", "--porcelain", "--", "src") else "")
    except (OSError, subprocess.SubprocessError):
        return None
