"""Overhead of a run beyond its updates: loading, logging, and a checkpoint every 500 updates.

    python -m benchmarks.overhead                   IWSLT's DynamicConv: 21 updates, 3 checkpoints
    python -m benchmarks.overhead --write docs      also the table in docs
    python -m benchmarks.overhead --recipe iwslt-de-en-dynamicconv-small --updates 60

The loop of `lightconv train` trains on a data set of IWSLT's size, of random words, and writes full
checkpoints (model, optimiser, manifest; synced to disk) into --folder. Medians of single updates
and saves are combined for 500 updates. Loading counts twice: the waiting time of the loop, and the
time to make the batches, which another thread does during the updates. Every update is logged,
which is more than in a normal run.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stderr
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TextIO

import numpy as np

from benchmarks.pages import measured, table
from benchmarks.pages import replace as replace_table
from lightconv.console import Display
from lightconv.data import Position, StoreWriter
from lightconv.models import Seq2SeqConfig
from lightconv.models.folder import build
from lightconv.paper.recipes import RECIPES
from lightconv.recipe import Recipe
from lightconv.train import Group, PreparedData, Run, TrainConfig, Trainer
from lightconv.train.launch import Stop
from lightconv.train.log import LOG_FILE, Log
from lightconv.train.loop import Loop
from lightconv.train.memory import Allocator

BAR = 0.03
EVERY = 500  # updates from one checkpoint to the next
SAVES = 3
PAIRS = 160_239  # of IWSLT
LENGTH = 23  # of a sentence in words, on average
Seconds = dict[str, float]


class Watch(Display):
    """Prints like a run, and records the loop's times after each update."""

    def __init__(self, file: TextIO) -> None:
        with redirect_stderr(file):
            super().__init__()
        self.seconds: Seconds = {}
        self._seen: list[Seconds] = []

    def line(self, text: str, *, keep: bool = False) -> None:
        """Records the times; called at the end of each update."""
        self._seen.append(dict(self.seconds))
        super().line(text, keep=keep)

    def each(self, what: str) -> list[float]:
        """Seconds of an activity from each update to the next, and after the last one."""
        times = [seconds.get(what, 0.0) for seconds in [*self._seen, self.seconds]]
        return [after - before for before, after in pairwise(times)]


def write_pairs(folder: Path, model: Seq2SeqConfig, pairs: int) -> PreparedData:
    """Pairs of random words with realistic sentence lengths, and 100 pairs for validation."""
    draw = np.random.default_rng(0)
    sizes = {"source": model.source_vocab, "target": model.target_vocab}
    for split, count in (("train", pairs), ("valid", 100)):
        with StoreWriter(folder, split, sizes) as writer:
            lengths = np.clip(draw.gamma(2.5, LENGTH / 2.5, count), 1, 150).astype(int)
            for start in range(0, count, 1000):
                part = lengths[start : start + 1000]
                writer.append(*([draw.integers(4, V, n) for n in part] for V in sizes.values()))
    return PreparedData(folder)


def measure(recipe: Recipe, folder: Path, updates: int, pairs: int = PAIRS) -> Seconds:
    """Seconds of one update, of its loading and logging, and of one checkpoint."""
    assert isinstance(recipe.model, Seq2SeqConfig)
    data = write_pairs(folder / "data", recipe.model, pairs)
    made = time_batches(data, recipe.train)
    config = replace(
        recipe.train,
        max_steps=updates,
        log_every=1,
        save_every=max(1, updates // SAVES),
        validate_every=10 * updates,
        keep_last=2,
        average_last=0,
    )
    with ExitStack() as stack:
        stack.enter_context(Allocator())  # as a run does
        run = Run(folder / "run", recipe.model, config)
        checkpoints = stack.enter_context(run.checkpoints(writer=True))
        watch = Watch(stack.enter_context((folder / "lines").open("w")))
        loop = Loop(
            Trainer(build(recipe.model), config),
            data,
            checkpoints=checkpoints,
            log=stack.enter_context(Log(folder / LOG_FILE)),
            display=watch,
            stop=Stop(),
        )
        watch.seconds = loop.progress.seconds
        loop.run()
    # The first update is excluded: it includes one-time work (memory, the plan of an epoch).
    return {
        "update": statistics.median(watch.each("updates")[:-1]),
        "loading": statistics.median(watch.each("loading")[:-1]) + made,
        "logging": statistics.median(watch.each("logging")[:-1]),
        "checkpoint": statistics.median(s for s in watch.each("checkpoints") if s > 0.0),
    }


def time_batches(data: PreparedData, config: TrainConfig, count: int = 200) -> float:
    """Seconds to make the batches of an update, including the epoch's plan, on an idle machine."""
    began = time.perf_counter()
    with data.updates(Position(config.seed), config, Group()) as updates:
        for _ in range(count):
            next(updates)
    return (time.perf_counter() - began) / count


def put_together(found: Seconds) -> dict[str, float]:
    """Seconds of 500 updates with their loading, logging and one checkpoint."""
    each = {name: EVERY * found[name] for name in ("update", "loading", "logging")}
    return {**each, "checkpoint": found["checkpoint"]}


def render(found: Seconds) -> str:
    """The table, in Markdown."""
    whole = put_together(found)
    total = sum(whole.values())
    names = {
        "update": f"{EVERY} updates",
        "loading": "loading",
        "logging": "logging",
        "checkpoint": "a checkpoint",
    }
    rows = [
        [text, f"{found[name] * 1e3:,.1f}", f"{whole[name]:,.2f}", f"{whole[name] / total:.3%}"]
        for name, text in names.items()
    ]
    return table([f"in {EVERY} updates", "ms, each", "s, all", "share"], rows)


def overhead(found: Seconds) -> float:
    """Share of the time outside of updates."""
    whole = put_together(found)
    return 1.0 - whole["update"] / sum(whole.values())


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; exit code 1 if the overhead is above its bar."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="iwslt-de-en-dynamicconv")
    parser.add_argument("--updates", type=int, default=21)
    parser.add_argument("--folder", type=Path, help="where the disk is; default: that of /tmp")
    parser.add_argument("--write", type=Path, metavar="DOCS", help="write the table there")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = measure(RECIPES[options.recipe], Path(folder), options.updates)
    share = overhead(found)
    head = f"{measured()}; {options.recipe}."
    text = f"{head}\n\n{render(found)}\n\nAll beside the updates: {share:.2%}."
    print(text)
    if options.write:
        replace_table(options.write, "benchmarks.overhead", text)
    print(f"overhead: {share:.2%} (under {BAR:.0%}: {share < BAR})")
    return 0 if share < BAR else 1


if __name__ == "__main__":
    sys.exit(main())
