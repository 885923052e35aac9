"""Which kernel an operator runs, and why."""

import torch

from lightconv.ops import gpu
from lightconv.ops.library import native
from lightconv.ops.schema import SCHEMAS


def explain(operator: str, device: str | torch.device = "cpu") -> str:
    """One sentence: the kernel that `operator` runs on that device, and why.

    >>> lightconv.explain("dynamicconv")
    'dynamicconv on cpu runs C++ avx512: ...'
    """
    row = _row(operator, torch.device(device).type)
    return f"{row['operator']} on {row['device']} runs {row['kernel']}: {row['why']}"


def explain_all() -> list[dict[str, str]]:
    """A row for each operator on the CPU and, where there is one, on the GPU."""
    kinds = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    return [_row(name, kind) for name in SCHEMAS for kind in kinds]


def _row(operator: str, kind: str) -> dict[str, str]:
    if operator not in SCHEMAS:
        raise ValueError(f"operator must be one of {', '.join(SCHEMAS)}, got {operator!r}")
    kernel, why = _kernel(operator, kind)
    return {"operator": operator, "device": kind, "kernel": kernel, "why": why}


def _kernel(operator: str, kind: str) -> tuple[str, str]:
    if kind == "cpu":
        found = native()
        if found.library is not None:
            return f"C++ {found.isa}", f"{torch.get_num_threads()} threads, any shape and dtype"
        return "formula", found.reason
    if kind == "cuda" and operator in gpu.KERNELS:
        usable, reason = gpu.available()
        return ("Triton" if usable else "formula"), reason
    return "formula", f"no kernel of its own for {kind}"
