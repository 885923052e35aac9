"""`lightconv average`: checkpoints of a run become a model folder."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from lightconv.commands.parser import Parser
from lightconv.console import print_rows, tell
from lightconv.models.folder import check_free
from lightconv.train.run import LAST, Run


def main(argv: Sequence[str]) -> int:
    """Averages, writes the folder, prints its contents."""
    options = _parser().parse(argv)
    for name in ("last", "best"):
        count = getattr(options, name)
        if count is not None and count < 1:
            raise ValueError(f"--{name} {count} must be at least 1")
    run = Run.open(options.run)
    check_free(options.out, overwrite=options.overwrite)
    steps = run.choose(last=options.last, best=options.best, steps=options.steps)
    tell(f"averaging {len(steps)} checkpoints of {run.path}")
    model = run.average(steps, ema=options.ema)
    run.export(model, options.out, overwrite=options.overwrite)
    rows = [
        ("steps", ", ".join(map(str, steps))),
        ("parameters", f"{sum(tensor.numel() for tensor in model.parameters()):,}"),
        ("folder", str(options.out)),
        ("files", ", ".join(sorted(path.name for path in options.out.iterdir()))),
    ]
    print_rows(rows)
    return 0


def _parser() -> Parser:
    parser = Parser(
        "average",
        "Makes a model folder whose parameters are the mean of those of several checkpoints of a "
        "run, as the paper does before it evaluates. One checkpoint alone is exported as it is.",
        f"lightconv average runs/iwslt --last {LAST} --out iwslt",
        "lightconv average runs/iwslt --steps 48000,49000,50000 --out iwslt",
        "lightconv average runs/iwslt --best --out iwslt    # the best one, as it is",
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="a folder of `lightconv train`")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--last", metavar="N", type=int, help=f"the last N checkpoints (default: {LAST})"
    )
    which.add_argument(
        "--best", metavar="N", type=int, nargs="?", const=1, help="the N best ones (default: 1)"
    )
    which.add_argument("--steps", metavar="A,B,C", type=_steps, help="those of these steps")
    parser.add_argument(
        "--ema", action="store_true", help="their moving averages, if training kept such"
    )
    parser.add_argument(
        "--out", metavar="MODEL", type=Path, required=True, help="the model folder to write"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an older model folder")
    return parser


def _steps(text: str) -> list[int]:
    """`100,200` as numbers, each once."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text[:60]!r}, expected numbers such as 100,200")
    return sorted({int(part) for part in parts})
