"""Compiles the Triton kernels without a GPU, counts instructions and bytes, estimates their time.

    python benchmarks/gpu_compile.py                        # everything, many minutes
    python benchmarks/gpu_compile.py --quick                # the main configuration
    python benchmarks/gpu_compile.py --write docs/performance/gpu.md    # and write the tables

The operators of lightconv.ops.gpu are called with tensors on the meta device (shapes without
memory) and their launches are compiled instead of run, so exactly the launched kernels are
compiled: for sm_80 and sm_90, and for AMD's gfx942 by Triton's other backend. Exits with an error
if a kernel spills more than MOST_SPILLED, or has more instructions or exchanges than MOST.
"""

import argparse
import functools
import math
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

from lightconv.ops import gpu, residual

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp64": torch.float64,
}
TYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
TYPE_NAMES |= {torch.int64: "i64", torch.int32: "i32"}
WIDTHS = (7, 15, 31, 63)
MOST = {"convolve": (63, 30), "convolve (gradients of x and weight)": (100, 30)}  # K <= 31, bf16
MOST_SPILLED = 32  # bytes a thread
ROWS = 8192  # positions of a call


class Machine(NamedTuple):
    """Data sheet: instructions of a thread and bytes of memory that a GPU can do in a second."""

    name: str
    target: str
    issue: float
    bandwidth: float


MACHINES = (
    Machine("A100", "sm_80", 108 * 4 * 32 * 1.41e9, 1555e9),
    Machine("H100", "sm_90", 132 * 4 * 32 * 1.755e9, 3350e9),
)
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


# Also: autocast, heads of 16 to 256 channels and of 1 to 8, wide kernels, options.
OTHER_CASES = (
    Case(weight="fp32"),
    *(Case(R=R) for R in (16, 32, 128, 256)),
    *(Case("lightconv", softmax=False, H=H, R=R) for H, R in ((4, 128), (1024, 1), (128, 8))),
    *(Case(H=H, R=R, K=4) for H, R in ((1024, 1), (256, 4), (128, 8))),
    Case(packed=True),
    Case(dropconnect=0.1),
    Case("lightconv", softmax=False, packed=True, dropconnect=0.1),
    *(Case(K=K) for K in (255, 1023)),
    Case("lightconv", K=255, softmax=False),
    Case(dtype="fp16"),
    Case(dtype="fp32", R=128),
    Case(dtype="fp64", packed=True, dropconnect=0.1),
    Case("step"),
    Case("residual", dropconnect=0.1),
)


class Launch(NamedTuple):
    """A kernel launch of gpu.py."""

    kernel: Any
    programs: int
    warps: int
    arguments: dict[str, Any]

    def __str__(self) -> str:
        about = ""
        if "FLIP" in self.kernel.arg_names and self.arguments["FLIP"]:
            wanted = {
                name: self.arguments.get(key) for name, key in (("x", "out"), ("weight", "taps"))
            }
            names = [name for name, tensor in wanted.items() if tensor is not None]
            about = f" (gradient{'s' * (len(names) - 1)} of {' and '.join(names)})"
        return self.kernel.__name__ + about

    @property
    def bytes(self) -> int:
        """Bytes of memory if every tensor is read or written once."""
        tensors = (self.arguments[name] for name in self.kernel.arg_names)
        return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))

    @property
    def trips(self) -> tuple[float, ...]:
        """How often the instructions of its loops run, the outer loop first."""
        given = self.arguments
        name = self.kernel.__name__
        chunks = -(-(given["BT"] + given["K"] - 1) // given["BC"])
        if name == "convolve" and given["DOT"]:
            return (float(chunks),)
        if name == "convolve_shared" and given["DOT"]:
            return float(given["TILES"]), float(chunks)
        if name == "lightconv_taps" and given["DOT"]:
            return (float((given["last"] + 1) / given["partials"]),)
        return (math.nan,)


class Usage(NamedTuple):
    """A compiled kernel: instructions for each number of x, registers a thread, and so on."""

    instructions: float
    registers: int
    shared: int
    spilled: int
    exchanges: int

    def __str__(self) -> str:
        count = "-" if math.isnan(self.instructions) else f"{self.instructions:.0f}"
        return f"{count} / {self.registers} / {self.shared} / {self.spilled}"


def record(case: Case) -> list[Launch]:
    """The launches of one forward and backward pass."""
    found: list[Launch] = []
    B, T = (1, ROWS) if case.packed else (16, ROWS // 16)
    D = case.H * case.R

    def keep(kernel: Any, programs: int, warps: int, arguments: dict[str, Any]) -> None:
        found.append(Launch(kernel, programs, warps, arguments))

    with torch.device("meta"), mock.patch.object(gpu, "launch", keep):
        x = torch.empty(B, T, D, dtype=DTYPES[case.dtype])
        rows = (B, T) if case.op == "dynamicconv" else ()
        weight = torch.empty(*rows, case.H, case.K, dtype=DTYPES[case.weight or case.dtype])
        cu_seqlens = torch.empty(9, dtype=torch.int32) if case.packed else None
        seed = torch.empty((), dtype=torch.int64)
        if case.op == "step":
            logits = torch.empty(B, 1, case.H, case.K, dtype=x.dtype)
            window = torch.empty(B, case.K - 1, D, dtype=x.dtype)
            gpu.KERNELS["dynamicconv_step"](x[:, :1], window, 5, logits, True)
        elif case.op == "residual":
            affine = torch.empty(2, D, dtype=x.dtype)
            results = residual.KERNELS["residual"](x, x, *affine, 1e-5, case.dropconnect, seed)
            kept = (*results[1:], affine[0], x.dtype, case.dropconnect, seed, True, True, True)
            residual.KERNELS["residual_backward"](x, *kept)
        else:
            rest = (cu_seqlens, case.dropconnect, seed)
            if case.op == "lightconv":
                gpu.KERNELS["lightconv"](x, weight, case.K - 1, *rest)
                given, lse = rest, {}
            else:
                _, kept_lse = gpu.KERNELS["dynamicconv_lse"](x, weight, case.K - 1, *rest)
                given, lse = (case.softmax, *rest), {"lse": kept_lse}
                if not case.softmax:
                    found.clear()
                    gpu.KERNELS["dynamicconv"](x, weight, case.K - 1, *given)
            arguments = (x, x, weight, case.K - 1, *given, True, True)
            gpu.KERNELS[f"{case.op}_backward"](*arguments, **lse)
    return found


def compile_kernel(target: GPUTarget, launch: Launch, **changed: int) -> Any:
    """Compiles one launch, some of its arguments changed."""
    signature, constants, attributes = {}, {}, {}
    given = {**launch.arguments, **changed}
    if target.backend == "hip" and "PRECISION" in given:
        given["PRECISION"] = "ieee"
    for i, parameter in enumerate(launch.kernel.params):
        value = given[parameter.name]
        if parameter.is_constexpr or value is None:
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = f"*{TYPE_NAMES[value.dtype]}"
            attributes[i,] = [["tt.divisibility", 16]]  # the alignment of torch's allocations
        else:
            signature[parameter.name] = parameter.annotation_type or "i32"
    return triton.compile(
        triton.compiler.ASTSource(launch.kernel, signature, constants, attributes),
        target=target,
        options={"num_warps": launch.warps, "enable_fp_fusion": True},
    )


def inspect(tool: Any, cubin: bytes, *options: str) -> str:
    """Output of one of NVIDIA's tools, which are part of Triton."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [tool.path, *options, file.name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def count_instructions(code: str, trips: tuple[float, ...]) -> tuple[float, int]:
    """Instructions of a thread, those of loops as often as they run; exchanges between threads."""
    names: list[str] = []
    labels: dict[str, int] = {}
    loops: dict[int, int] = {}  # begin to end: several branches back to one label are one loop
    for line in code.splitlines():
        if label := re.match(r"\s*\.?(L_x_\d+):", line):
            labels[label[1]] = len(names)
        elif found := re.search(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w*)([^;]*);", line):
            names.append(found[1])
            begin = labels.get(to[1]) if (to := re.search(r"\.?(L_x_\d+)", found[2])) else None
            if begin is not None and begin < len(names) - 1:  # the last one of all is a trap
                loops[begin] = len(names)
    depths = [sum(a <= i < b for a, b in loops.items()) for i in range(len(names))]
    count = sum(
        math.prod(trips[:depth]) if depth <= len(trips) else math.nan
        for depth, name in zip(depths, names, strict=True)
        if name != "NOP"
    )
    return count, names.count("SHFL")


@functools.cache
def usage(name: str, index: int, case: Case) -> Usage:
    """Of launch number `index` of a case, for a target."""
    launch, target = record(case)[index], TARGETS[name]
    compiled = compile_kernel(target, launch)
    if target.backend == "hip":
        code = compiled.asm["amdgcn"]
        read = lambda key: int(re.findall(rf"\.{key}:\s+(\d+)", code)[-1])
        spilled = read("private_segment_fixed_size")
        return Usage(math.nan, read("vgpr_count"), compiled.metadata.shared, spilled, 0)
    text = inspect(triton.knobs.nvidia.cuobjdump, compiled.asm["cubin"], "--dump-resource-usage")
    used = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    counted, exchanges = math.nan, 0
    if launch.arguments.get("DOT"):
        # Without the loop over taps, which runs only if a result is not finite.
        plain = compile_kernel(target, launch, TAPS=0).asm["cubin"]
        code = inspect(triton.knobs.nvidia.nvdisasm, plain, "-c")
        counted, exchanges = count_instructions(code, launch.trips)
        counted *= launch.programs * launch.warps * 32 / (ROWS * case.H * case.R)
    return Usage(
        counted, used["REG"], compiled.metadata.shared, used["STACK"] + used["LOCAL"], exchanges
    )


def row(*cells: object) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def check(case: Case, launch: Launch, found: Usage) -> list[str]:
    """Complaints about a kernel."""
    instructions, exchanges = MOST.get(str(launch), (0, 0))
    wrong = []
    if found.spilled > MOST_SPILLED:
        wrong.append(f"{found.spilled} bytes spilled")
    if instructions and case in [Case(K=K) for K in WIDTHS if K <= 31]:
        if found.instructions > instructions:
            wrong.append(f"{found.instructions:.0f} instructions, at most {instructions}")
        if found.exchanges > exchanges:
            wrong.append(f"{found.exchanges} exchanges, at most {exchanges}")
    return [f"{case}, {case.dtype}, R={case.R}, K={case.K}: {launch}: {text}" for text in wrong]


def usage_table(cases: list[Case], targets: list[str]) -> tuple[list[str], list[str]]:
    """One row per kernel, and complaints."""
    lines = [
        row("kernel", "dtype", "H", "R", "K", *targets),
        row(*["---"] * (5 + len(targets))),
    ]
    wrong = []
    for case in cases:
        for i, launch in enumerate(record(case)):
            found = [usage(target, i, case) for target in targets]
            lines.append(row(f"{case}: {launch}", case.dtype, case.H, case.R, case.K, *found))
            print(lines[-1], file=sys.stderr, flush=True)
            for name, each in zip(targets, found, strict=True):
                wrong += [f"{name}: {text}" for text in check(case, launch, each)]
    return lines, wrong


def estimate_table(cases: list[Case]) -> list[str]:
    """Forward and backward of each case: bytes, instructions, time and share of bandwidth."""
    names = ("operator", "dtype", "K", "GPU", "bytes", "instructions", "us", "share of bandwidth")
    lines = [row(*names), row(*["---"] * len(names))]
    for case in cases:
        for machine in MACHINES:
            moved = work = best = worst = 0.0
            for i, launch in enumerate(record(case)):
                memory = launch.bytes / machine.bandwidth
                count = usage(machine.target, i, case).instructions
                issue = count * ROWS * case.H * case.R / machine.issue
                moved, work = moved + launch.bytes / (ROWS * case.H * case.R), work + count
                best, worst = best + max(memory, issue), worst + memory + issue
            memory = moved * ROWS * case.H * case.R / machine.bandwidth
            lines.append(
                row(
                    *(case, case.dtype, case.K, machine.name, f"{moved:.1f}", f"{work:.0f}"),
                    f"{best * 1e6:.0f} - {worst * 1e6:.0f}",
                    f"{memory / best:.0%} - {memory / worst:.0%}",
                )
            )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="K=31, bf16 only")
    parser.add_argument("--write", type=Path, help="a Markdown file with the two markers")
    options = parser.parse_args()
    light = Case("lightconv", softmax=False)
    cases = [Case(), light]
    if not options.quick:
        kinds = (Case(), Case(softmax=False), light)
        halves = [kind._replace(K=K) for kind in kinds for K in WIDTHS]
        singles = [kind._replace(dtype="fp32", K=K) for kind in kinds for K in (7, 31)]
        cases = [*halves, *singles]
    estimated = estimate_table(cases)
    targets = ["sm_80", "gfx942"] if options.quick else list(TARGETS)
    lines, wrong = usage_table([*cases, *(() if options.quick else OTHER_CASES)], targets)
    title = (
        f"Triton {triton.__version__}, {ROWS} positions, estimated, not measured. Bytes and "
        "instructions are those for one number of x, forward and backward together. Times and "
        "shares: memory and instructions side by side - one after the other."
    )
    entries = (
        "Entries: instructions for one number of x / registers a thread / bytes of shared memory / "
        "bytes spilled."
    )
    text = "\n".join([title, "", *estimated, "", entries, "", *lines])
    print(text)
    print("\n".join(wrong), file=sys.stderr)
    if options.write:
        before, _, rest = options.write.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        options.write.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
