"""One training step of the paper's models against the self-attention model of the same table.

    python -m benchmarks.train                      the IWSLT models, 4,096 tokens, T = 32 and 512
    python -m benchmarks.train --rounds 3 --lengths 32
    python -m benchmarks.train --write docs         also the table in docs/performance.md

A step is forward + backward with every dropout of the recipe on and label-smoothed loss. All models
run in one process in turns; figures are medians.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.limits import Probe, measure_limits
from benchmarks.measure import interleave, peak_bytes
from benchmarks.pages import measured, replace, table
from lightconv.models import Seq2Seq, Seq2SeqConfig
from lightconv.ops.vocabulary import linear_cross_entropy
from lightconv.paper.recipes import RECIPES

TABLE = "iwslt-de-en"
BASELINE = "selfattention"
MIXERS = ("selfattention", "lightconv", "dynamicconv")
BAR = 0.88  # DynamicConv's time over self-attention's at T = 32
TOKENS = 4096

Row = dict[str, Any]


def step(config: Seq2SeqConfig, T: int, tokens: int) -> Callable[[], object]:
    """Forward + backward of one batch of `tokens` source and as many target tokens."""
    torch.manual_seed(0)
    model = Seq2Seq(config).train()
    B = tokens // T
    source, target_in, target = (
        torch.randint(4, vocab, (B, T))
        for vocab in (config.source_vocab, config.target_vocab, config.target_vocab)
    )

    def call() -> None:
        model.zero_grad(set_to_none=True)
        x = model.features(source, target_in).flatten(0, 1)
        loss, _ = linear_cross_entropy(x, model.output.weight, target.flatten(), smoothing=0.1)
        torch.autograd.backward(loss / tokens)

    return call


def products(config: Seq2SeqConfig, tokens: int) -> Callable[[], object]:
    """The matrix products of the same step and nothing else, into memory that is there already.

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
    """Milliseconds of each model's step and of its products alone; peak memory of the step."""
    calls = {}
    for mixer in MIXERS:
        config = RECIPES[f"{TABLE}-{mixer}"].model
        assert isinstance(config, Seq2SeqConfig)
        calls[mixer] = step(config, T, TOKENS)
        calls[f"{mixer} products"] = products(config, TOKENS)
    seconds = interleave(calls, rounds, patience=60.0)
    return {
        "T": T,
        "ms": {name: value * 1e3 for name, value in seconds.items()},
        "bytes": {mixer: peak_bytes(calls[mixer]) for mixer in MIXERS},
    }


def render(rows: Sequence[Row]) -> str:
    """The table, in Markdown."""
    cells = [
        [
            f"{TABLE}-{mixer}",
            str(row["T"]),
            f"{row['ms'][mixer]:,.0f}",
            f"{row['ms'][mixer] / row['ms'][BASELINE]:.2f}x",
            f"{TOKENS / row['ms'][mixer] * 1e3:,.0f}",
            f"{row['ms'][f'{mixer} products'] / row['ms'][mixer]:.0%}",
            f"{row['bytes'][mixer] / 1e6:,.0f}",
        ]
        for row in rows
        for mixer in MIXERS
    ]
    header = ["model", "T", "ms", "against self-attention", "tokens/s", "products alone"]
    return table([*header, "peak memory, MB"], cells)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; exit code 1 when DynamicConv misses its bar."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 512])
    parser.add_argument("--write", type=Path, metavar="DOCS", help="folder of performance.md")
    options = parser.parse_args(argv)
    limits = measure_limits(Probe())
    head = f"{measured()}; {limits.flops / 1e9:.0f} GFLOP/s of fused multiply-adds at most."
    print(head, flush=True)
    rows = [measure(T, options.rounds) for T in options.lengths]
    found = render(rows)
    print(found)
    if options.write:
        replace(options.write / "performance.md", "benchmarks.train", f"{head}\n\n{found}")
    ratio = rows[0]["ms"]["dynamicconv"] / rows[0]["ms"][BASELINE]
    met = ratio <= BAR
    print(f"DynamicConv / self-attention, T={rows[0]['T']}: {ratio:.3f} (at most {BAR}: {met})")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
