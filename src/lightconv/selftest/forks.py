"""A process that has everything imported and forks a run of `lightconv` for each line it reads.

Run as `python -m lightconv.selftest.forks`. A line is {"argv": [...]} and perhaps

    when                  a file: times count from when it is there
    signal, after, again  the run gets the signal so many seconds after it began, unless it has
                          ended, and once more after so many further seconds
    crash                 [step, point, halfway]: see `lightconv.selftest.points`
    file_limit            no file may be longer than so many bytes
    cases                 instead of a command, these of `lightconv.selftest.crash`

The answer is {"code": 0, "seconds": 1.2, "out": "...", "err": "..."}, where a code below zero is
the signal that ended it. "stopping" are the seconds since the last signal was sent.
"""

import atexit
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any, Self

# Where the package is, installed or not.
ROOT = Path(__file__).parent.parent.parent
Answer = dict[str, Any]
PATIENCE = 120.0  # seconds for a run to begin
PAUSE = 0.002
LONGEST_PAUSE = 0.1


class Server:
    """The other end: starts the process and asks it.

    module  what the process runs, with these arguments
    """

    def __init__(self, module: str = "lightconv.selftest.forks", *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()

    def run(self, *argv: object, **request: Any) -> Answer:
        """Runs `lightconv` with these arguments."""
        answer: Answer = self.ask({"argv": [str(part) for part in argv], **request})
        return answer

    def ask(self, request: Answer) -> Any:
        """What the process answers."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(request)}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def environment() -> dict[str, str]:
    """For a process that can import what this one can, and has one thread."""
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


@cache
def shared() -> Server:
    """One server for all of this process, which takes seconds to start."""
    server = Server()
    atexit.register(server.close)
    return server


def serve() -> None:
    """Answers one line after the other."""
    import torch._dynamo  # noqa: F401 - an optimiser's first step would import it, in every fork

    import lightconv.commands.train
    import lightconv.selftest.crash
    import lightconv.train.loop
    import lightconv.train.sharded  # noqa: F401

    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


def answer(request: Answer) -> Answer:
    """Forks, waits, kills."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            _become(request, out.fileno(), err.fileno())
        status = _wait(child, PATIENCE, Path(request["when"])) if "when" in request else None
        sent = None
        for delay in ("after", "again"):
            if delay in request:
                status = status or _wait(child, request[delay])
                if status is None:
                    os.kill(child, request.get("signal", signal.SIGKILL))
                    sent = Clock()
        if status is None:
            status = _wait(child, math.inf, clock=sent)
            assert status is not None
        seconds = time.monotonic() - began
        code = os.waitstatus_to_exitcode(status)
        for file in (out, err):
            file.seek(0)
        texts = {"out": out.read().decode(), "err": err.read().decode()}
        stopping = {} if sent is None else {"stopping": sent.seconds}
        return {"code": code, "seconds": seconds, **stopping, **texts}


class Clock:
    """Counts time, but not that for which this process itself, and so the machine, stood still."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._last = time.monotonic()

    def tick(self) -> None:
        """Every few milliseconds."""
        now = time.monotonic()
        self.seconds += min(now - self._last, LONGEST_PAUSE)
        self._last = now


def _wait(
    child: int, seconds: float, path: Path | None = None, *, clock: Clock | None = None
) -> int | None:
    """The status of a child that ends within that time, and before there is a file."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not (path is not None and path.exists()):
        found, status = os.waitpid(child, os.WNOHANG)
        if clock is not None:
            clock.tick()
        if found:
            return status
        time.sleep(PAUSE)
    return None


def _become(request: Answer, out: int, err: int) -> None:
    """In the child: the command, and nothing of this process afterwards."""
    import resource

    from lightconv.cli import main
    from lightconv.selftest.crash import run_all
    from lightconv.selftest.points import crash_at

    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(0)
    code = 1
    try:
        if "crash" in request:
            crash_at(*request["crash"])
        if "file_limit" in request:
            resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_limit"],) * 2)
        code = run_all(*request["cases"]) if "cases" in request else main(request["argv"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
