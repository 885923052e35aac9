"""Sides of a comparison in separate processes."""

import os
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import torch

Make = Callable[..., Callable[[], object]]


class Remote:
    """Calls the function that `make(*arguments)` returns in another process, and waits for it.

    A context manager; one process serves any number of named functions.
    """

    def __init__(self, make: dict[str, tuple[Make, tuple[Any, ...]]]) -> None:
        context = get_context("spawn")
        self._connection, self._other = context.Pipe()
        self._process = context.Process(target=_serve, args=(self._other, make), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        self._other.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()

    def call(self, name: str) -> None:
        """Calls the function of that name once."""
        self._ask("call", name)

    def peak_bytes(self, name: str) -> int:
        """Increase of the memory of that process during the call."""
        found = self._ask("peak", name)
        assert isinstance(found, int)
        return found

    def _ask(self, *question: str) -> object:
        try:
            self._connection.send(question)
            return self._connection.recv()
        except (EOFError, OSError):  # the process has ended and closed the pipe
            self._process.join()
            code = self._process.exitcode
            raise RuntimeError(f"the process that measures ended with code {code}") from None


class OtherTree:
    """The update of a recipe as another version's source tree computes it, in its own process.

    arguments  name of a clock of module `time`, name of the recipe, and sizes as of `step`
    """

    PROGRAM = """
import importlib, sys, time, torch
from benchmarks.train import RECIPES, step
for name in ("memory", "allocator"):
    module = importlib.import_module("lightconv.train." + name)
    if hasattr(module, "Allocator"):
        module.Allocator().__enter__()
        break
clock, threads, name, *sizes = sys.argv[1:]
torch.set_num_threads(int(threads))
call = step(RECIPES[name], *map(int, sizes))
for _ in sys.stdin:
    began = getattr(time, clock)()
    call()
    print(getattr(time, clock)() - began, flush=True)
"""

    def __init__(self, tree: Path, clock: str, *arguments: object) -> None:
        words = map(str, (clock, torch.get_num_threads(), *arguments))
        command = [sys.executable, "-c", self.PROGRAM, *words]
        paths = {"PYTHONPATH": f"{tree.resolve()}/src{os.pathsep}{tree.resolve()}"}
        self._process = subprocess.Popen(
            command,
            **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE},
            **{"cwd": tree, "env": os.environ | paths, "text": True, "bufsize": 1},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def call(self) -> float:
        """Seconds of one update."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        if not (line := self._process.stdout.readline()):
            raise RuntimeError("the process of the other version ended early")
        return float(line)


def _serve(connection: Connection, make: dict[str, tuple[Make, tuple[Any, ...]]]) -> None:
    from benchmarks.measure import peak_bytes

    calls = {name: function(*arguments) for name, (function, arguments) in make.items()}
    while True:
        what, name = connection.recv()
        if what == "call":
            calls[name]()
            connection.send(None)
        else:
            connection.send(peak_bytes(calls[name]))
