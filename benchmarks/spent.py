"""Time of a translation with the engine, by part.

The engine's programs report the nanoseconds of each kind of instruction on the calling thread. The
output's product runs as a separate call, so that it is measured separately. The time outside of
programs and the selection of the best words is the search: torch's small operations and Python.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from ctypes import sizeof
from statistics import median
from typing import Any
from unittest import mock

import torch

from lightconv import ops
from lightconv.ops import program

PRODUCTS = ("linear",)
MIXERS = ("convolve", "attend", "average", "gate", "glu")
SOURCE = ("attend_source",)
# In the order of tables. All but the last two are products, kernels and the selection of words.
PARTS = (
    *("encoder, products", "encoder, other kernels", "decoder, products", "decoder, mixers"),
    *("source attention", "vocabulary, product", "vocabulary, best words"),
    *("small operations in C++", "search and Python"),
)
SMALL, PYTHON = PARTS[-2:]


class Clocks:
    """Seconds since `reset`, by part."""

    def __init__(self) -> None:
        self.encoder = torch.zeros(len(program.OPS), dtype=torch.int64)
        self.decoder = torch.zeros_like(self.encoder)
        self.output = torch.zeros_like(self.encoder)
        self.native = 0.0
        self.words = 0.0

    def parts(self, whole: float) -> dict[str, float]:
        """Seconds of each part of a call that took `whole` seconds."""
        encoder, decoder, output = map(_seconds, (self.encoder, self.decoder, self.output))
        found = dict.fromkeys(PARTS, 0.0)
        found["encoder, products"] = _sum(encoder, PRODUCTS)
        found["encoder, other kernels"] = _sum(encoder, MIXERS)
        found["decoder, products"] = _sum(decoder, PRODUCTS)
        found["decoder, mixers"] = _sum(decoder, MIXERS)
        found["source attention"] = _sum(decoder, SOURCE)
        found["vocabulary, product"] = sum(output.values())
        known = sum(found.values())
        # Norms, quantisation of activations, copies, embeddings; starting and waiting of threads.
        found[SMALL] = self.native - known
        found["vocabulary, best words"] = self.words
        found[PYTHON] = whole - self.native - self.words
        return found


def spent(call: Callable[[], object]) -> dict[str, float]:
    """Seconds of one call by part; they add up to the time of the call."""
    clocks = Clocks()
    with _watch(clocks):
        begin = time.perf_counter()
        call()
        whole = time.perf_counter() - begin
    return clocks.parts(whole)


def medians(turns: list[dict[str, float]]) -> dict[str, float]:
    """Median share of each part over the turns, normalised to add up to one."""
    shares = {part: median(turn[part] / sum(turn.values()) for turn in turns) for part in turns[0]}
    whole = sum(shares.values())
    return {part: share / whole for part, share in shares.items()}


def overhead(shares: Mapping[str, float]) -> float:
    """Share of Python and small operations."""
    return shares[SMALL] + shares[PYTHON]


@contextmanager
def _watch(clocks: Clocks) -> Iterator[None]:
    inner, choose = program.run, ops.topk_logprobs

    def run(engine: int, task: program.Task) -> int:
        begin = time.perf_counter()
        try:
            return _run(inner, engine, task, clocks)
        finally:
            clocks.native += time.perf_counter() - begin

    def topk_logprobs(*arguments: Any) -> Any:
        begin = time.perf_counter()
        try:
            return choose(*arguments)
        finally:
            clocks.words += time.perf_counter() - begin

    with (
        mock.patch.object(program, "run", run),
        mock.patch.object(ops, "topk_logprobs", topk_logprobs),
    ):
        yield


def _run(inner: Any, engine: int, task: program.Task, clocks: Clocks) -> int:
    """Runs a program with its clocks; a decoder's output runs as a second piece."""
    if task.begins is not None:
        return int(inner(engine, _part(task, 0, task.count, clocks.encoder)))
    body = task.count - 1
    unknown = int(inner(engine, _part(task, 0, body, clocks.decoder)))
    if unknown < 0:
        inner(engine, _part(task, body, 1, clocks.output))
    return unknown


def _part(task: program.Task, first: int, count: int, clock: torch.Tensor) -> program.Task:
    part = program.Task.from_buffer_copy(task)
    assert task.program is not None
    part.program = task.program + first * sizeof(program.Instruction)
    part.count, part.nanoseconds = count, clock.data_ptr()
    return part


def _seconds(clock: torch.Tensor) -> dict[str, float]:
    return {op: n / 1e9 for op, n in zip(program.OPS, clock.tolist(), strict=True)}


def _sum(seconds: Mapping[str, float], ops: tuple[str, ...]) -> float:
    return sum(seconds[op] for op in ops)
