"""A process that has everything imported and forks runs of `lightconv`: a run starts at once.

`python -m tests.harness.server` answers lines of JSON. A request is {"argv": [...]}, a command, or
{"case": "module:function", "arguments": {...}}, with

    size        number of ranks; each is a process
    signals     sent one after the other: {"rank", "signal", "file", "lines", "after"}: so many
                seconds after the file has so many lines
    crash       [step, point, halfway]: see tests.harness.crash.crash_at
    file_limit  no file may be longer than so many bytes

The answer has a row for each rank: exit code (below zero: the signal that ended it), seconds, the
seconds since the last signal was sent, out, err, and the result of the function.
"""

import atexit
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
# Imported before the first fork; an optimiser's first step would import the first one.
MODULES = (
    "torch._dynamo",
    "torch.distributed.fsdp",
    "lightconv.commands.train",
    "lightconv.train.loop",
    "tests.harness.crash",
    "tests.train.rank_cases",
)
LONGEST = 300.0  # seconds; then all ranks are killed
# Time during which the machine itself stood still does not count as stopping.
LONGEST_PAUSE = 0.1
Answer = dict[str, Any]


def environment() -> dict[str, str]:
    """For a process that imports what this one can, with one thread."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), *filter(None, sys.path)])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


class Server:
    """The client: starts the process and asks it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    def close(self) -> None:
        self._process.communicate()

    def run(
        self,
        *argv: object,
        signal: int = signal.SIGKILL,
        when: str | None = None,
        after: float | None = None,
        again: float | None = None,
        **request: Any,
    ) -> Answer:
        """Runs `lightconv`; a signal `after` seconds, counted from when a file exists if `when`.

        again  the same signal once more, so many seconds later
        """
        signals = [
            {"rank": 0, "signal": signal, "file": file, "lines": 0, "after": delay}
            for file, delay in ((when, after), (None, again))
            if delay is not None
        ]
        words = [str(part) for part in argv]
        (row,) = self.ask({"argv": words, "size": 1, "signals": signals, **request})
        return row

    def ask(self, request: Answer) -> list[Answer]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(request)}\n")
        self._process.stdin.flush()
        rows: list[Answer] = json.loads(self._process.stdout.readline())
        return rows


class RankServer:
    """The same for several ranks; shares the process of `shared`."""

    def run(
        self, *argv: object, size: int = 2, kill: Answer | None = None, **request: Any
    ) -> list[Answer]:
        """Runs `lightconv` as so many ranks; `kill` has rank, signal, file and lines."""
        signals = [{"after": 0.0, **kill}] if kill else []
        words = [str(part) for part in argv]
        return shared().ask({"argv": words, "size": size, "signals": signals, **request})

    def call(self, case: Callable[..., Any], *, size: int = 2, **arguments: Any) -> list[Any]:
        """Runs a function of a module as so many ranks; the results, as JSON gives them back."""
        name = f"{case.__module__}:{case.__qualname__}"
        rows = shared().ask({"case": name, "size": size, "arguments": arguments})
        if any(row["code"] for row in rows):
            raise RuntimeError("\n".join(row["err"] for row in rows))
        return [row["result"] for row in rows]


@cache
def shared() -> Server:
    """One server for all tests of this process, since it takes seconds to start."""
    server = Server()
    atexit.register(server.close)
    return server


# --- In the server


def serve() -> None:
    for name in MODULES:
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


def answer(request: Answer) -> list[Answer]:
    """Forks, waits and sends signals."""
    with tempfile.TemporaryDirectory(prefix="lightconv-ranks-") as name:
        folder, begin = Path(name), time.monotonic()
        children = [fork(request, rank, folder) for rank in range(request["size"])]
        signals = request.get("signals", [])
        rows: dict[int, Answer] = {}
        now, ready, stopping = begin, None, 0.0
        while len(rows) < len(children):
            time.sleep(0.002)
            before, now = now, time.monotonic()
            stopping += min(now - before, LONGEST_PAUSE)
            if signals and ready is None and _has_lines(signals[0]):
                ready = now
            if signals and ready is not None and now - ready >= signals[0]["after"]:
                following = signals.pop(0)
                os.kill(children[following["rank"]], following["signal"])
                ready, stopping = None, 0.0
            for rank in [rank for rank in range(len(children)) if rank not in rows]:
                if now - begin > LONGEST:
                    os.kill(children[rank], signal.SIGKILL)
                found, status = os.waitpid(children[rank], os.WNOHANG)
                if found:
                    signals = [entry for entry in signals if entry["rank"] != rank]
                    code = os.waitstatus_to_exitcode(status)
                    rows[rank] = {"code": code, "seconds": now - begin, "stopping": stopping}
        return [rows[rank] | _said(folder, rank) for rank in range(len(children))]


def _has_lines(wanted: Answer) -> bool:
    if wanted.get("file") is None:
        return True
    path = Path(wanted["file"])
    return path.exists() and path.read_bytes().count(b"\n") >= wanted["lines"]


def _said(folder: Path, rank: int) -> Answer:
    found: Answer = {name: (folder / f"{rank}.{name}").read_text() for name in ("out", "err")}
    result = folder / f"{rank}.result"
    return {**found, "result": json.loads(result.read_text()) if result.exists() else None}


def fork(request: Answer, rank: int, folder: Path) -> int:
    """Starts a rank, as the launcher would."""
    from lightconv.train.launch import rank_environment

    size = request["size"]
    env, _ = rank_environment(os.environ, size, folder / "store")
    child = os.fork()
    if child:
        return child
    os.close(0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{rank}.{name}", os.O_WRONLY | os.O_CREAT), number)
    code = 1
    try:
        if size > 1:
            os.environ.update(env, RANK=str(rank), LOCAL_RANK=str(rank))
            os.environ.update(WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
        code = become(request, folder / f"{rank}.result")
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def become(request: Answer, result: Path) -> int:
    """In the child: the command, or the function."""
    from lightconv.cli import main
    from tests.harness.crash import crash_at

    if "crash" in request:
        crash_at(*request["crash"])
    if "file_limit" in request:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_limit"],) * 2)
    if "argv" in request:
        return main(request["argv"])
    module, _, name = request["case"].partition(":")
    found = getattr(importlib.import_module(module), name)(**request["arguments"])
    result.write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    serve()
