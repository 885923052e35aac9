"""Experiments: the jobs of a table, run one after the other in processes of their own.

A training that diverges is a result; one that fails is tried again by the next run. A result is
written as soon as it is measured, so that a stopped or killed run resumes from there.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import lightconv
from lightconv.config import read
from lightconv.console import Display, tell
from lightconv.data.prepared import Prepared, is_prepared
from lightconv.files import lock
from lightconv.paper import jobs
from lightconv.paper.jobs import DATA, Job, TableOptions, find_splits, twin_folder
from lightconv.paper.report import write_markdown
from lightconv.paper.results import Experiment, Measurement, Result, ResultsFolder, Status
from lightconv.paper.tables import Table
from lightconv.processes import EXIT_DIVERGED, EXIT_FAILURE, EXIT_INPUT, EXIT_INTERRUPT, PARENT
from lightconv.train.log import LOG_FILE, read_log
from lightconv.train.signals import Stop

# Module that is started for training and measuring.
WORKER = "lightconv"
PAUSE = 0.2
# Seconds in which the processes of a killed run save and end by themselves.
PATIENCE = 45.0
LOCK_FILE = ".lock"


def prepare_corpus(options: TableOptions) -> int:
    """Prepares the corpus of twins if needed; returns the exit code of `lightconv prepare`."""
    folder = twin_folder(options)
    if options.corpus is None or is_prepared(folder):
        return 0
    words = ["-m", "lightconv", "prepare", options.corpus, "--out", str(folder)]
    environment = {**os.environ, PARENT: str(os.getpid())}
    return subprocess.run([sys.executable, *words], env=environment, check=False).returncode


def find_series(table: Table, options: TableOptions) -> Iterator["Series"]:
    """The jobs of a table by corpus; at full size only where the data is prepared."""
    if options.scale == "cpu":
        prepared = Prepared.open(twin_folder(options))
        mine = jobs.twin_jobs(table, options, prepared)
        settings = jobs.twin_settings(table, options, prepared)
        yield Series(table, options, prepared, mine, mine[0].run.parent.name, settings)
        return
    every = jobs.paper_jobs(table, options)
    root = options.data or DATA
    corpora = dict.fromkeys(job.corpus for job in every)
    found: dict[str, Prepared] = {}
    for corpus in corpora:
        for folder in (root / corpus, root):
            if is_prepared(folder) and (data := Prepared.open(folder)).task.corpus == corpus:
                found.setdefault(corpus, data)
    for corpus in (each for each in corpora if each not in found):
        text = f"{root / corpus} has no prepared data of {corpus}"
        remedy = f"`lightconv prepare {corpus} --from PATH --out {root / corpus}` makes it"
        if not found:
            raise ValueError(f"--data: {text}, expected it for --run. {remedy}")
        tell(f"note: {text}; its rows are not run. {remedy}")
    for corpus, prepared in found.items():
        mine = [job for job in every if job.corpus == corpus]
        name = f"{options.name or 'paper'}-{corpus}"
        yield Series(table, options, prepared, mine, name, options.set)


class Series:
    """Jobs of a table on one prepared corpus, and the folder of their results.

    name, settings  of the experiment; ValueError if its folder has results of another one
    """

    def __init__(
        self,
        table: Table,
        options: TableOptions,
        prepared: Prepared,
        jobs: Sequence[Job],
        name: str,
        settings: Sequence[str],
    ) -> None:
        self.table = table
        self.options = options
        self.prepared = prepared
        self.jobs = jobs
        experiment = Experiment(
            table=table.name,
            name=name,
            scale=options.scale,
            corpus=prepared.task.corpus,
            data={split: each.digest for split, each in prepared.contents.splits.items()},
            settings=tuple(settings),
            width=options.width,
            limit=options.limit,
        )
        self.results = ResultsFolder.create(options.results, experiment)

    def run(self) -> int:
        """Runs the jobs that have no result yet; returns the exit code."""
        code = 0
        with (
            Stop(self.options.max_seconds) as stop,
            Display() as display,
            _alone(self.jobs[0].run.parent, display) as handle,
        ):
            for place, job in enumerate(self.jobs, 1):
                old = self.results.find(job.recipe, job.seed)
                if old is not None and old.status != "failed":
                    continue
                if stop.code:
                    return stop.code
                what = (
                    f"{self.table.name} {place} of {len(self.jobs)}: {job.recipe}, seed {job.seed}"
                )
                result = _Runner(self, job, stop, display, what, handle).run()
                if result is None:
                    return stop.code
                self.results.save(result)
                write_markdown(self.table, self.results)
                if result.status != "done":
                    display.note(f"{what}: {result.status}: {result.why}")
                if result.status == "failed":
                    code = EXIT_FAILURE
        return code


class _Runner:
    """One job in processes of its own."""

    def __init__(
        self, series: Series, job: Job, stop: Stop, display: Display, what: str, lock: int
    ) -> None:
        self.series = series
        self.job = job
        self.stop = stop
        self.display = display
        self.what = what
        self.lock = lock
        self.output = job.run.with_name(f"{job.run.name}.txt")

    def run(self) -> Result | None:
        """The result; None if it was stopped."""
        job, options, data = self.job, self.series.options, self.series.prepared.folder
        words = [*job.train(data), "--device", options.device]
        if options.processes is not None:
            words += ["--processes", str(options.processes)]
        code = self._start(words)
        if code == 0 and job.tune:
            code = self._start(job.choose(data), "tuning")
        if code == EXIT_INPUT:
            raise ValueError(f"{job.recipe}: {self._last_line().removeprefix('error: ')}")
        status: Status = "diverged" if code == EXIT_DIVERGED else "done"
        why = self._last_line() if status == "diverged" else ""
        path = job.run.with_name(f"{job.run.name}.measured.json")
        path.unlink(missing_ok=True)
        if code in (0, EXIT_DIVERGED):
            code = self._start(self._measure(path, status), "measuring")
        if code is None:
            return None
        measured = None
        if code == 0:
            measured = read(path, Measurement)
            path.unlink()
        else:
            status, why = "failed", f"exit code {code}: {self._last_line()}"
        return Result(
            row=job.row,
            recipe=job.recipe,
            seed=job.seed,
            status=status,
            why=why,
            command=options.command(self.series.table.name),
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            commit=find_commit(),
            measured=measured,
        )

    def _measure(self, out: Path, status: Status) -> list[str]:
        series = self.series
        words = ["measure", str(self.job.run), "--data", str(series.prepared.folder)]
        words += ["--device", series.options.device, "--out", str(out)]
        for split in find_splits(series.table, series.prepared):
            words += ["--split", split]
        if series.options.limit is not None:
            words += ["--limit", str(series.options.limit)]
        words += ["--one-by-one"] if series.table.one_by_one else []
        return words + (["--diverged"] if status == "diverged" else [])

    def _start(self, words: Sequence[str], activity: str = "") -> int | None:
        """Runs a worker and returns its exit code; None if this process was asked to stop.

        activity  shown with its seconds; without one, the updates of the run are shown
        """
        with self.output.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", WORKER, *words],
                env={**os.environ, PARENT: str(os.getpid()), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C reaches this process, which passes it on; both hold the lock.
                start_new_session=True,
                pass_fds=[self.lock],
            )
        try:
            self._wait(process, activity)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        return None if self.stop.code else process.returncode

    def _wait(self, process: "subprocess.Popen[bytes]", activity: str) -> None:
        begin = time.monotonic()
        steps = self.job.changed().train.max_steps
        told = False
        while process.poll() is None:
            if self.stop.code and not told:
                told = True
                interrupted = self.stop.code == EXIT_INTERRUPT
                process.send_signal(signal.SIGINT if interrupted else signal.SIGTERM)
            if activity:
                seconds = int(time.monotonic() - begin)
                self.display.show(f"{self.what}: {activity}, seconds", seconds)
            else:
                self.display.show(f"{self.what}: updates", self._steps(), steps)
            time.sleep(PAUSE)

    def _steps(self) -> int:
        log = self.job.run / LOG_FILE
        return max((e["step"] for e in read_log(log)), default=0) if log.exists() else 0

    def _last_line(self) -> str:
        text = self.output.read_text(encoding="utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][:500] if lines else "it said nothing"


@contextmanager
def _alone(folder: Path, display: Display) -> Iterator[int]:
    """Lock of a folder of runs; the processes of a killed run hold it until they end."""
    busy = (
        f"--out ({folder}): another `lightconv table` is running there, expected none. Wait for "
        "it, or choose another folder"
    )
    deadline = time.monotonic() + PATIENCE
    told = False
    with ExitStack() as stack:
        while True:
            try:
                handle = stack.enter_context(lock(folder / LOCK_FILE, busy, inherited=True))
                break
            except ValueError:
                if time.monotonic() > deadline:
                    raise
            if not told:
                display.note(f"waiting for another process that is at work in {folder}")
                told = True
            time.sleep(PAUSE)
        yield handle


def find_commit() -> str | None:
    """Commit of the checkout that this package runs from, with `+` if its code was changed.

    None without a checkout: an installed package may lie in somebody else's.
    """
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
