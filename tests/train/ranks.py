"""A process that has everything imported and forks the ranks of a run for each line it reads.

Run as `python -m tests.train.ranks`. A line asks for so many ranks of `lightconv` with arguments
({"size": 2, "argv": [...]}), or of a function of `tests.train.rank_cases` ({"case": "exchange",
"arguments": {...}}). {"kill": {"rank": 1, "signal": 9, "file": PATH, "lines": 3}} sends a signal as
soon as a file has so many lines. The answer has a row for each rank: its exit code, what it wrote,
what the function returned.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parent.parent.parent
LONGEST = 300.0  # seconds; then a rank is killed
Row = dict[str, Any]


class RankServer:
    """The other end: starts the process and asks it."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.train.ranks"],
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

    def run(self, *argv: object, size: int = 2, **request: Any) -> list[Row]:
        """Runs `lightconv` with these arguments as so many ranks."""
        return self._ask({"argv": [str(part) for part in argv], "size": size, **request})

    def call(self, case: str, *, size: int = 2, **arguments: Any) -> list[Any]:
        """Runs a case as so many ranks; what it returned on each."""
        rows = self._ask({"case": case, "size": size, "arguments": arguments})
        assert [row["code"] for row in rows] == [0] * size, "\n".join(row["err"] for row in rows)
        return [row["result"] for row in rows]

    def _ask(self, request: Row) -> list[Row]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(request)}\n")
        self._process.stdin.flush()
        answer: list[Row] = json.loads(self._process.stdout.readline())
        return answer


def serve() -> None:
    """Answers one line after the other."""
    import torch._dynamo
    import torch.distributed.fsdp  # noqa: F401

    import lightconv.train.command
    import lightconv.train.runner  # noqa: F401
    import tests.train.rank_cases  # noqa: F401

    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


def answer(request: Row) -> list[Row]:
    """Forks, waits, kills."""
    folder = Path(tempfile.mkdtemp(prefix="lightconv-ranks-"))
    try:
        ranks = range(request["size"])
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
    finally:
        shutil.rmtree(folder)


def fork(request: Row, rank: int, folder: Path) -> int:
    """Starts a rank, as the launcher would."""
    parent = os.getpid()
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
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
            os.environ.update(WORLD_SIZE=size, LOCAL_WORLD_SIZE=size, GLOO_SOCKET_IFNAME="lo")
            os.environ.update(LIGHTCONV_STORE=str(folder / "store"), LIGHTCONV_PARENT=str(parent))
        code = become(request, folder / f"{rank}.result")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def become(request: Row, result: Path) -> int:
    """In the child: the command, or the case."""
    if "argv" in request:
        from lightconv.cli import main

        return main(request["argv"])
    import traceback

    from tests.train import rank_cases

    try:
        found = getattr(rank_cases, request["case"])(**request["arguments"])
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
    serve()
