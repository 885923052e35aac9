"""`lightconv doctor`, `bench` and `selftest`: kernels, speeds and promises on this machine."""

import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightconv.commands.fit import show_growth
from lightconv.commands.parser import Parser
from lightconv.console import Display, print_rows, tell
from lightconv.decode.options import find_model
from lightconv.decode.speed import measure_speed
from lightconv.device import choose_device, count_cores, processor_name
from lightconv.processes import EXIT_FAILURE

if TYPE_CHECKING:
    import torch

    from lightconv.models.folder import ModelFolder

# Lengths for the operator, and tokens of a sentence, of `bench`.
LENGTHS, WORDS = (32, 128, 512, 2048), 20
PRODUCTS = (
    "{library} (default {default:.0f}, onednn {onednn:.0f}, bf16 {bf16:.0f} GFLOP/s on one thread; "
    "error of onednn {error:.0e})"
)


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
    parser.share("--format")
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
    shown = {**found, "operators": None, "products": PRODUCTS.format(**found["products"])}
    for name, value in shown.items():
        if not value:
            continue
        text = ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else value
        text = ", ".join(text) if isinstance(text, list) else text
        facts.append((name.replace("_", " "), str(text)))
    print_rows(facts)
    print()
    header = ("operator", "device", "kernel", "why")
    print_rows([[row[name] for name in header] for row in found["operators"]], header)


def bench(argv: Sequence[str]) -> None:
    parser = Parser(
        "bench",
        "Measures this machine: products, the operator against attention, and with models the "
        "speed of training, of decoding many sentences and of answering one. `lightconv speed` "
        "compares models on the same text.",
        "lightconv bench",
        "lightconv bench my-model --format json",
    )
    parser.add("MODEL", "model folders, or runs", nargs="*")
    parser.add("--seconds N", "about so long for each figure (default: 1)", default=1)
    parser.share("--device", "--format")
    options = parser.parse(argv)
    folders = [find_model(path) for path in options.model]

    from lightconv.demo.page import measure_growth
    from lightconv.ops.products import probe

    device = choose_device(options.device)
    print_rows([("machine", f"{processor_name()}, {count_cores()} cores"), ("device", str(device))])
    print()
    if not folders:
        rates = probe()
        rows = [[name, f"{getattr(rates, name):,.0f}"] for name in ("default", "onednn", "bf16")]
        print_rows(rows, ("matrix products", "GFLOP/s"), ("GFLOP/s",))
        print()
        show_growth([measure_growth(length, 4096) for length in LENGTHS])
        return
    units = ("training, tokens/s", "in bf16", "decoding, sentences/s", "one sentence, ms")
    rows = []
    for folder in folders:
        with Display(idle=f"measuring {folder.path}"):
            figures = _measure_model(folder, device, options.seconds)
        rows.append([str(folder.path), *figures])
    print_rows(rows, ("model", *units), units)


def _measure_model(folder: "ModelFolder", device: "torch.device", least: float) -> list[str]:
    """Training in fp32 and bf16 on invented batches; decoding of invented sentences."""
    import torch

    from lightconv.fitting.plan import make_training
    from lightconv.train.memory import measure_pace

    figures = []
    for precision in ("fp32", "bf16"):
        train = make_training("small", "translation", precision=precision)
        seconds, tokens = measure_pace(folder.config, train, device, least=least)
        figures.append(f"{tokens / seconds:,.0f}")
    if not folder.pairs:
        return [*figures, "-", "-"]
    model = folder.load(device)
    lowest, most = 4, min(folder.config.vocab_sizes)
    rows = torch.randint(lowest, most, (64, WORDS), generator=torch.Generator().manual_seed(1))
    how: dict[str, Any] = {"split": "invented text", "beam": 4, "rounds": 3}
    many, one = (
        measure_speed([model], rows.tolist()[:count], batch_size=count, **how).speeds[0]
        for count in (64, 1)
    )
    return [*figures, f"{many.rates()[0]:,.1f}", f"{one.seconds * 1e3:,.1f}"]


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
