"""`lightconv evaluate`: signed scores of texts, and of one system against another."""

import json
import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightconv.commands.parser import Parser
from lightconv.data.text import Notes, first_gap, read_lines
from lightconv.evaluate.bleu import ChrF, SacreBLEU, TokenizedBLEU
from lightconv.evaluate.bootstrap import SAMPLES, SEED, Comparison, Summed, paired_bootstrap
from lightconv.evaluate.metrics import METRICS, find_metric
from lightconv.evaluate.signature import Score

if TYPE_CHECKING:
    from lightconv.evaluate.metrics import Metric

# What is scored when nothing else is asked for.
DEFAULT = ("sacrebleu", "chrf")
# What can be said of a model only.
MODEL_OPTIONS = (
    *("data", "split", "beam", "set", "floor", "limit", "out", "overwrite"),
    *("engine", "quantize", "compare", "ensemble"),
)


def main(argv: Sequence[str]) -> int:
    """Reads the texts, prints one line for each metric."""
    options = _parser().parse(argv)
    if options.samples < 1:
        raise ValueError(f"--samples {options.samples}, expected at least 1")
    if not 0 <= options.seed < 1 << 32:
        raise ValueError(f"--seed {options.seed}, expected 0 to {(1 << 32) - 1}")
    if options.model is not None:
        return _evaluate_model(options)
    if not options.hypotheses or not options.references:
        raise ValueError(
            "nothing to evaluate, expected MODEL --data DIR, or --hypotheses FILE and "
            "--references FILE. `lightconv evaluate --help` explains"
        )
    for name in MODEL_OPTIONS:
        if getattr(options, name) not in (None, False, []):
            raise ValueError(f"--{name} is for a model, expected MODEL before it")
    metrics = [find_metric(name, options.target_lang) for name in options.metric or DEFAULT]
    if options.against:
        metrics = _comparable(metrics, chosen=bool(options.metric))
    for result in _results(metrics, options):
        print(json.dumps(result.plain()) if options.format == "jsonl" else result, flush=True)
    return 0


def _evaluate_model(options: Namespace) -> int:
    """Decodes a split and scores it."""
    if options.data is None:
        raise ValueError("--data DIR is needed with a model, the folder that `prepare` wrote")
    if options.hypotheses or options.references:
        raise ValueError("--hypotheses and --references are files, expected none with a model")
    if options.beam is not None and options.beam < 1:
        raise ValueError(f"--beam {options.beam}, expected at least 1")
    if options.out is not None and options.out.exists():
        if not options.overwrite:
            raise ValueError(f"{options.out} exists. Choose another name, or say --overwrite")
        options.out.unlink()

    # These load torch, which takes its time: mistakes above are answered at once.
    from lightconv.decode.options import TextOptions
    from lightconv.device import choose_device
    from lightconv.evaluate.report import Request, evaluate

    settings = [*options.set, *([] if options.beam is None else [f"beam={options.beam}"])]
    request = Request(
        model=options.model,
        data=options.data,
        split=options.split or "test",
        settings=settings,
        metrics=options.metric,
        against=options.against,
        ensemble=options.ensemble,
        compare=options.compare,
        floor=options.floor,
        limit=options.limit,
        out=options.out,
        samples=options.samples,
        seed=options.seed,
        text=TextOptions(engine=options.engine or "auto", quantize=options.quantize or "none"),
    )
    evaluate(request, choose_device(options.device)).print(options.format)
    return 0


def _results(metrics: "Sequence[Metric]", options: Namespace) -> "Iterable[Score | Comparison]":
    against = [options.against] if options.against else []
    hypotheses, *others = _read([options.hypotheses, *options.references, *against])
    for warning in _doubts(metrics, hypotheses):
        print(f"warning: {warning}", file=sys.stderr)
    if not against:
        for metric in metrics:
            yield metric.score(hypotheses, *others)
        return
    *references, baseline = others
    for metric in metrics:
        if isinstance(metric, Summed):
            yield paired_bootstrap(
                metric,
                hypotheses,
                baseline,
                *references,
                samples=options.samples,
                seed=options.seed,
            )


def _doubts(metrics: "Sequence[Metric]", hypotheses: Sequence[str]) -> Iterable[str]:
    """Whether the texts are of the kind that each metric expects, judged by their full stops."""
    half = len(hypotheses) / 2
    apart = sum(line.endswith(" .") for line in hypotheses) > half
    joined = sum(line.endswith(".") and not line.endswith(" .") for line in hypotheses) > half
    for metric in metrics:
        if apart and isinstance(metric, SacreBLEU | ChrF):
            yield f"the hypotheses seem to be tokenised, {metric.name} expects plain text"
        if joined and isinstance(metric, TokenizedBLEU):
            yield f"the hypotheses seem not to be tokenised, {metric.name} expects that they are"


def _comparable(metrics: "Sequence[Metric]", *, chosen: bool) -> "list[Metric]":
    """Those that can be resampled; ValueError if the user chose one that cannot."""
    able: list[Metric] = [metric for metric in metrics if isinstance(metric, Summed)]
    for metric in metrics if chosen else ():
        if metric not in able:
            known = ", ".join(name for name, each in METRICS.items() if isinstance(each, Summed))
            raise ValueError(f"{metric.name} cannot be compared by --against, expected {known}")
    return able


def _read(paths: Sequence[Path]) -> list[list[str]]:
    """The lines of each file; ValueError if one has more than another."""
    notes = Notes()
    texts = [list(read_lines(path, notes)) for path in paths]
    warning = notes.warning()
    if warning:
        print(f"warning: {warning}", file=sys.stderr)
    for path, lines in zip(paths[1:], texts[1:], strict=True):
        if len(lines) != len(texts[0]):
            gap = first_gap([len(line) for line in texts[0]], [len(line) for line in lines])
            raise ValueError(
                f"{paths[0]} has {len(texts[0])} lines and {path} has {len(lines)}, expected as "
                f"many. They seem to part at line {gap}"
            )
    return texts


def _parser() -> Parser:
    parser = Parser(
        "evaluate",
        "Scores a model on prepared data the way its set-up is scored: the search of its recipe, "
        "subwords removed, the paper's measure and the usual ones. Or scores texts against "
        "references, line by line. Every score is printed with a signature of all that influenced "
        "it. With --against, a second system is compared by paired bootstrap resampling (Koehn, "
        "2004).",
        "lightconv evaluate runs/first --data data/debian --split test",
        "lightconv evaluate my-model --data data/debian --floor --against other-model",
        "lightconv evaluate my-model --data data/debian --quantize int8 --compare",
        "lightconv evaluate --hypotheses out.txt --references ref.txt",
        "lightconv evaluate --hypotheses out.tok --references ref.tok --metric tokenized_bleu",
        "lightconv evaluate --hypotheses out.txt --references ref.txt --against baseline.txt",
    )
    parser.add_argument(
        "model", metavar="MODEL", type=Path, nargs="?", help="a model folder, or a run"
    )
    parser.add_argument("--data", metavar="DIR", type=Path, help="a folder of `lightconv prepare`")
    parser.add_argument("--split", metavar="NAME", help="default: test")
    parser.add_argument("--beam", metavar="N", type=int, help="default: the model's own")
    parser.add_settings(
        "change another value of the search, such as alpha=0.6", metavar="NAME=VALUE"
    )
    parser.add_argument(
        "--floor",
        action="store_true",
        help="beside it: the source as output, and what training says of the nearest source",
    )
    parser.add_argument(
        "--ensemble",
        metavar="MODEL",
        type=Path,
        action="append",
        default=[],
        help="another model of the same data: the mean of all is searched; may be repeated",
    )
    parser.add_argument("--limit", metavar="N", type=int, help="only the first N lines")
    parser.add_argument("--out", metavar="FILE", type=Path, help="write the outputs there")
    parser.add_argument("--overwrite", action="store_true", help="replace an older FILE")
    parser.add_device()
    parser.add_argument("--engine", choices=["auto", "native", "torch"], help="default: auto")
    parser.add_argument("--quantize", choices=["none", "int8"], help="default: none")
    parser.add_argument(
        "--compare",
        action="store_true",
        help="with --quantize int8: decode in float32 too; scores, speeds and paired bootstrap",
    )
    parser.add_argument(
        "--hypotheses",
        metavar="FILE",
        type=Path,
        help="outputs, one per line; .gz, .bz2, .xz are unpacked",
    )
    parser.add_argument(
        "--references",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="may be given several times",
    )
    parser.add_argument(
        "--metric",
        metavar="NAME",
        action="append",
        default=[],
        help=f"may be given several times: {', '.join(METRICS)}; default: {' and '.join(DEFAULT)}",
    )
    parser.add_argument(
        "--target-lang", metavar="LANG", help="zh: cut Chinese as sacrebleu does for it"
    )
    parser.add_argument(
        "--against",
        metavar="FILE",
        type=Path,
        help="outputs of another system for the same lines; with a model also another model",
    )
    parser.add_argument(
        "--samples", metavar="N", type=int, default=SAMPLES, help=f"default: {SAMPLES}"
    )
    parser.add_argument("--seed", metavar="N", type=int, default=SEED, help=f"default: {SEED}")
    parser.add_argument("--format", choices=["text", "jsonl"], default="text", help="default: text")
    return parser
