"""One training step of the paper's models compared with the self-attention model.

    python -m benchmarks.train                      the IWSLT models, 4,096 tokens, T = 32 and 512
    python -m benchmarks.train --rounds 3 --lengths 32
    python -m benchmarks.train --write docs         also the tables in docs/performance.md

A step is an update as in a run: forward and backward with every dropout of the recipe and the
label-smoothed loss, the gradient's norm, Adam. All models run in turns; figures are medians.
DynamicConv is also run in plain PyTorch (benchmarks/plain.py), in a separate process that, unlike a
run, does not keep freed memory, and once under torch's profiler for its time by operation.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.breakdown import breakdown
from benchmarks.limits import Probe, measure_limits
from benchmarks.measure import interleave, peak_bytes
from benchmarks.pages import measured, replace, table
from benchmarks.plain import FORMULATIONS, plain_pytorch
from benchmarks.remote import Remote
from lightconv.data import Batch
from lightconv.models import Seq2Seq, Seq2SeqConfig
from lightconv.paper.recipes import RECIPES
from lightconv.recipe import Recipe
from lightconv.train.memory import Allocator
from lightconv.train.trainer import Trainer

TABLE = "iwslt-de-en"
BASELINE = "selfattention"
MIXERS = ("selfattention", "lightconv", "dynamicconv")
TOKENS = 4096
BAR = 0.88  # DynamicConv's time over self-attention's at T = 32
SHARE = 0.75  # of its products in DynamicConv's time at T = 32
GAIN = {32: 1 / BAR, 512: 1.5}  # DynamicConv's speed over self-attention's
PLAIN_GAIN = 1.3  # over plain PyTorch with the faster formulation

Row = dict[str, Any]


def model_of(recipe: Recipe) -> Seq2SeqConfig:
    """The model of a recipe for translation."""
    assert isinstance(recipe.model, Seq2SeqConfig)
    return recipe.model


def step(recipe: Recipe, T: int, tokens: int) -> Callable[[], object]:
    """One update on one batch of `tokens` source and `tokens` target tokens."""
    torch.manual_seed(0)
    config = model_of(recipe)
    trainer = Trainer(Seq2Seq(config), recipe.train)
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


def products(config: Seq2SeqConfig, tokens: int) -> Callable[[], object]:
    """Only the matrix products of the same step, into preallocated memory.

    Each matrix [out, in] is multiplied three times: forward, for its input's gradient and for its
    own. Embeddings are read, not multiplied, unless they are the output.
    """
    with torch.device("meta"):
        model = Seq2Seq(config)
    matrices = [m.weight.shape for m in model.modules() if isinstance(m, torch.nn.Linear)]
    sizes = Counter([*matrices, model.output.weight.shape])
    shapes = {(m, n): ((tokens, n), (m, n), (tokens, m)) for m, n in sizes}
    values = {size: [torch.randn(shape) for shape in shapes[size]] for size in sizes}
    room = {size: [torch.empty(shape) for shape in shapes[size]] for size in sizes}

    def call() -> None:
        for size, count in sizes.items():
            x, weight, slope = values[size]
            of_x, of_weight, y = room[size]
            for _ in range(count):
                torch.mm(x, weight.t(), out=y)
                torch.mm(slope, weight, out=of_x)
                torch.mm(slope.t(), x, out=of_weight)

    return call


def measure(T: int, rounds: int) -> Row:
    """Milliseconds of each model's step and of its products alone; peak bytes of the step."""
    calls: dict[str, Callable[[], object]] = {}
    for mixer in MIXERS:
        recipe = RECIPES[f"{TABLE}-{mixer}"]
        calls[mixer] = step(recipe, T, TOKENS)
        calls[f"{mixer} products"] = products(model_of(recipe), TOKENS)
    sides = {name: (plain_step, (f"{TABLE}-dynamicconv", T, TOKENS, name)) for name in FORMULATIONS}
    with Remote(sides) as plain:
        remote = {name: partial(plain.call, name) for name in FORMULATIONS}
        seconds = interleave(calls | remote, rounds, patience=60.0)
        peaks = {name: plain.peak_bytes(name) for name in FORMULATIONS}
    return {
        "T": T,
        "ms": {name: value * 1e3 for name, value in seconds.items()},
        "bytes": peaks | {mixer: peak_bytes(calls[mixer]) for mixer in MIXERS},
        "parts": breakdown(calls["dynamicconv"]),
    }


def render(rows: Sequence[Row]) -> str:
    """The table of steps, in Markdown."""
    names = {mixer: f"{TABLE}-{mixer}" for mixer in MIXERS}
    names |= {name: f"{TABLE}-dynamicconv in plain PyTorch, {name}" for name in FORMULATIONS}
    cells = []
    for row in rows:
        for side, name in names.items():
            ms = row["ms"][side]
            alone = row["ms"].get(f"{side} products")
            cells.append(
                [
                    name,
                    str(row["T"]),
                    f"{ms:,.0f}",
                    f"{ms / row['ms'][BASELINE]:.2f}x",
                    f"{TOKENS / ms * 1e3:,.0f}",
                    "" if alone is None else f"{alone / ms:.0%}",
                    f"{row['bytes'][side] / 1e6:,.0f}",
                ]
            )
    header = ["model", "T", "ms", "against self-attention", "tokens/s", "products alone"]
    return table([*header, "peak memory, MB"], cells)


def render_parts(rows: Sequence[Row]) -> str:
    """The table of DynamicConv's time by part, in Markdown."""
    header = ["part of DynamicConv's step", *(f"T = {row['T']}" for row in rows)]
    return table(
        header,
        [[part, *(f"{row['parts'][part]:.1%}" for row in rows)] for part in rows[0]["parts"]],
    )


def judge(row: Row) -> list[tuple[str, float, float]]:
    """Figures at one length with their lower bounds: (what, found, bar)."""
    T, ms = row["T"], row["ms"]
    dynamic = ms["dynamicconv"]
    plain = min(ms[name] for name in FORMULATIONS)
    found = [(f"against plain PyTorch, T={T}", plain / dynamic, PLAIN_GAIN)]
    if T in GAIN:
        found.append((f"against self-attention, T={T}", ms[BASELINE] / dynamic, GAIN[T]))
    if T == 32:
        found.append((f"share of the products, T={T}", ms["dynamicconv products"] / dynamic, SHARE))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the tables; exit code 1 if DynamicConv misses a bar."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 512])
    parser.add_argument("--write", type=Path, metavar="DOCS", help="folder of performance.md")
    options = parser.parse_args(argv)
    limits = measure_limits(Probe())
    head = f"{measured()}; {limits.flops / 1e9:.0f} GFLOP/s of fused multiply-adds at most."
    print(head, flush=True)
    Allocator().__enter__()  # as a run does
    rows = [measure(T, options.rounds) for T in options.lengths]
    found = f"{render(rows)}\n\n{render_parts(rows)}"
    print(found)
    if options.write:
        replace(options.write / "performance.md", "benchmarks.train", f"{head}\n\n{found}")
    verdicts = [verdict for row in rows for verdict in judge(row)]
    for what, value, bar in verdicts:
        print(f"DynamicConv {what}: {value:.2f} (at least {bar:.2f}: {value >= bar})")
    return 0 if all(value >= bar for _, value, bar in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
