"""Cost of verification: first and later loads of a model folder, with it and without, in turns.

    python -m benchmarks.loading                    WMT's DynamicConv, 213M random parameters
    python -m benchmarks.loading --recipe iwslt-de-en-dynamicconv --rounds 3

A first load is that of a new process, which has torch already; the folder is in the page cache.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import machine
from benchmarks.pages import table

LOADS = 3
WAYS = ("without", "with")


def load(folder: str, way: str) -> list[float]:
    """Seconds of each load of this process."""
    from lightconv.models.folder import ModelFolder
    from lightconv.models.seq2seq import Seq2Seq  # noqa: F401
    from lightconv.models.tensors import read_weights  # noqa: F401

    if way == "without":
        ModelFolder.verify = lambda self: None  # type: ignore[method-assign]
    found = []
    for _ in range(LOADS):
        began = time.perf_counter()
        ModelFolder(folder).load()
        found.append(time.perf_counter() - began)
    return found


def measure(recipe: str, rounds: int) -> str:
    """The table, in Markdown."""
    from lightconv.models.folder import WEIGHTS_FILE, ModelFolder, build
    from lightconv.paper.recipes import RECIPES

    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "model"
        ModelFolder.write(folder, build(RECIPES[recipe].model))
        size = (folder / WEIGHTS_FILE).stat().st_size
        times: dict[str, list[list[float]]] = {way: [] for way in WAYS}
        for turn in range(rounds + 1):
            for way in WAYS:
                command = [sys.executable, "-m", "benchmarks.loading", "--load", str(folder), way]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                if turn > 0:
                    times[way].append([float(each) for each in done.stdout.split()])
    first, later = (
        [statistics.median(each[n] for each in times[way]) for way in WAYS] for n in (0, LOADS - 1)
    )
    rows = [
        [name, *(f"{1e3 * each:.1f}" for each in pair), f"{1e3 * (pair[1] - pair[0]):.1f}"]
        for name, pair in (("first load", first), ("later ones", later))
    ]
    title = f"{recipe}, {size / 1e6:,.0f} MB, {machine()}"
    return "\n".join([title, table(["ms", "without", "with", "verification"], rows)])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="wmt-en-de-dynamicconv")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--load", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    print(*load(*options.load)) if options.load else print(measure(options.recipe, options.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
