"""Throughput of one process and of several, one thread each, in one interleaved run.

    python -m benchmarks.scaling                    IWSLT's DynamicConv, 1 -> 2 processes
    python -m benchmarks.scaling --processes 4 --rounds 3 --tokens 1024

An update has one batch per process. In turns it is computed by the first process alone while the
others wait; by all together; and by each process for itself without communication, which is the
upper bound of the machine. Figures are medians; the sum of gradients is timed separately.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.measure import machine
from benchmarks.pages import table
from lightconv.data import Batch
from lightconv.models import Seq2Seq, Seq2SeqConfig
from lightconv.paper.recipes import RECIPES
from lightconv.train import Group, Trainer
from lightconv.train.distributed import join
from lightconv.train.launch import Ranks, find_place, rank_environment, spawn

T = 32


def make_batch(config: Seq2SeqConfig, tokens: int, seed: int) -> Batch:
    """A batch of `tokens` source and `tokens` target tokens, in sentences of T."""
    draw = torch.Generator().manual_seed(seed)
    sizes = (config.source_vocab, config.target_vocab, config.target_vocab)
    source, target_in, target = (
        torch.randint(4, size, (tokens // T, T), generator=draw) for size in sizes
    )
    return Batch((source, target_in), target)


def measure(options: argparse.Namespace, group: Group) -> dict[str, float]:
    """Seconds of an update in each way, on the first rank."""
    recipe = RECIPES[options.recipe]
    assert isinstance(recipe.model, Seq2SeqConfig)
    torch.manual_seed(0)
    trainer = Trainer(Seq2Seq(recipe.model), recipe.train, group=group)
    batches = [make_batch(recipe.model, options.tokens, seed) for seed in range(group.size)]
    mine = batches[group.rank :: group.size]
    alone = Group()

    def first_alone() -> None:
        if group.rank == 0:
            trainer.group = alone
            trainer.update(batches)

    def each_for_itself() -> None:
        trainer.group = alone
        trainer.update(mine)

    def together() -> None:
        trainer.group = group
        trainer.update(mine)

    def sums() -> None:
        group.sum_gradients(trainer.model)

    ways: dict[str, Callable[[], None]] = {
        "one process": first_alone,
        "each for itself": each_for_itself,
        "together": together,
        "sum of gradients": sums,
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(options.rounds + 1):
        for name, way in ways.items():
            group.agree(0)
            began = time.perf_counter()
            way()
            group.agree(0)
            if turn > 0:
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(found) for name, found in times.items()}


def report(options: argparse.Namespace, seconds: dict[str, float]) -> str:
    """The table, in Markdown."""
    tokens = options.tokens * options.processes
    speed = {name: tokens / spent for name, spent in seconds.items()}
    one = speed["one process"]
    rows = [
        [name, f"{seconds[name] * 1e3:,.0f}", f"{speed[name]:,.0f}", f"{speed[name] / one:.2f}x"]
        for name in ("one process", "together", "each for itself")
    ]
    share = seconds["sum of gradients"] / seconds["together"]
    return "\n".join(
        [
            f"{options.recipe}, updates of {tokens:,} tokens, {options.processes} processes, "
            f"{machine()}",
            table(["", "ms", "tokens/s", "speed"], rows),
            f"sum of gradients: {seconds['sum of gradients'] * 1e3:,.0f} ms, {share:.1%} of an "
            "update",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Starts the processes; the first one prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="iwslt-de-en-dynamicconv")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=2048, help="of a batch")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(argv)
    place = find_place(os.environ)
    if place is not None:
        with join(place, torch.device("cpu"), os.environ) as group:
            seconds = measure(options, group)
        if group.rank == 0:
            print(report(options, seconds))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        own = {**os.environ, "OMP_NUM_THREADS": "1"}
        env, _ = rank_environment(own, options.processes, Path(folder) / "store")
        given = sys.argv[1:] if argv is None else argv
        command = [sys.executable, "-m", "benchmarks.scaling", *given]
        with Ranks(options.processes, lambda rank: spawn(command, {**env, **rank})) as ranks:
            return ranks.wait()


if __name__ == "__main__":
    sys.exit(main())
