"""`lightconv tune`: length penalty and averaged checkpoints, chosen on validation data."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightconv.commands.parser import Parser
from lightconv.config import from_dict, override, to_dict
from lightconv.console import print_groups
from lightconv.data.prepared import Prepared
from lightconv.decode.config import DecodeConfig
from lightconv.decode.options import FolderSettings, read_settings
from lightconv.models.folder import ModelFolder
from lightconv.train.run import Run, is_run

if TYPE_CHECKING:
    import torch

    from lightconv.decode.beam import Hypothesis
    from lightconv.evaluate.bootstrap import Summed
    from lightconv.evaluate.tune.grid import Trial
    from lightconv.models import LanguageModel, Seq2Seq

    Model = Seq2Seq | LanguageModel

# How many of the last checkpoints are tried, as far as there are so many.
COUNTS = (1, 2, 3, 5, 8, 10, 15, 20)


def main(argv: Sequence[str]) -> int:
    """Tries, prints what each was worth, writes the best."""
    options = _parser().parse(argv)
    if options.limit is not None and options.limit < 1:
        raise ValueError(f"--limit {options.limit}, expected at least 1")
    folder: Path = options.model
    of_run = is_run(folder)
    if options.counts and not of_run:
        raise ValueError(f"--counts: {folder} is no run, expected one with checkpoints")
    prepared = Prepared.open(options.data)
    prepared.store(options.split)
    settings = _run_settings(folder) if of_run else read_settings(folder)
    for name, values in options.grid:
        for value in values:
            override(settings.decode, [f"{name}={value}"])

    # These load torch, which takes its time: mistakes above are answered at once.
    from lightconv.device import choose_device
    from lightconv.evaluate.report import check_kind
    from lightconv.evaluate.tune.grid import best_trial

    device = choose_device(options.device)
    check_kind(settings, prepared)
    if not of_run and not settings.pairs:
        raise ValueError(
            f"{folder} is a language model, whose search is not scored, expected a run: of its "
            "checkpoints the number to average can be chosen"
        )
    _metric_name(prepared, options)  # an unknown measure is an error before anything is searched
    trials: list[Trial] = []
    told: list[str] = []
    for steps, model in _models(folder, options.counts, device, of_run):
        label = f"the last {len(steps)} of the checkpoints" if steps else str(folder)
        print(f"trying {label}", file=sys.stderr, flush=True)
        trials += [
            replace(trial, averaged=steps)
            for trial in _try(model, settings, prepared, options, told)
        ]
    best = best_trial(trials, settings.decode.alpha)
    _print(trials, best, options)
    if not options.dry_run:
        table = _record(best, prepared, options)
        if of_run:
            _write_model(folder, best, table)
        else:
            ModelFolder(folder).set_tables({"decode": to_dict(best.config), "tuned": table})
    return 0


def _try(
    model: "Model",
    settings: FolderSettings,
    prepared: Prepared,
    options: argparse.Namespace,
    told: list[str],
) -> "Iterator[Trial]":
    """What a model is worth, with each setting of the search; `told` are notes made already."""
    from lightconv.evaluate.forms import of_references
    from lightconv.evaluate.system import evaluate_texts, search_split
    from lightconv.evaluate.tune.grid import Trial, choose_metric, tune_search
    from lightconv.models import LanguageModel

    if isinstance(model, LanguageModel):
        score = evaluate_texts(model, prepared, options.split, most=options.limit)
        yield Trial(settings.decode, -score.value)
        return
    metric: Summed = choose_metric(prepared, options.metric)
    references = of_references(prepared, options.split).first(options.limit)
    pairs = model

    def search(config: DecodeConfig) -> "list[list[Hypothesis]]":
        found = search_split(pairs, prepared, options.split, config, most=options.limit)
        if found.decoder not in told:
            told.append(found.decoder)
            print(f"note: {found.decoder}", file=sys.stderr, flush=True)
        return found.hypotheses

    yield from tune_search(
        search,
        prepared,
        references,
        metric,
        settings.decode,
        alphas=options.alphas,
        grid=dict(options.grid),
    )


def _models(
    folder: Path, counts: Sequence[int], device: "torch.device", of_run: bool
) -> "Iterator[tuple[tuple[int, ...], Model]]":
    """The model, or for each number of checkpoints their steps and their average."""
    from lightconv.models.folder import load

    if not of_run:
        yield (), load(read_settings(folder).folder, device)
        return
    run = Run.open(folder)
    known = run.regular_steps()
    wanted = [count for count in counts or COUNTS if count <= len(known)]
    if not wanted:
        raise ValueError(
            f"{folder} has {len(known)} regular checkpoints, expected at least "
            f"{min(counts or COUNTS)}"
        )
    for count in wanted:
        steps = known[-count:]
        yield tuple(steps), run.average(steps).to(device)


def _run_settings(run: Path) -> FolderSettings:
    """What the recipe of a run says, as a model folder of it would."""
    from lightconv.models.config import Seq2SeqConfig

    found = Run.open(run)
    config, tables = found.model_config, found.recipe_tables
    decode: DecodeConfig = from_dict(DecodeConfig, tables.get("decode", {}), "decode")
    task = tables.get("task", {})
    return FolderSettings(
        folder=run,
        kind=task.get("kind", "translation"),
        pairs=isinstance(config, Seq2SeqConfig),
        target_lang=task.get("target_lang"),
        decode=decode,
    )


def _write_model(folder: Path, best: "Trial", table: dict[str, Any]) -> None:
    """RUN/model with the averaged checkpoints, and the search, that were best."""
    run = Run.open(folder)
    tables = {"decode": to_dict(best.config), "tuned": table}
    run.export(run.average(best.averaged), tables=tables, overwrite=True)


def _record(best: "Trial", prepared: Prepared, options: argparse.Namespace) -> dict[str, Any]:
    """For config.json: what was chosen, and on what."""
    return {
        "metric": _metric_name(prepared, options),
        "value": abs(best.value),
        "split": options.split,
        "data": prepared.contents.splits[options.split].digest,
        "lines": min(
            options.limit or sys.maxsize, prepared.contents.splits[options.split].examples
        ),
        "averaged": list(best.averaged),
    }


def _metric_name(prepared: Prepared, options: argparse.Namespace) -> str:
    from lightconv.evaluate.tune.grid import choose_metric

    if len(prepared.sides) == 1:
        return "perplexity"
    return choose_metric(prepared, options.metric).name


def _print(trials: "Sequence[Trial]", best: "Trial", options: argparse.Namespace) -> None:
    """A table of what was tried; * marks what was chosen."""
    grid = [name for name, _ in options.grid]
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
    from lightconv.evaluate.tune.numbers import parse_counts, parse_grid, parse_numbers

    parser.add_model()
    parser.add_argument(
        "--data", metavar="DIR", type=Path, required=True, help="a folder of `lightconv prepare`"
    )
    parser.add_argument("--split", metavar="NAME", default="valid", help="default: valid")
    parser.add_argument(
        "--alphas",
        metavar="A,B,C",
        type=parse_numbers,
        default=parse_numbers("0,0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1,1.2,1.4,1.6,1.8,2"),
        help="length penalties to try (default: 0 to 2)",
    )
    parser.add_argument(
        "--counts",
        metavar="A,B,C",
        type=parse_counts,
        default=(),
        help=f"numbers of checkpoints to try (default: {', '.join(map(str, COUNTS))})",
    )
    parser.add_argument(
        "--grid",
        metavar="NAME=A,B,C",
        type=parse_grid,
        action="append",
        default=[],
        help="also try values of another field of the search, such as max_len_plus=100,140",
    )
    parser.add_argument("--metric", metavar="NAME", help="default: the one of the task")
    parser.add_argument("--limit", metavar="N", type=int, help="only the first N lines")
    parser.add_argument("--dry-run", action="store_true", help="print, and write nothing")
    parser.add_device()
    return parser
