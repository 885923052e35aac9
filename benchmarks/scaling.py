"""Throughput of one process and of several, one thread each, in one interleaved run.

    python -m benchmarks.scaling                    IWSLT's DynamicConv, 1 -> 2 processes
    python -m benchmarks.scaling --processes 4 --rounds 3 --tokens 1024
    python -m benchmarks.scaling --link 100mbit     two hosts, network namespaces, and a slow link

An update has one batch per process. In turns it is computed by the first process alone while the
others wait; by all together, as in training; with gradients that are summed after the backward
pass; by torch's DistributedDataParallel; and by each process for itself without communication,
which is the upper bound of the machine. Figures are medians; the sum of gradients is timed
separately. `--link` needs root and iproute2, and two processes.
"""

import argparse
import copy
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.measure import machine
from benchmarks.pages import table
from lightconv.data import Batch
from lightconv.models import Seq2Seq, Seq2SeqConfig
from lightconv.paper.recipes import RECIPES
from lightconv.train import Group, Trainer
from lightconv.train.distributed import join
from lightconv.train.launch import Ranks, find_place, rank_environment, spawn
from lightconv.train.optim import batch_loss

T = 32
WAYS = ("one process", "together", "summed afterwards", "DistributedDataParallel")


def make_batch(config: Seq2SeqConfig, tokens: int, seed: int) -> Batch:
    """A batch of `tokens` source and `tokens` target tokens, in sentences of T."""
    draw = torch.Generator().manual_seed(seed)
    sizes = (config.source_vocab, config.target_vocab, config.target_vocab)
    source, target_in, target = (
        torch.randint(4, size, (tokens // T, T), generator=draw) for size in sizes
    )
    return Batch((source, target_in), target)


class Whole(nn.Module):
    """A model whose forward pass is the loss, for DistributedDataParallel."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self.model, self.smoothing = trainer.model, trainer.config.label_smoothing

    def forward(self, batch: Batch) -> Tensor:
        return batch_loss(self.model, batch, self.smoothing, device=torch.device("cpu")).loss


def measure(options: argparse.Namespace, group: Group) -> dict[str, float]:
    """Seconds of an update in each way, on the first rank."""
    recipe = RECIPES[options.recipe]
    assert isinstance(recipe.model, Seq2SeqConfig)
    torch.manual_seed(0)
    trainer = Trainer(Seq2Seq(recipe.model), recipe.train, group=group)
    other = Trainer(Seq2Seq(recipe.model), recipe.train, group=group)
    parallel = DistributedDataParallel(Whole(other), gradient_as_bucket_view=True)
    batches = [make_batch(recipe.model, options.tokens, seed) for seed in range(group.size)]
    mine = batches[group.rank :: group.size]
    alone, later = Group(), copy.copy(group)
    later.last_pass = lambda model: nullcontext()  # type: ignore[method-assign]

    def update(by: Group, given: list[Batch]) -> None:
        trainer.group = by
        trainer.update(given)

    def first_alone() -> None:
        if group.rank == 0:
            update(alone, batches)

    def ddp() -> None:
        other.optimizer.zero_grad(set_to_none=True)
        parallel(mine[0]).backward()
        tokens, norm = group.sum(torch.tensor([options.tokens])), group.norm(other.model)
        assert math.isfinite(norm)
        other._apply(1e-4, float(tokens) / group.size, float(norm))

    ways: dict[str, Callable[[], None]] = {
        "one process": first_alone,
        "each for itself": lambda: update(alone, mine),
        "together": lambda: update(group, mine),
        "summed afterwards": lambda: update(later, mine),
        "DistributedDataParallel": ddp,
        "sum of gradients": lambda: group.sum_gradients(trainer.model),
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
        for name in (*WAYS, "each for itself")
    ]
    share = seconds["sum of gradients"] / seconds["together"]
    return "\n".join(
        [
            f"{options.recipe}, updates of {tokens:,} tokens, {options.processes} processes, "
            f"{f'link of {options.link}/s, ' if options.link else ''}{machine()}",
            table(["", "ms", "tokens/s", "speed"], rows),
            f"sum of gradients: {seconds['sum of gradients'] * 1e3:,.0f} ms, {share:.1%} of an "
            "update",
        ]
    )


@contextmanager
def hosts(rate: str) -> Iterator[list[list[str]]]:
    """Two network namespaces and a link of this rate; the commands to start a process in each."""
    names = [f"scaling{os.getpid()}-{n}" for n in (0, 1)]

    def run(*words: str) -> None:
        subprocess.run(words, check=True)

    try:
        for name in names:
            run("ip", "netns", "add", name)
        ends = [["name", "wire", "netns", name] for name in names]
        run("ip", "link", "add", *ends[0], "type", "veth", "peer", *ends[1])
        for n, name in enumerate(names):
            run("ip", "-n", name, "address", "add", f"10.177.21.{n + 1}/24", "dev", "wire")
            for link in ("lo", "wire"):
                run("ip", "-n", name, "link", "set", link, "up")
            limit = ["tbf", "rate", rate, "burst", "256kb", "latency", "100ms"]
            run("tc", "-n", name, "qdisc", "add", "dev", "wire", "root", *limit)
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Starts the processes; the first one prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="iwslt-de-en-dynamicconv")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=2048, help="of a batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--link", help="of two hosts, such as 1gbit or 100mbit")
    options = parser.parse_args(argv)
    place = find_place(os.environ)
    if place is not None:
        with join(place, torch.device("cpu"), os.environ) as group:
            seconds = measure(options, group)
        if group.rank == 0:
            print(report(options, seconds))
        return 0
    if options.link and options.processes != 2:
        parser.error("--link connects two processes")
    wire = hosts(options.link) if options.link else nullcontext([[]] * options.processes)
    with tempfile.TemporaryDirectory() as folder, wire as places:
        own = {**os.environ, "OMP_NUM_THREADS": "1"}
        if options.link:
            own["GLOO_SOCKET_IFNAME"] = "wire"
        env, _ = rank_environment(own, options.processes, Path(folder) / "store")
        given = sys.argv[1:] if argv is None else argv
        command = [sys.executable, "-m", "benchmarks.scaling", *given]

        def start(rank: dict[str, str]) -> subprocess.Popen[bytes]:
            return spawn([*places[int(rank["RANK"])], *command], {**env, **rank})

        with Ranks(options.processes, start) as ranks:
            return ranks.wait()


if __name__ == "__main__":
    sys.exit(main())
