"""`lightconv doctor` and `lightconv selftest`: the kernels and the promises on this machine."""

import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightconv.commands.parser import Parser
from lightconv.console import print_groups, print_rows, tell
from lightconv.processes import EXIT_FAILURE


def doctor(argv: Sequence[str]) -> int:
    parser = Parser(
        "doctor",
        "Shows torch, devices, instruction set, threads, and which kernel runs for each operator "
        "and why. Compiles the C++ kernels if they are missing.",
        "lightconv doctor",
        "lightconv doctor --json",
        "LIGHTCONV_ISA=avx2 lightconv doctor",
    )
    parser.add("--json", "print one JSON object")
    options = parser.parse(argv)

    from lightconv.selftest import examine

    try:
        found = examine()
    except (RuntimeError, ValueError) as error:
        tell(f"error: {error}")
        return EXIT_FAILURE
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        _show(found)
    return 0 if found["instruction_set"] else EXIT_FAILURE


def _show(found: dict[str, Any]) -> None:
    facts = []
    for name, value in found.items():
        if name == "operators" or not value:
            continue
        text = ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else value
        text = ", ".join(text) if isinstance(text, list) else text
        facts.append((name.replace("_", " "), str(text)))
    print_rows(facts)
    print()
    header = ("operator", "device", "kernel", "why")
    print_groups({"": [[row[name] for name in header] for row in found["operators"]]}, header, ())


def selftest(argv: Sequence[str]) -> int:
    parser = Parser(
        "selftest",
        "Checks on this machine that runs resume, bad files are refused and kernels are right. "
        "Prints one JSON line for each promise; exit code 1 if one is broken.",
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
    from lightconv.selftest import PROMISES, BrokenError

    known = [promise.name for promise in PROMISES]
    for name in options.only or []:
        if name not in known:
            parser.error(f"--only {name}, expected one of {', '.join(known)}")
    chosen = [promise for promise in PROMISES if promise.name in (options.only or known)]
    if options.list:
        for promise in chosen:
            print(f"{promise.name:4} {promise.text}")
        return 0
    # In memory where possible.
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    broken = 0
    for promise in chosen:
        began = time.perf_counter()
        line: dict[str, Any] = {"promise": promise.name, "text": promise.text, "holds": True}
        try:
            with tempfile.TemporaryDirectory(prefix="lightconv-", dir=where) as folder:
                line |= promise.check(Path(folder), options.full)
        except Exception as error:  # a check that fails proves nothing
            kind = "" if isinstance(error, BrokenError) else f"{type(error).__name__}: "
            line |= {"holds": False, "broken": f"{kind}{error}"}
        line["seconds"] = round(time.perf_counter() - began, 1)
        print(json.dumps(line), flush=True)
        broken += not line["holds"]
    if broken:
        tell(f"{broken} of {len(chosen)} promises are broken")
    return EXIT_FAILURE if broken else 0
