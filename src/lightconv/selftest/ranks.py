"""A process that has everything imported and forks the ranks of a run for each line it reads.

Run as `python -m lightconv.selftest.ranks [MODULE...]`, which imports these modules first. A line
asks for so many ranks of `lightconv` with arguments ({"size": 2, "argv": [...]}), or of a function
({"case": "module:name", "arguments": {...}}). {"kill": {"rank": 1, "signal": 9, "file": PATH,
"lines": 3}} sends a signal as soon as a file has so many lines. The answer has a row for each rank:
its exit code, what it wrote, what the function returned.
"""

import atexit
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from lightconv.selftest.forks import Server
from lightconv.train.launch import rank_environment

LONGEST = 300.0  # seconds; then a rank is killed
Row = dict[str, Any]


class RankServer:
    """The other end: starts the process and asks it."""

    def __init__(self, *modules: str) -> None:
        self._server = Server("lightconv.selftest.ranks", *modules)

    def close(self) -> None:
        """Ends the process."""
        self._server.close()

    def run(self, *argv: object, size: int = 2, **request: Any) -> list[Row]:
        """Runs `lightconv` with these arguments as so many ranks."""
        words = [str(part) for part in argv]
        rows: list[Row] = self._server.ask({"argv": words, "size": size, **request})
        return rows

    def call(self, case: Callable[..., Any], *, size: int = 2, **arguments: Any) -> list[Any]:
        """Runs a function of a module as so many ranks; what it returned on each."""
        name = f"{case.__module__}:{case.__qualname__}"
        rows = self._server.ask({"case": name, "size": size, "arguments": arguments})
        if any(row["code"] for row in rows):
            raise RuntimeError("\n".join(row["err"] for row in rows))
        return [row["result"] for row in rows]


@cache
def shared_ranks() -> RankServer:
    """One server for all of this process, which takes seconds to start."""
    server = RankServer()
    atexit.register(server.close)
    return server


def serve(modules: list[str]) -> None:
    """Answers one line after the other."""
    import torch._dynamo
    import torch.distributed.fsdp  # noqa: F401

    import lightconv.commands.train
    import lightconv.selftest.together
    import lightconv.train.loop  # noqa: F401

    for module in modules:
        importlib.import_module(module)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


def answer(request: Row) -> list[Row]:
    """Forks, waits, kills."""
    with tempfile.TemporaryDirectory(prefix="lightconv-ranks-") as name:
        folder, ranks = Path(name), range(request["size"])
        children = [fork(request, rank, folder) for rank in ranks]
        kill = request.get("kill")
        deadline = time.monotonic() + LONGEST
        codes: dict[int, int] = {}
        while len(codes) < len(children):
            if kill and _lines(Path(kill["file"])) >= kill["lines"]:
                os.kill(children[kill["rank"]], kill["signal"])
                kill = None
            for rank in [rank for rank in ranks if rank not in codes]:
                if time.monotonic() > deadline:
                    os.kill(children[rank], signal.SIGKILL)
                found, status = os.waitpid(children[rank], os.WNOHANG)
                if found:
                    codes[rank] = os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        return [{"code": codes[rank], **_results(folder, rank)} for rank in ranks]


def fork(request: Row, rank: int, folder: Path) -> int:
    """Starts a rank, as the launcher would."""
    env, _ = rank_environment(os.environ, request["size"], folder / "store")
    child = os.fork()
    if child:
        return child
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(folder / f"{rank}.{name}", os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
    code = 1
    try:
        if request["size"] > 1:
            size = str(request["size"])
            os.environ.update(env, RANK=str(rank), LOCAL_RANK=str(rank))
            os.environ.update(WORLD_SIZE=size, LOCAL_WORLD_SIZE=size)
        code = become(request, folder / f"{rank}.result")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def become(request: Row, result: Path) -> int:
    """In the child: the command, or the function."""
    if "argv" in request:
        from lightconv.cli import main

        return main(request["argv"])
    import traceback

    module, _, name = request["case"].partition(":")
    try:
        found = getattr(importlib.import_module(module), name)(**request["arguments"])
        result.write_text(json.dumps(found))
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def _results(folder: Path, rank: int) -> Row:
    found: Row = {name: (folder / f"{rank}.{name}").read_text() for name in ("out", "err")}
    result = folder / f"{rank}.result"
    found["result"] = json.loads(result.read_text()) if result.exists() else None
    return found


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


if __name__ == "__main__":
    serve(sys.argv[1:])
