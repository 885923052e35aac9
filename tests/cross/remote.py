"""A plugin of pytest: kernels run in another process, the command $LIGHTCONV_CROSS (server.cpp).

tests/ops then checks them against the formulas, which run here.
"""

import ctypes
import os
import struct
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lightconv.ops import library
from lightconv.ops.library import INTEGER, POINTER, members

BYTES = (4, 8, 2, 2)  # of dtypes by number


class StepProblem(ctypes.Structure):
    """csrc/problem.h's Step, field for field."""

    _fields_ = (
        *members(POINTER, "x window weight out"),
        *members(INTEGER, "B n D H K position dtype weight_dtype shared softmax"),
    )


def sizes(names: str, size: int) -> dict[str, int]:
    return dict.fromkeys(names.split(), size)


def of_convolution(p: Any) -> dict[str, int]:
    """Bytes of each tensor that a problem points to."""
    size, count = BYTES[p.dtype], p.B * p.T * p.D
    weights = (1 if p.shared else p.B * p.T) * p.H * p.K * BYTES[p.weight_dtype]
    span = lambda batch, row: ((p.B - 1) * batch + (p.T - 1) * row + p.D) * size if count else 0
    return {
        "x": span(p.x_batch, p.x_row),
        "grad": span(p.grad_batch, p.grad_row),
        "offsets": 8 * (p.sequences + 1),
        **sizes("out grad_x", count * size),
        **sizes("weight grad_weight", weights),
    }


def of_step(s: Any) -> dict[str, int]:
    size = BYTES[s.dtype]
    weights = (1 if s.shared else s.B * s.n) * s.H * s.K * BYTES[s.weight_dtype]
    window = s.B * (s.K - 1) * s.D * size
    return {**sizes("x out", s.B * s.n * s.D * size), "window": window, "weight": weights}


def of_residual(r: Any) -> dict[str, int]:
    whole, inner = (r.rows * r.D * BYTES[each] for each in (r.dtype, r.inner_dtype))
    return {
        **sizes("x grad sum out grad_x", whole),
        **sizes("inner grad_inner", inner),
        **sizes("weight bias grad_weight grad_bias", r.D * BYTES[r.weight_dtype]),
        "stats": r.rows * (16 if r.dtype == 1 else 8),
    }


def of_tail(t: Any) -> dict[str, int]:
    whole = sizes("y gate x grad out grad_y grad_gate", t.rows * t.D * BYTES[t.dtype])
    return whole | sizes("bias grad_bias", t.D * BYTES[t.bias_dtype])


def of_attention(a: Any) -> dict[str, int]:
    count = a.B * a.H * a.rows * a.keys
    last = (a.B - 1) * a.mask_batch + (a.H - 1) * a.mask_head + (a.rows - 1) * a.mask_row
    return sizes("scores grad", count * BYTES[a.dtype]) | {"mask": last + a.keys if count else 0}


KERNELS = {
    "lightconv_forward": of_convolution,
    "lightconv_backward": of_convolution,
    "lightconv_step": of_step,
    "lightconv_residual_forward": of_residual,
    "lightconv_residual_backward": of_residual,
    "lightconv_tail_forward": of_tail,
    "lightconv_tail_backward": of_tail,
    "lightconv_attend": of_attention,
}


class Remote:
    """The C interface of the library, in another process."""

    def __init__(self) -> None:
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(os.environ["LIGHTCONV_CROSS"].split(), **pipes)
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        if name not in KERNELS:
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            problem = arguments[0]._obj if len(arguments) == 1 else StepProblem(*arguments)
            self.run(list(KERNELS).index(name), problem, KERNELS[name](problem))
            return 0

        return call

    def lightconv_choose(self, name: bytes) -> bytes | None:
        return b"base" if name in (b"", b"base") else None

    def run(self, number: int, problem: Any, sizes: dict[str, int]) -> None:
        pieces = [
            (getattr(type(problem), name).offset, getattr(problem, name), size)
            for name, size in sizes.items()
            if getattr(problem, name)
        ]
        to, back = self.process.stdin, self.process.stdout
        assert to is not None and back is not None
        to.write(struct.pack("<3q", number, ctypes.sizeof(problem), len(pieces)) + bytes(problem))
        for offset, address, size in pieces:
            to.write(struct.pack("<2q", offset, size) + ctypes.string_at(address, size))
        to.flush()
        for _, address, size in pieces:
            found = back.read(size)
            assert len(found) == size, "the emulated process has ended"
            ctypes.memmove(address, found, size)
        self.calls += 1


REMOTE = Remote()


def pytest_configure() -> None:
    where: Any = library
    where._find_or_build = lambda: Path("kernels.so")
    where._prepare = lambda found: "base"
    where.ctypes = SimpleNamespace(**{**vars(ctypes), "CDLL": lambda path: REMOTE})


def pytest_sessionfinish(session: Any) -> None:
    if not REMOTE.calls:
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(f"{REMOTE.calls:,} calls of emulated kernels")
    REMOTE.process.kill()
