"""Runs the rows of a table, one process after the other; whatever ends it, it goes on from there.

A training that diverges is a row that says so, one that fails is tried again next time. Each result
is written when it is there.
"""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from lightconv.config import read
from lightconv.console import Display
from lightconv.paper.machine import find_commit
from lightconv.paper.plan import Job
from lightconv.paper.results import Measured, Result, Results, Status
from lightconv.paper.tables import Table
from lightconv.processes import EXIT_INTERRUPT, PARENT
from lightconv.train.log import LOG_FILE, read_log
from lightconv.train.signals import Stop

EXIT_FAILURE = 1
EXIT_INPUT = 2
EXIT_DIVERGED = 3
PAUSE = 0.2
# Processes of a table that was killed save and end by themselves, within this time.
PATIENCE = 45.0
LOCK_FILE = ".lock"
WORKER = "lightconv"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be run.

    splits     those that are scored
    command    what the user typed, for the results
    processes  of each training; None is one
    """

    table: Table
    results: Results
    data: Path
    splits: Sequence[str]
    jobs: Sequence[Job]
    command: str
    processes: int | None = None
    device: str = "auto"


def run(plan: Plan, stop: Stop, display: Display, after: Callable[[], None]) -> int:
    """Runs what has no result yet and returns the exit code; `after` is called for each result."""
    code = 0
    with _lock(plan.jobs[0].run.parent, display) as lock:
        for place, job in enumerate(plan.jobs, 1):
            old = plan.results.find(job.recipe, job.seed)
            if old is not None and old.status != "failed":
                continue
            if stop.code:
                return stop.code
            what = f"{plan.table.name} {place} of {len(plan.jobs)}: {job.recipe}, seed {job.seed}"
            result = Runner(plan, job, stop, display, what, lock).run()
            if result is None:
                return stop.code
            plan.results.save(result)
            after()
            if result.status != "done":
                display.note(f"{what}: {result.status}: {result.why}")
            if result.status == "failed":
                code = EXIT_FAILURE
    return code


class Runner:
    """One job, in processes of its own."""

    def __init__(
        self, plan: Plan, job: Job, stop: Stop, display: Display, what: str, lock: int
    ) -> None:
        self.plan = plan
        self.job = job
        self.stop = stop
        self.display = display
        self.what = what
        self.lock = lock
        self.said = job.run.with_name(f"{job.run.name}.txt")
        self.measured = job.run.with_name(f"{job.run.name}.measured.json")
        self._begin = 0.0

    def run(self) -> Result | None:
        """The result; None if it was stopped."""
        job, data = self.job, self.plan.data
        steps = job.changed().train.max_steps
        words = [*job.train(data), "--device", self.plan.device]
        if self.plan.processes is not None:
            words += ["--processes", str(self.plan.processes)]
        code = self._start(words, lambda: self._show_steps(steps))
        if code == 0 and job.tune:
            code = self._start(job.choose(data), lambda: self._show("tuning"))
        if code == EXIT_INPUT:
            raise ValueError(f"{job.recipe}: {self._last_line().removeprefix('error: ')}")
        diverged = code == EXIT_DIVERGED
        why = self._last_line() if diverged else ""
        if code in (0, EXIT_DIVERGED):
            code = self._measure(diverged=diverged)
        if code is None:
            return None
        if code != 0:
            return self._result("failed", f"exit code {code}: {self._last_line()}")
        found = read(self.measured, Measured)
        self.measured.unlink()
        return self._result("diverged" if diverged else "done", why, found)

    def _measure(self, *, diverged: bool) -> int | None:
        limit = self.plan.results.experiment.limit
        words = [
            *("measure", str(self.job.run), "--data", str(self.plan.data)),
            *("--device", self.plan.device, "--out", str(self.measured)),
            *(word for split in self.plan.splits for word in ("--split", split)),
            *([] if limit is None else ["--limit", str(limit)]),
            *(["--one-by-one"] if self.plan.table.one_by_one else []),
            *(["--diverged"] if diverged else []),
        ]
        self.measured.unlink(missing_ok=True)
        return self._start(words, lambda: self._show("measuring"))

    def _result(self, status: Status, why: str = "", found: Measured | None = None) -> Result:
        return Result(
            row=self.job.row,
            recipe=self.job.recipe,
            seed=self.job.seed,
            status=status,
            why=why,
            command=self.plan.command,
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            commit=find_commit(),
            measured=found,
        )

    def _start(self, words: Sequence[str], show: Callable[[], None]) -> int | None:
        """Runs a worker and returns its exit code; None if somebody wants to stop."""
        self._begin = time.monotonic()
        with self.said.open("ab") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", WORKER, *words],
                env={**os.environ, PARENT: str(os.getpid()), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for this process, which passes it on; the lock is for both.
                start_new_session=True,
                pass_fds=[self.lock],
            )
        try:
            self._wait(process, show)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if self.stop.code:
            return None
        return process.returncode

    def _wait(self, process: "subprocess.Popen[bytes]", show: Callable[[], None]) -> None:
        told = False
        while process.poll() is None:
            if self.stop.code and not told:
                told = True
                interrupted = self.stop.code == EXIT_INTERRUPT
                process.send_signal(signal.SIGINT if interrupted else signal.SIGTERM)
            show()
            time.sleep(PAUSE)

    def _show_steps(self, steps: int) -> None:
        log = self.job.run / LOG_FILE
        entries = read_log(log) if log.exists() else []
        done = max((entry["step"] for entry in entries), default=0)
        self.display.show(f"{self.what}: updates", done, steps)

    def _show(self, doing: str) -> None:
        seconds = int(time.monotonic() - self._begin)
        self.display.show(f"{self.what}: {doing}, seconds", seconds)

    def _last_line(self) -> str:
        """What the last command said at its end."""
        lines = self.said.read_text(encoding="utf-8", errors="replace").splitlines()
        said = [line.strip() for line in lines if line.strip()]
        return said[-1][:500] if said else "it said nothing"


@contextmanager
def _lock(folder: Path, display: Display) -> Iterator[int]:
    """Only one at a time in a folder of runs; a killed one's processes have it until they end."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _take(handle, folder, display)
        yield handle
    finally:
        os.close(handle)


def _take(handle: int, folder: Path, display: Display) -> None:
    deadline = time.monotonic() + PATIENCE
    told = False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ValueError(
                    f"--out ({folder}): another `lightconv table` is running there, expected none. "
                    "Wait for it, or choose another folder"
                ) from None
        if not told:
            display.note(f"waiting for another process that is at work in {folder}")
            told = True
        time.sleep(PAUSE)
