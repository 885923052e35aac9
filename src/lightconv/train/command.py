"""`lightconv train` and `lightconv plot`."""

import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lightconv.cli import Parser
from lightconv.config import to_dict
from lightconv.models.config import ModelConfig, Seq2SeqConfig
from lightconv.paper.find import find_recipe
from lightconv.printing import print_groups
from lightconv.recipe import Recipe
from lightconv.train.report import Rows, memory_rows, plan_rows, summary_rows

if TYPE_CHECKING:
    import torch

    from lightconv.train.data import TrainingData

EXIT_DIVERGED = 3
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def main(argv: Sequence[str]) -> int:
    """Trains a recipe, or goes on with it."""
    parser = _parser()
    options = parser.parse(argv)
    settings = [*options.set, *(["train.compile=true"] if options.compile else [])]
    recipe = find_recipe(options.recipe, settings)
    wanted = find_recipe(options.recipe).train.tokens_per_update
    check_smoothing(recipe)
    max_seconds = None if options.max_time is None else read_duration(options.max_time)
    if not options.dry_run and (options.data is None or options.out is None):
        parser.error("--data DIR and --out RUN are needed, unless --dry-run is given")

    # These load torch, which takes its time: mistakes above are answered at once.
    from lightconv.paper.params import total
    from lightconv.train.data import PreparedData
    from lightconv.train.estimate import estimate
    from lightconv.train.folder import model_folder, open_run
    from lightconv.train.guard import DivergenceError
    from lightconv.train.runner import run
    from lightconv.train.signals import Stop

    device = choose_device(options.device)
    plan = partial(
        plan_rows,
        recipe.train,
        parameters=total(recipe.model),
        device=str(device),
        recipe_tokens=wanted,
    )
    if options.dry_run:
        _print([*plan(), *memory_rows(estimate(recipe.model, recipe.train))])
        return 0
    with Stop(max_seconds) as stop:
        data = PreparedData(options.data)
        check_vocabulary(recipe.model, data, options.data)
        data.verify()
        effective = data.tokens_per_update(recipe.train)
        open_run(
            options.out, recipe, overwrite=options.overwrite, allow_changes=options.allow_changes
        )
        _print(plan(effective=effective))
        _warn(recipe, device)
        try:
            outcome = run(
                options.out,
                data,
                recipe.model,
                recipe.train,
                device=device,
                stop=stop,
                tables={"task": to_dict(recipe.task), "decode": to_dict(recipe.decode)},
                tensorboard=options.tensorboard,
            )
        except DivergenceError as error:
            _tell(f"error: {error}")
            return EXIT_DIVERGED
    if outcome.code:
        _tell(
            f"stopped at step {outcome.step:,}, saved as {outcome.checkpoint}. The same command "
            "goes on from there"
        )
        return outcome.code
    _print(summary_rows(outcome, model_folder(options.out)))
    return 0


def plot(argv: Sequence[str]) -> int:
    """Draws the curves of runs."""
    parser = Parser(
        "plot",
        "Draws loss, metric and learning rate of one or more runs into one picture. A run that is "
        "still going on can be drawn too.",
        "lightconv plot runs/iwslt                                # runs/iwslt/plot.png",
        "lightconv plot runs/light runs/dynamic --out both.png",
    )
    parser.add_argument(
        "runs", metavar="RUN", type=Path, nargs="+", help="folders of `lightconv train`"
    )
    parser.add_argument("--out", metavar="FILE", type=Path, help="the picture: .png, .svg or .pdf")
    options = parser.parse(argv)

    from lightconv.train.plot import PLOT_FILE, draw

    out = options.out or options.runs[0] / PLOT_FILE
    draw(options.runs, out)
    print(out)
    return 0


def choose_device(name: str) -> "torch.device":
    """`auto` takes a GPU if there is one; what is asked for by name must be there."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    elif name == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "--device cuda: no CUDA device is available, expected one. `lightconv doctor` shows "
            "what there is; --device auto takes it"
        )
    return torch.device(name)


def check_vocabulary(model: ModelConfig, data: "TrainingData", where: Path) -> None:
    """Raises ValueError unless the model has exactly the ids of the data."""
    pairs = isinstance(model, Seq2SeqConfig)
    if pairs != data.pairs:
        kinds = ("texts", "pairs of source and target")
        raise ValueError(
            f"{where} holds {kinds[data.pairs]}, expected {kinds[pairs]} by the recipe. Give the "
            "data that it was made for"
        )
    if isinstance(model, Seq2SeqConfig):
        wanted = {"source_vocab": model.source_vocab, "target_vocab": model.target_vocab}
    else:
        wanted = {"vocab": model.vocab}
    found = dict(zip(wanted, data.sizes, strict=False))
    if found != wanted:
        remedy = " ".join(f"--set model.{name}={size}" for name, size in found.items())
        raise ValueError(
            f"vocabulary ({where}): {' and '.join(map(str, found.values()))} ids, expected "
            f"{' and '.join(map(str, wanted.values()))} by the recipe. Give the data that it was "
            f"made for, or {remedy}"
        )


def check_smoothing(recipe: Recipe) -> None:
    """Raises ValueError for a loss that does not exist."""
    smoothing = recipe.train.label_smoothing
    if smoothing > 0.0 and recipe.model.adaptive is not None:
        raise ValueError(
            f"train.label_smoothing={smoothing} must be 0 with model.adaptive, which scores no "
            "words but those of the target's band. Say --set train.label_smoothing=0"
        )


def read_duration(text: str) -> float:
    """`90s`, `30m`, `8h`, `1.5d`, or a number of seconds."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhd]?)", text.strip())
    if found is None or float(found[1]) == 0.0:
        raise ValueError(f"--max-time {text[:60]!r}, expected a time such as 90s, 30m, 8h or 2d")
    return float(found[1]) * UNITS[found[2] or "s"]


def _parser() -> Parser:
    parser = Parser(
        "train",
        "Trains a model as its recipe says and leaves it in RUN/model. A run that exists already "
        "goes on where it was, bit for bit: after a crash, after Ctrl-C (which saves first), after "
        "SIGTERM. Exit codes: 0 done, 2 something given cannot be used, 3 training diverged, 75 "
        "stopped and saved, 130 Ctrl-C.",
        "lightconv train debian-en-de-dynamicconv-small --data data/debian --out runs/first",
        "lightconv train my.toml --data data/mine --out runs/mine --set train.max_steps=5000",
        "lightconv train wmt-en-de-dynamicconv --dry-run",
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a name of `lightconv list`, or a file")
    parser.add_argument("--data", metavar="DIR", type=Path, help="a folder of `lightconv prepare`")
    parser.add_argument("--out", metavar="RUN", type=Path, help="the folder of the run")
    parser.add_argument(
        "--set",
        metavar="PATH=VALUE",
        action="append",
        default=[],
        help="change a value of the recipe, as often as you like",
    )
    parser.add_argument(
        "--device", choices=["auto", "cpu", "cuda"], default="auto", help="default: auto"
    )
    parser.add_argument(
        "--compile", action="store_true", help="use torch.compile; the same as train.compile=true"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print parameters, memory and steps, and read no data",
    )
    parser.add_argument(
        "--max-time", metavar="TIME", help="stop and save after that time: 90s, 30m, 8h, 2d"
    )
    parser.add_argument(
        "--tensorboard", action="store_true", help="write TensorBoard files into RUN/tensorboard"
    )
    parser.add_argument("--overwrite", action="store_true", help="remove an older run first")
    parser.add_argument(
        "--allow-changes",
        action="store_true",
        help="go on with another length, rate, ... of train or decode; the model stays",
    )
    return parser


def _warn(recipe: Recipe, device: "torch.device") -> None:
    if recipe.train.precision == "fp16" and device.type == "cpu":
        _tell(
            "note: processors compute fp16 very slowly; --set train.precision=fp32 is much faster"
        )


def _print(rows: Rows) -> None:
    print_groups({"": rows}, ("", ""), ())
    sys.stdout.flush()


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
