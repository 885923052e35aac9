"""A process that has everything imported and forks a run of `lightconv` for each line it reads.

Run as `python -m tests.train.server`. A line is {"argv": [...], "signal": 9, "after": 0.5}: the run
gets the signal so many seconds after it began, unless it has ended, and "again" once more after so
many further seconds. The answer is {"code": 0, "seconds": 1.2, "out": "...", "err": "..."}, where a
code below zero is the signal that ended it.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parent.parent.parent
Answer = dict[str, Any]


class Server:
    """The other end: starts the process and asks it."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.train.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def run(self, *argv: object, **request: Any) -> Answer:
        """Runs `lightconv` with these arguments."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = json.dumps({"argv": [str(part) for part in argv], **request})
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer: Answer = json.loads(self._process.stdout.readline())
        return answer


def serve() -> None:
    """Answers one line after the other."""
    import torch._dynamo  # noqa: F401 - an optimiser's first step would import it, in every fork

    import lightconv.train.command
    import lightconv.train.runner  # noqa: F401

    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


def answer(request: Answer) -> Answer:
    """Forks, waits, kills."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            _become(request["argv"], out.fileno(), err.fileno())
        status = None
        for delay in ("after", "again"):
            if delay in request:
                status = status or _wait(child, request[delay])
                if status is None:
                    os.kill(child, request.get("signal", signal.SIGKILL))
        if status is None:
            status = os.waitpid(child, 0)[1]
        seconds = time.monotonic() - began
        code = os.waitstatus_to_exitcode(status)
        for file in (out, err):
            file.seek(0)
        texts = {"out": out.read().decode(), "err": err.read().decode()}
        return {"code": code, "seconds": seconds, **texts}


def _wait(child: int, seconds: float) -> int | None:
    """The status of a child that ends within that time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        time.sleep(0.002)
    return None


def _become(argv: list[str], out: int, err: int) -> None:
    """In the child: the command, and nothing of this process afterwards."""
    from lightconv.cli import main

    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(0)
    code = 1
    try:
        code = main(argv)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
