"""`lightconv tune`: length penalty and averaged checkpoints, chosen on validation data."""

from argparse import ArgumentTypeError
from collections.abc import Sequence
from pathlib import Path

from lightconv.commands.parser import Parser
from lightconv.console import print_groups


def main(argv: Sequence[str]) -> int:
    """Prints the score of every trial and writes the best."""
    options = _parser().parse(argv)
    if options.limit is not None and options.limit < 1:
        raise ValueError(f"--limit {options.limit}, expected at least 1")

    from lightconv.device import choose_device
    from lightconv.evaluate.tune import Tuner

    grid = dict(options.grid)
    tuner = Tuner(
        options.model,
        options.data,
        split=options.split,
        alphas=options.alphas,
        counts=options.counts,
        grid=grid,
        metric=options.metric,
        limit=options.limit,
    )
    trials = list(tuner.trials(choose_device(options.device)))
    best = tuner.best(trials)
    header = ["", "checkpoints", "alpha", *grid, "score"]
    rows = [
        [
            "*" if trial is best else "",
            str(len(trial.averaged) or "-"),
            f"{trial.config.alpha:g}",
            *(str(getattr(trial.config, name)) for name in grid),
            f"{abs(trial.value):.2f}",
        ]
        for trial in trials
    ]
    print_groups({"": rows}, header, header[1:])
    if not options.dry_run:
        tuner.write(best)
    return 0


def _parser() -> Parser:
    parser = Parser(
        "tune",
        "Chooses on validation data what the paper tunes there: the length penalty, and for a run "
        "the number of checkpoints that are averaged. Writes the choice into the model folder "
        "(RUN/model for a run), where `translate` and `evaluate` find it.",
        "lightconv tune runs/first --data data/debian",
        "lightconv tune my-model --data data/debian --alphas 0.4,0.6,0.8,1.0 --limit 500",
        "lightconv tune my-model --data data/cnn --grid max_len_plus=100,120,140 --dry-run",
    )
    parser.add_model()
    parser.add_argument(
        "--data", metavar="DIR", type=Path, required=True, help="a folder of `lightconv prepare`"
    )
    parser.add_argument("--split", metavar="NAME", default="valid", help="default: valid")
    parser.add_argument(
        "--alphas",
        metavar="A,B,C",
        type=_numbers,
        default=(),
        help="length penalties to try (default: 0 to 2)",
    )
    parser.add_argument(
        "--counts",
        metavar="A,B,C",
        type=_counts,
        default=(),
        help="numbers of checkpoints to try (default: 1, 2, 3, 5, 8, 10, 15, 20)",
    )
    parser.add_argument(
        "--grid",
        metavar="NAME=A,B,C",
        type=_values,
        action="append",
        default=[],
        help="also try values of another field of the search, such as max_len_plus=100,140",
    )
    parser.add_argument("--metric", metavar="NAME", help="default: the one of the task")
    parser.add_argument("--limit", metavar="N", type=int, help="only the first N lines")
    parser.add_argument("--dry-run", action="store_true", help="print, and write nothing")
    parser.add_device()
    return parser


def _numbers(text: str) -> tuple[float, ...]:
    """`0.4,1` as numbers from 0 on."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(0.0 <= number < 100.0 for number in found):
        raise ArgumentTypeError(f"{text[:60]!r}, expected numbers such as 0.4,0.6")
    return found


def _counts(text: str) -> tuple[int, ...]:
    """`1,5,10` as whole numbers from 1 on."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and int(part) > 0 for part in parts):
        raise ArgumentTypeError(f"{text[:60]!r}, expected numbers such as 1,5,10")
    return tuple(sorted({int(part) for part in parts}))


def _values(text: str) -> tuple[str, tuple[str, ...]]:
    """`beam=4,5` as a name and its values."""
    name, sign, values = text.partition("=")
    found = tuple(value.strip() for value in values.split(","))
    if not sign or not name or not all(found) or name == "alpha":
        hint = "--alphas has those" if name == "alpha" else "expected name=value,value"
        raise ArgumentTypeError(f"{text[:60]!r}, {hint}")
    return name, found
