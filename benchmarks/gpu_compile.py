"""Compiles the Triton kernels for sm_80 and sm_90 without a GPU and prints their resource usage.

    python benchmarks/gpu_compile.py                        # everything, a few minutes
    python benchmarks/gpu_compile.py --quick                # the main configuration
    python benchmarks/gpu_compile.py --write docs/gpu.md    # also write the tables into that file

The operators of lightconv.ops.gpu are called with tensors on the meta device (shapes without
memory) and their launches are compiled instead of run, so exactly the launched kernels are
compiled. Exits with an error if a kernel spills registers.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget

from lightconv.ops import gpu

ARCHITECTURES = (80, 90)
DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp64": torch.float64,
}
TYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
TYPE_NAMES |= {torch.int64: "i64", torch.int32: "i32"}
WIDTHS = (3, 7, 15, 31, 63)
BEGIN, END = "<!-- gpu_compile: begin -->", "<!-- gpu_compile: end -->"


class Case(NamedTuple):
    """One call of an operator, forward and backward."""

    op: str = "dynamicconv"
    dtype: str = "bf16"
    K: int = 31
    softmax: bool = True
    H: int = 16
    R: int = 64
    packed: bool = False
    dropconnect: float = 0.0
    weight: str = ""

    def __str__(self) -> str:
        extras = [name for name in ("softmax", "packed", "dropconnect") if getattr(self, name)]
        weight = [f"weight {self.weight}"] if self.weight else []
        return ", ".join([self.op, *extras, *weight])


# Besides the main table: autocast, heads of 128, 1 and 3 channels, wide kernels, options.
OTHER_CASES = (
    Case(weight="fp32"),
    Case(dtype="fp32", H=4, R=128),
    Case(dtype="bf16", H=4, R=128),
    Case("lightconv", "bf16", softmax=False, H=4, R=128),
    Case(dtype="fp32", packed=True, dropconnect=0.1),
    Case("lightconv", "fp32", softmax=False, packed=True, dropconnect=0.1),
    Case("lightconv", "fp32", softmax=False, H=1024, R=1),
    Case(dtype="fp32", H=1024, R=1),
    Case("lightconv", "fp32", softmax=False, R=3),
    Case(dtype="fp32", R=3),
    Case(dtype="fp32", K=1023),
    Case("lightconv", "fp32", K=1023, softmax=False),
    Case(dtype="fp16"),
    Case(dtype="fp64", packed=True, dropconnect=0.1),
)


class Launch(NamedTuple):
    """A kernel launch of gpu.py."""

    kernel: Any
    warps: int
    arguments: dict[str, Any]

    def __str__(self) -> str:
        flipped = "FLIP" in self.kernel.arg_names and self.arguments["FLIP"]
        return f"{self.kernel.__name__}{' (gradient of x)' if flipped else ''}"


class Usage(NamedTuple):
    """Registers per thread, bytes of shared memory and spilled bytes of a compiled kernel."""

    registers: int
    shared: int
    spilled: int

    def __str__(self) -> str:
        return f"{self.registers} / {self.shared} / {self.spilled}"


def record(case: Case) -> list[Launch]:
    """The launches of one forward and backward pass."""
    found: list[Launch] = []
    B, T = (1, 4096) if case.packed else (8, 512)
    with torch.device("meta"):
        x = torch.empty(B, T, case.H * case.R, dtype=DTYPES[case.dtype])
        rows = (B, T) if case.op == "dynamicconv" else ()
        weight = torch.empty(*rows, case.H, case.K, dtype=DTYPES[case.weight or case.dtype])
        cu_seqlens = torch.empty(9, dtype=torch.int32) if case.packed else None
        seed = torch.empty((), dtype=torch.int64)
    softmax = (case.softmax,) if case.op == "dynamicconv" else ()
    rest = (weight, case.K - 1, *softmax, cu_seqlens, case.dropconnect, seed)

    def keep(kernel: Any, programs: int, warps: int, arguments: dict[str, Any]) -> None:
        found.append(Launch(kernel, warps, arguments))

    with mock.patch.object(gpu, "launch", keep):
        gpu.KERNELS[case.op](x, *rest)
        gpu.KERNELS[f"{case.op}_backward"](x, x, *rest, True, True)
    return found


def compile_for(architecture: int, launch: Launch) -> Usage:
    """Compiles one launch; NVIDIA's tool (part of Triton) reports the resource usage."""
    signature, constants, attributes = {}, {}, {}
    for i, parameter in enumerate(launch.kernel.params):
        value = launch.arguments[parameter.name]
        if parameter.is_constexpr or value is None:
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = f"*{TYPE_NAMES[value.dtype]}"
            attributes[i,] = [["tt.divisibility", 16]]  # the alignment of torch's allocations
        else:
            signature[parameter.name] = parameter.annotation_type or "i32"
    compiled = triton.compile(
        triton.compiler.ASTSource(launch.kernel, signature, constants, attributes),
        target=GPUTarget("cuda", architecture, 32),
        options={"num_warps": launch.warps, "enable_fp_fusion": True},
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    used = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    return Usage(used["REG"], compiled.metadata.shared, used["STACK"] + used["LOCAL"])


def row(*cells: object) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def main_table(quick: bool) -> tuple[list[str], list[Usage]]:
    """R = 64, H = 16: one row per kernel, dtype and architecture, one column per K."""
    widths = (31,) if quick else WIDTHS
    lines = [
        row("kernel", "dtype", "", *(f"K={K}" for K in widths)),
        row(*["---"] * (3 + len(widths))),
    ]
    usages = []
    for op, softmax in (("dynamicconv", True), ("dynamicconv", False), ("lightconv", False)):
        for dtype in ("bf16",) if quick else ("fp32", "bf16"):
            cases = [Case(op, dtype, K, softmax) for K in widths]
            for launches in zip(*(record(case) for case in cases), strict=True):
                for architecture in ARCHITECTURES:
                    found = [compile_for(architecture, launch) for launch in launches]
                    name = f"{cases[0]}: {launches[0]}"
                    lines.append(row(name, dtype, f"sm_{architecture}", *found))
                    usages += found
    return lines, usages


def other_table() -> tuple[list[str], list[Usage]]:
    """One row per kernel of OTHER_CASES, one column per architecture."""
    names = [f"sm_{architecture}" for architecture in ARCHITECTURES]
    lines = [row("kernel", "dtype", "H", "R", "K", *names), row(*["---"] * (5 + len(names)))]
    usages = []
    for case in OTHER_CASES:
        for launch in record(case):
            found = [compile_for(architecture, launch) for architecture in ARCHITECTURES]
            lines.append(row(f"{case}: {launch}", case.dtype, case.H, case.R, case.K, *found))
            usages += found
    return lines, usages


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="K=31, bf16 only")
    parser.add_argument("--write", type=Path, help="a Markdown file with the two markers")
    options = parser.parse_args()
    lines, usages = main_table(options.quick)
    if not options.quick:
        more_lines, more_usages = other_table()
        lines += ["", *more_lines]
        usages += more_usages
    spilling = sum(usage.spilled > 0 for usage in usages)
    title = (
        f"Triton {triton.__version__}: {len(usages)} kernels compiled, {spilling} spill. "
        "Entries: registers a thread / bytes of shared memory / bytes spilled."
    )
    text = "\n".join([title, "", *lines])
    print(text)
    if options.write:
        before, _, rest = options.write.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        options.write.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
    return int(spilling > 0)


if __name__ == "__main__":
    sys.exit(main())
