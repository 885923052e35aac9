"""`lightconv average`: checkpoints of a run become a model folder."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightconv.commands.parser import Parser
from lightconv.config import from_dict, read_plain
from lightconv.config.errors import ConfigError
from lightconv.console import print_groups
from lightconv.models.config import ModelConfig
from lightconv.train.config import TrainConfig

if TYPE_CHECKING:
    from lightconv.train.checkpoints import Checkpoints

# As many as the paper takes for IWSLT.
LAST = 10
# Of a run's configuration, the tables that a model folder has too.
TABLES = ("task", "decode")


def main(argv: Sequence[str]) -> int:
    """Averages, writes the folder, prints what is in it."""
    options = _parser().parse(argv)
    _check_counts(options.last, options.best)
    run: Path = options.run
    config, schedule, tables = read_run(run)

    # These load torch, which takes its time: mistakes above are answered at once.
    from lightconv.files import inside
    from lightconv.models.folder import build_empty, check_free, save
    from lightconv.models.tensors import compare, fill, parameters
    from lightconv.train.average.mean import average
    from lightconv.train.checkpoints import FOLDER, Checkpoints
    from lightconv.train.data import MODEL_FILES

    check_free(options.out, overwrite=options.overwrite)
    checkpoints = Checkpoints(run / FOLDER, writer=False)
    steps = choose(checkpoints, schedule, last=options.last, best=options.best, steps=options.steps)
    print(f"averaging {len(steps)} checkpoints of {run}", file=sys.stderr, flush=True)
    folders = checkpoints.folders()
    tensors = average([folders[step] for step in steps], ema=options.ema)
    model = build_empty(config)
    wanted = {name: tuple(tensor.shape) for name, tensor in parameters(model).items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    compare(folders[steps[0]], str(run / "config.json"), wanted, found)
    fill(model, tensors)
    files = {name: inside(run, name) for name in MODEL_FILES if (run / name).exists()}
    save(model, options.out, files=files, tables=tables, overwrite=options.overwrite)
    rows = [
        ("steps", ", ".join(map(str, steps))),
        ("parameters", f"{sum(tensor.numel() for tensor in tensors.values()):,}"),
        ("folder", str(options.out)),
        ("files", ", ".join(sorted(path.name for path in options.out.iterdir()))),
    ]
    print_groups({"": rows}, ("", ""), ())
    return 0


def read_run(run: Path) -> tuple[ModelConfig, TrainConfig, dict[str, Any]]:
    """Model and training of a run, and the tables of its config.json that a model folder has."""
    if not run.is_dir():
        raise ValueError(f"there is no folder {run}, expected one that `lightconv train` wrote")
    path = run / "config.json"
    data = read_plain(path)
    if not isinstance(data, dict):
        raise ValueError(f"{path}: expected a table")
    try:
        model: ModelConfig = from_dict(ModelConfig, data.get("model"), "model")
        train: TrainConfig = from_dict(TrainConfig, data.get("train"), "train")
    except ConfigError as error:
        raise ValueError(f"{path}: {error}") from None
    return model, train, {name: data[name] for name in TABLES if isinstance(data.get(name), dict)}


def choose(
    checkpoints: "Checkpoints",
    config: TrainConfig,
    *,
    last: int | None = None,
    best: int | None = None,
    steps: Sequence[int] | None = None,
) -> list[int]:
    """Steps in ascending order: those named, the best, or the last; ValueError if some lack.

    The last are those of a run that nobody stopped: what a stop left in between is not among them.
    """
    from lightconv.train.folder import is_regular

    present = checkpoints.steps()
    listed = ", ".join(map(str, present)) or "none"
    if steps is not None:
        missing = [step for step in steps if step not in present]
        if missing:
            raise ValueError(
                f"{checkpoints.folder} has no checkpoint of step {missing[0]}; there are: {listed}"
            )
        return sorted(steps)
    known = [step for step in reversed(present) if is_regular(step, config)]
    count, option = last or LAST, "--last"
    if best is not None:
        known, count, option = checkpoints.ranking(), best, "--best"
    if len(known) < count:
        kind = "checkpoints with a score" if best is not None else "regular checkpoints"
        remedy = f". Say {option} {len(known)}" if known else ""
        raise ValueError(f"{checkpoints.folder} has {len(known)} {kind}, expected {count}{remedy}")
    return sorted(known[:count])


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


def _check_counts(*counts: int | None) -> None:
    for option, count in zip(("--last", "--best"), counts, strict=True):
        if count is not None and count < 1:
            raise ValueError(f"{option} {count} must be at least 1")


def _steps(text: str) -> list[int]:
    """`100,200` as numbers, each once."""
    import argparse

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text[:60]!r}, expected numbers such as 100,200")
    return sorted({int(part) for part in parts})
