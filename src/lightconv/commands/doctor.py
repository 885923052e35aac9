"""`lightconv doctor`: the kernels of this machine and why, on one screen or as JSON."""

import json
import os
import platform
from collections.abc import Sequence
from typing import Any

from lightconv import __version__
from lightconv.commands.parser import Parser
from lightconv.console import tell
from lightconv.device import processor_name


def examine() -> dict[str, Any]:
    """The report as plain values."""
    import torch

    from lightconv.ops.functional import explain_all
    from lightconv.ops.library import native
    from lightconv.ops.memory import POOL
    from lightconv.train.memory import most_kept

    library = native()
    gpus = [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    settings = {k: v for k, v in sorted(os.environ.items()) if k.startswith("LIGHTCONV_")}
    return {
        "lightconv": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": processor_name(),
        "threads": torch.get_num_threads(),
        "devices": ["cpu", *gpus],
        "instruction_set": library.isa or None,
        "cpu_kernels": library.reason,
        "kept_memory_mb": POOL.most_idle >> 20,
        "kept_in_training_mb": most_kept() >> 20,
        "settings": settings,
        "operators": explain_all(),
    }


def main(argv: Sequence[str]) -> int:
    """Prints the report; exit code 1 when the C++ kernels are missing."""
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
    try:
        found = examine()
    except (RuntimeError, ValueError) as error:
        tell(f"error: {error}")
        return 1
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        _show(found)
    return 0 if found["instruction_set"] else 1


def _show(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(soft_wrap=True, highlight=False)
    facts = Table.grid(padding=(0, 2))
    for name, value in found.items():
        if name == "operators" or not value:
            continue
        text = ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else value
        text = ", ".join(text) if isinstance(text, list) else text
        facts.add_row(name.replace("_", " "), str(text))
    console.print(facts)
    table = Table("operator", "device", "kernel", "why", box=None, padding=(0, 2), pad_edge=False)
    for row in found["operators"]:
        table.add_row(row["operator"], row["device"], row["kernel"], row["why"])
    console.print()
    console.print(table)
