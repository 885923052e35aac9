"""`lightconv tune`: length penalty and averaged checkpoints, chosen on validation data."""

from argparse import ArgumentTypeError
from collections.abc import Sequence

from lightconv.commands.parser import Parser
from lightconv.console import print_groups


def main(argv: Sequence[str]) -> int:
    """Prints the score of every trial and writes the best."""
    parser = Parser(
        "tune",
        "Chooses length penalty and, for a run, the number of averaged checkpoints on validation "
        "data, and writes the choice into the model folder (RUN/model for a run).",
        "lightconv tune runs/first --data data/debian",
        "lightconv tune my-model --data data/debian --alphas 0.4,0.6,0.8,1.0 --limit 500",
        "lightconv tune my-model --data data/cnn --grid max_len_plus=100,120,140 --dry-run",
    )
    parser.add_model()
    parser.add_data(required=True)
    parser.add("--split NAME", "default: valid", default="valid")
    text = "length penalties to try (default: 0 to 2)"
    parser.add("--alphas A,B,C", text, type=_numbers, default=())
    text = "numbers of checkpoints to try (default: 1, 2, 3, 5, 8, 10, 15, 20)"
    parser.add("--counts A,B,C", text, default=())
    text = "also try values of another field of the search, such as max_len_plus=100,140"
    parser.add("--grid NAME=A,B,C ...", text, type=_values)
    parser.add("--metric NAME", "default: the one of the task")
    parser.add("--limit N", "only the first N lines")
    parser.add("--dry-run", "print, and write nothing")
    parser.add_device()
    options = parser.parse(argv)

    from lightconv.device import choose_device
    from lightconv.evaluate.tune import Tuner

    grid = dict(options.grid)
    same = ("split", "alphas", "counts", "metric", "limit")
    given = {name: getattr(options, name) for name in same}
    tuner = Tuner(options.model, options.data, grid=grid, **given)
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


def _numbers(text: str) -> tuple[float, ...]:
    """`0.4,1` as numbers from 0 on."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(0.0 <= number < 100.0 for number in found):
        raise ArgumentTypeError(f"{text[:60]!r}, expected numbers such as 0.4,0.6")
    return found


def _values(text: str) -> tuple[str, tuple[str, ...]]:
    """`beam=4,5` as a name and its values."""
    name, sign, values = text.partition("=")
    found = tuple(value.strip() for value in values.split(","))
    if not sign or not name or not all(found) or name == "alpha":
        hint = "--alphas has those" if name == "alpha" else "expected name=value,value"
        raise ArgumentTypeError(f"{text[:60]!r}, {hint}")
    return name, found
