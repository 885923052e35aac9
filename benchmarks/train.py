"""One training step of the paper's models compared with the self-attention model.

    python -m benchmarks.train                      the IWSLT models, 4,096 tokens, T = 32 and 512
    python -m benchmarks.train --rounds 3 --lengths 32 --no-plain
    python -m benchmarks.train --old TREE           also DynamicConv in another version's tree
    python -m benchmarks.train --write docs         also the tables in docs

A step is an update as in a run: forward and backward with every dropout of the recipe and the
label-smoothed loss, the gradient's norm, Adam; in fp32 with the faster library of products, and in
bf16. All sides run in turns; figures are medians. Plain PyTorch (benchmarks/plain.py) and the other
version run in separate processes. The time of DynamicConv's operations comes from torch's profiler.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace as change
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.breakdown import breakdown
from benchmarks.limits import Probe
from benchmarks.measure import interleave, peak_bytes
from benchmarks.pages import excerpt, measured, replace, table
from benchmarks.plain import FORMULATIONS, plain_pytorch
from benchmarks.remote import OtherTree, Remote
from lightconv.data import Batch
from lightconv.models import Seq2Seq, Seq2SeqConfig
from lightconv.ops.products import choose, using
from lightconv.paper.recipes import RECIPES
from lightconv.recipe import Recipe
from lightconv.train.config import Precision
from lightconv.train.memory import Allocator
from lightconv.train.trainer import Trainer

TABLE = "iwslt-de-en"
BASELINE = "selfattention"
MIXERS = ("selfattention", "lightconv", "dynamicconv")
PRECISIONS: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
TOKENS = 4096
# DynamicConv's speed over self-attention's by length and precision, and over plain PyTorch's.
GAIN = {(32, "fp32"): 1 / 0.88, (512, "fp32"): 1.5, (512, "bf16"): 1.7}
PLAIN_GAIN = 1.3
SHARE = 0.75  # of its products in DynamicConv's time at T = 32
# At T = 32: share of the limit of multiply-adds, bf16 over fp32, and fp32 over 0.1.0 where that
# version's products reach less than SLOW of the limit.
LIMIT_SHARE, BF16_GAIN, OLD_GAIN, SLOW = 0.7, 1.7, 1.7, 0.6

Row = dict[str, Any]


def model_of(recipe: Recipe) -> Seq2SeqConfig:
    """The model of a recipe for translation."""
    assert isinstance(recipe.model, Seq2SeqConfig)
    return recipe.model


def step(
    recipe: Recipe, T: int, tokens: int, precision: Precision = "fp32"
) -> Callable[[], object]:
    """One update on one batch of `tokens` source and `tokens` target tokens."""
    torch.manual_seed(0)
    config = model_of(recipe)
    trainer = Trainer(Seq2Seq(config), change(recipe.train, precision=precision))
    B = tokens // T
    source, target_in, target = (
        torch.randint(4, vocab, (B, T))
        for vocab in (config.source_vocab, config.target_vocab, config.target_vocab)
    )
    batch = Batch((source, target_in), target)
    return lambda: trainer.update([batch])


def plain_step(name: str, T: int, tokens: int, formulation: str) -> Callable[[], object]:
    """The same in plain PyTorch, for the named recipe."""
    call = step(RECIPES[name], T, tokens)

    def plain() -> None:
        with plain_pytorch(formulation):
            call()

    return plain


def matrices(config: Seq2SeqConfig) -> "Counter[torch.Size]":
    """Number of the matrices of each shape [out, in] that a step multiplies with.

    Each is multiplied three times: forward, for its input's gradient and for its own. Embeddings
    are read, not multiplied, unless they are the output.
    """
    with torch.device("meta"):
        model = Seq2Seq(config)
    found = [m.weight.shape for m in model.modules() if isinstance(m, torch.nn.Linear)]
    return Counter([*found, model.output.weight.shape])


def products(
    config: Seq2SeqConfig, tokens: int, dtype: torch.dtype, library: str
) -> Callable[[], object]:
    """Only the matrix products of the same step, into preallocated memory."""
    sizes = matrices(config)
    shapes = {(m, n): ((tokens, n), (m, n), (tokens, m)) for m, n in sizes}
    values = {size: [torch.randn(s).to(dtype) for s in shapes[size]] for size in sizes}
    room = {size: [torch.empty(s, dtype=dtype) for s in shapes[size]] for size in sizes}

    def call() -> None:
        for size, count in sizes.items():
            x, weight, slope = values[size]
            of_x, of_weight, y = room[size]
            for _ in range(count):
                torch.mm(x, weight.t(), out=y)
                torch.mm(slope, weight, out=of_x)
                torch.mm(slope.t(), x, out=of_weight)

    return using(library)(call)


def measure(
    T: int,
    rounds: int,
    *,
    tokens: int = TOKENS,
    plain: bool = True,
    old: Path | None = None,
    clock: str = "perf_counter",
) -> Row:
    """Milliseconds of each step and of its products alone, peak bytes, multiply-adds a second."""
    limit = Probe(getattr(time, clock))
    calls: dict[str, Callable[[], object]] = {"limit": limit.fma, "copy": limit.copy}
    for mixer in MIXERS:
        for precision in PRECISIONS:
            recipe = RECIPES[f"{TABLE}-{mixer}"]
            calls[f"{mixer} {precision}"] = step(recipe, T, tokens, precision)
    model = model_of(RECIPES[f"{TABLE}-dynamicconv"])
    for precision, dtype in PRECISIONS.items():
        calls[f"{precision} products"] = products(model, tokens, dtype, choose())
    calls["default products"] = products(model, tokens, torch.float32, "default")
    sides = {name: (plain_step, (f"{TABLE}-dynamicconv", T, tokens, name)) for name in FORMULATIONS}
    with ExitStack() as stack:
        remote: dict[str, Callable[[], object]] = {}
        if plain:
            process = stack.enter_context(Remote(sides))
            remote = {name: partial(process.call, name) for name in FORMULATIONS}
        if old:
            name = f"{TABLE}-dynamicconv"
            remote["old"] = stack.enter_context(OtherTree(old, clock, name, T, tokens)).call
        turns: dict[str, Any] = {"patience": 60.0, "clock": getattr(time, clock)}
        seconds = interleave(calls | remote, rounds, **turns)
        peaks = {name: process.peak_bytes(name) for name in sides} if plain else {}
    mixers = [name for name in calls if name.split()[0] in MIXERS]
    parts = {p: breakdown(calls[f"dynamicconv {p}"]) for p in PRECISIONS}
    limits = limit.limits(seconds.pop("copy"), seconds.pop("limit"))
    return {
        "T": T,
        "tokens": tokens,
        "ms": {name: value * 1e3 for name, value in seconds.items()},
        "bytes": peaks | {name: peak_bytes(calls[name]) for name in mixers},
        "parts": parts,
        "flops": limits.flops,
        "work": 6.0 * tokens * sum(m * n * count for (m, n), count in matrices(model).items()),
    }


def reached(row: Row, side: str) -> float:
    """Share of the limit of fp32 multiply-adds that DynamicConv's products reach in a time."""
    share: float = row["work"] / (row["ms"][side] * 1e-3) / row["flops"]
    return share


def render(rows: Sequence[Row]) -> str:
    """The table of steps, in Markdown."""
    cells = []
    for row in rows:
        for side, ms in row["ms"].items():
            mixer, _, precision = side.partition(" ")
            name = f"DynamicConv in plain PyTorch, {side}"
            name = "DynamicConv of the other version" if side == "old" else name
            ours = mixer == "dynamicconv"
            if precision == "products":
                name = f"DynamicConv's products alone, {mixer}"
            elif mixer in MIXERS:
                name = f"{TABLE}-{mixer}"
            against = row["ms"][f"{BASELINE} {precision if mixer in MIXERS else 'fp32'}"] / ms
            alone = f"{row['ms'][f'{precision} products'] / ms:.0%}" if ours else ""
            limit = reached(row, side) if ours or "products" in side or side == "old" else None
            cells.append(
                [
                    name,
                    precision if mixer in MIXERS else "",
                    str(row["T"]),
                    f"{ms:,.0f}",
                    "" if "products" in side else f"{against:.2f}x",
                    f"{row['tokens'] / ms * 1e3:,.0f}",
                    alone,
                    "" if limit is None else f"{limit:.0%}",
                    f"{row['bytes'][side] / 1e6:,.0f}" if side in row["bytes"] else "",
                ]
            )
    header = ["step", "precision", "T", "ms", "speed against self-attention", "tokens/s"]
    more = ["products alone", "share of the fp32 limit", "peak memory, MB"]
    return table([*header, *more], cells)


def summary(steps: str) -> str:
    """The whole steps of this version in the table of steps."""
    columns = ["step", "precision", "T", "tokens/s", "speed against self-attention"]
    return excerpt(steps, [*columns, "peak memory, MB"], lambda row: row["peak memory, MB"] != "")


def render_parts(rows: Sequence[Row]) -> str:
    """The table of DynamicConv's time by part, in Markdown."""
    columns = {
        f"{precision}, T = {row['T']}": row["parts"][precision]
        for precision in rows[0]["parts"]
        for row in rows
    }
    parts = next(iter(columns.values()))
    cells = [[part, *(f"{found[part]:.1%}" for found in columns.values())] for part in parts]
    return table(["part of DynamicConv's step", *columns], cells)


def judge(row: Row) -> list[tuple[str, float, float]]:
    """Figures at one length with their lower bounds: (what, found, bar)."""
    T, ms = row["T"], row["ms"]
    fp32, bf16 = ms["dynamicconv fp32"], ms["dynamicconv bf16"]
    found = [
        (f"against self-attention, {p}, T={T}", ms[f"{BASELINE} {p}"] / ms[f"dynamicconv {p}"], bar)
        for (length, p), bar in GAIN.items()
        if length == T
    ]
    if plain := [ms[name] for name in FORMULATIONS if name in ms]:
        found.append((f"against plain PyTorch, T={T}", min(plain) / fp32, PLAIN_GAIN))
    if T == 32:
        found += [
            ("fp32, share of the products", ms["fp32 products"] / fp32, SHARE),
            ("fp32, share of the limit", reached(row, "dynamicconv fp32"), LIMIT_SHARE),
            ("bf16 against fp32", fp32 / bf16, BF16_GAIN),
            ("bf16, share of the products", ms["bf16 products"] / bf16, SHARE),
        ]
        if "old" in ms:
            slow = reached(row, "default products") < SLOW
            found.append(
                ("fp32 against the other version", ms["old"] / fp32, OLD_GAIN if slow else 1)
            )
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the tables; exit code 1 if DynamicConv misses a bar."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="source and target tokens each")
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 512])
    parser.add_argument("--no-plain", action="store_true", help="without plain PyTorch")
    parser.add_argument(
        "--busy", action="store_true", help="processor time of one thread: on a machine in use"
    )
    parser.add_argument("--old", type=Path, metavar="TREE", help="source tree of another version")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="add lengths measured before")
    parser.add_argument("--write", type=Path, metavar="DOCS", help="write the tables there")
    options = parser.parse_args(argv)
    Allocator().__enter__()  # as a run does
    sides: dict[str, Any] = {
        "tokens": options.tokens,
        "plain": not (options.no_plain or options.busy),
        "old": options.old,
    }
    if options.busy:
        torch.set_num_threads(1)
        sides["clock"] = "process_time"
    rows = [measure(T, options.rounds, **sides) for T in options.lengths]
    if options.rows:  # one after another, on a machine that is quiet for minutes only
        known = json.loads(options.rows.read_text()) if options.rows.exists() else []
        rows = [*(row for row in known if row["T"] not in options.lengths), *rows]
        options.rows.write_text(json.dumps(rows))
    limit = rows[0]["flops"] / 1e9
    head = f"{measured()}; {limit:.0f} GFLOP/s of fused multiply-adds at most; {choose()} products."
    head += " Processor time: the machine was in use." * options.busy
    verdicts = [verdict for row in rows for verdict in judge(row)]
    bars = [[what, f"{bar:.2f}", f"{v:.2f}", "missed" * (v < bar)] for what, v, bar in verdicts]
    judged = table(["DynamicConv", "at least", "measured", ""], bars)
    found = f"{head}\n\n{judged}\n\n{render(rows)}\n\n{render_parts(rows)}"
    print(found)
    if options.write:
        replace(options.write, "benchmarks.train", found)
        replace(options.write, "benchmarks.train summary", f"{head}\n\n{summary(render(rows))}")
    return 0 if all(value >= bar for _, value, bar in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
