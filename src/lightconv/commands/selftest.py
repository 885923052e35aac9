"""`lightconv selftest`: one JSON line for each promise, exit code 1 if one is broken."""

import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lightconv.commands.parser import Parser

if TYPE_CHECKING:
    from lightconv.selftest.promise import Promise

EXIT_BROKEN = 1


def main(argv: Sequence[str]) -> int:
    """Checks promises one after the other."""
    parser = Parser(
        "selftest",
        "Checks what the project promises about crashes, signals, full disks, damaged files and "
        "bad numbers, on this machine: small runs are trained, killed and resumed. Prints one JSON "
        "line for each promise; exit code 1 if one is broken.",
        "lightconv selftest             # about a minute",
        "lightconv selftest --full      # every crash point, 52 random kills, ...: some minutes",
        "lightconv selftest --only R1 R5",
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a sample of each (default)")
    size.add_argument("--full", action="store_true", help="the figures that the documents state")
    parser.add_argument("--only", metavar="NAME", nargs="+", help="these promises, such as R1")
    parser.add_argument("--list", action="store_true", help="print the promises and check nothing")
    options = parser.parse(argv)

    # These load torch, which takes its time: mistakes above are answered at once.
    from lightconv.selftest.promises import PROMISES

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
        print(f"{broken} of {len(chosen)} promises are broken", file=sys.stderr)
    return EXIT_BROKEN if broken else 0


def check(promise: "Promise", *, full: bool) -> dict[str, Any]:
    """What a line says: the figures, or why the promise does not hold."""
    from lightconv.selftest.promise import BrokenError, scratch

    began = time.perf_counter()
    line: dict[str, Any] = {"promise": promise.name, "text": promise.text, "holds": True}
    try:
        with scratch() as folder:
            line |= promise.check(folder, full)
    except BrokenError as error:
        line |= {"holds": False, "broken": str(error)}
    except Exception as error:  # a check that cannot be done is a promise that nobody can rely on
        line |= {"holds": False, "broken": f"{type(error).__name__}: {error}"}
    return line | {"seconds": round(time.perf_counter() - began, 1)}
