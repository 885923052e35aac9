"""`lightconv selftest`: one JSON line for each promise, exit code 1 if one is broken."""

import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightconv.commands.parser import Parser
from lightconv.console import tell
from lightconv.processes import EXIT_FAILURE

if TYPE_CHECKING:
    from lightconv.selftest.checks import Promise


def main(argv: Sequence[str]) -> int:
    """The command."""
    parser = Parser(
        "selftest",
        "Checks on this machine that a killed run resumes exactly, that damaged checkpoints and "
        "files with code in them are refused, and that the kernels are right. Prints one JSON line "
        "for each promise; exit code 1 if one is broken.",
        "lightconv selftest             # half a minute",
        "lightconv selftest --full      # more cases of each: some minutes",
        "lightconv selftest --only R1 R5",
    )
    size = parser.add_mutually_exclusive_group()
    parser.add("--quick", "a sample of each (default)", group=size)
    parser.add("--full", "more cases of each", group=size)
    parser.add("--only NAME", "these promises, such as R1", nargs="+")
    parser.add("--list", "print the promises and check nothing")
    options = parser.parse(argv)

    # Imports torch, which is slow: mistakes above are answered at once.
    from lightconv.selftest import PROMISES

    known = [promise.name for promise in PROMISES]
    for name in options.only or []:
        if name not in known:
            parser.error(f"--only {name}, expected one of {', '.join(known)}")
    chosen = [promise for promise in PROMISES if promise.name in (options.only or known)]
    if options.list:
        for promise in chosen:
            print(f"{promise.name:4} {promise.text}")
        return 0
    broken = 0
    for promise in chosen:
        line = check(promise, full=options.full)
        print(json.dumps(line), flush=True)
        broken += not line["holds"]
    if broken:
        tell(f"{broken} of {len(chosen)} promises are broken")
    return EXIT_FAILURE if broken else 0


def check(promise: "Promise", *, full: bool) -> dict[str, Any]:
    """The fields of an output line: figures, or why the promise does not hold."""
    from lightconv.selftest.checks import BrokenError

    # In memory where possible.
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

    began = time.perf_counter()
    line: dict[str, Any] = {"promise": promise.name, "text": promise.text, "holds": True}
    try:
        with tempfile.TemporaryDirectory(prefix="lightconv-", dir=where) as folder:
            line |= promise.check(Path(folder), full)
    except Exception as error:  # a check that fails proves nothing
        kind = "" if isinstance(error, BrokenError) else f"{type(error).__name__}: "
        line |= {"holds": False, "broken": f"{kind}{error}"}
    return line | {"seconds": round(time.perf_counter() - began, 1)}
