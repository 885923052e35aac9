"""`lightconv evaluate`: signed scores of a model or of texts, and of one system against another."""

import json
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightconv.commands.parser import Parser
from lightconv.console import print_groups, print_rows, tell
from lightconv.data.text import Notes, check_lines, read_lines
from lightconv.evaluate.bootstrap import SAMPLES, SEED, Comparison, paired_bootstrap
from lightconv.evaluate.metrics import (
    METRICS,
    ChrF,
    Metric,
    SacreBLEU,
    Score,
    Summed,
    TokenizedBLEU,
    find_metric,
)
from lightconv.files import write_file
from lightconv.models.folder import ModelFolder

if TYPE_CHECKING:
    from lightconv.evaluate.comparison import Evaluation, Report
    from lightconv.evaluate.system import Outputs

# Measures of texts by default.
DEFAULT = ("sacrebleu", "chrf")
# Options of outputs, which a language model has not; and further ones of a model.
OUTPUT_OPTIONS = ("metric", "against", "compare", "ensemble", "quantize", "engine", "out")
MODEL_OPTIONS = ("data", "split", "beam", "set", "floor", "limit", "overwrite", *OUTPUT_OPTIONS[2:])
UNSET: tuple[object, ...] = (None, False, [])


def main(argv: Sequence[str]) -> int:
    """Prints one line for each measure, for a model after a table."""
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
        if getattr(options, name) not in UNSET:
            raise ValueError(f"--{name} is for a model, expected MODEL before it")
    metrics = [find_metric(name, options.target_lang) for name in options.metric or DEFAULT]
    for metric in metrics if options.against and options.metric else ():
        if not isinstance(metric, Summed):
            known = ", ".join(name for name, each in METRICS.items() if isinstance(each, Summed))
            raise ValueError(f"{metric.name} cannot be compared by --against, expected {known}")
    if options.against:
        metrics = [metric for metric in metrics if isinstance(metric, Summed)]
    for result in _results(metrics, options):
        print(json.dumps(result.plain()) if options.format == "jsonl" else result, flush=True)
    return 0


def _evaluate_model(options: Namespace) -> int:
    _check_model(options)

    # These load torch: mistakes above are answered at once.
    from lightconv.decode.options import TextOptions
    from lightconv.device import choose_device
    from lightconv.evaluate.comparison import Evaluation

    evaluation = Evaluation(
        model=options.model,
        data=options.data,
        split=options.split or "test",
        settings=[*options.set, *([] if options.beam is None else [f"beam={options.beam}"])],
        metrics=options.metric,
        against=options.against,
        ensemble=options.ensemble,
        compare=options.compare,
        baselines=options.floor,
        limit=options.limit,
        samples=options.samples,
        seed=options.seed,
        text=TextOptions(engine=options.engine or "auto", quantize=options.quantize or "none"),
    )
    report = evaluation.run(choose_device(options.device))
    if options.out is not None:
        write_file(options.out, "".join(f"{line}\n" for line in report.texts).encode())
    if options.format == "jsonl":
        about = {"about": _describe(evaluation, report)}
        for system, scores in report.scores.items():
            for score in scores:
                print(json.dumps(score.plain() | {"system": system} | about))
        for comparison in report.comparisons:
            print(json.dumps(comparison.plain() | about))
        return 0
    print_rows(list(_describe(evaluation, report).items()))
    print()
    header = ("metric", *report.scores)
    print_groups({"": list(_table(report))}, header, header[1:])
    print()
    for line in (*next(iter(report.scores.values())), *report.comparisons):
        print(line)
    return 0


def _check_model(options: Namespace) -> None:
    if options.data is None:
        raise ValueError("--data DIR is needed with a model, the folder that `prepare` wrote")
    if options.hypotheses or options.references:
        raise ValueError("--hypotheses and --references are files, expected none with a model")
    for name in ("beam", "limit"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} {value}, expected at least 1")
    if options.compare and options.quantize != "int8":
        raise ValueError("--compare without --quantize int8, expected both")
    folder = ModelFolder(options.model)
    for name in () if folder.pairs else OUTPUT_OPTIONS:
        if getattr(options, name) not in UNSET:
            raise ValueError(f"--{name} is for outputs, but {folder.path} is a language model")
    if options.out is not None and options.out.exists():
        if not options.overwrite:
            raise ValueError(f"{options.out} exists. Choose another name, or use --overwrite")
        options.out.unlink()


def _describe(evaluation: "Evaluation", report: "Report") -> dict[str, str]:
    """Facts about an evaluation by name."""
    from lightconv.evaluate.system import describe_search

    facts = {
        "model": " + ".join(str(folder.path) for folder in evaluation.folders),
        "data": f"{evaluation.data} ({evaluation.split})",
    }
    outputs, exact = report.outputs, report.exact
    if outputs is not None:
        quantize = evaluation.text.quantize
        reason = outputs.reason.partition(": ")[2]
        search = describe_search(evaluation.decode)
        facts |= {
            "lines": f"{evaluation.count:,}",
            "search": ", ".join(f"{name} {value}" for name, value in search.items()),
            "engine": outputs.engine
            + ("" if quantize == "none" else f", {quantize}")
            + (f" ({reason})" if reason else ""),
            "time": _describe_rate(outputs),
        }
        if exact is not None:
            facts |= {
                "time, float32": _describe_rate(exact),
                "speed": f"{exact.seconds / outputs.seconds:.2f}x of float32",
                "same outputs": f"{report.same:,} of {evaluation.count:,}",
            }
    return facts


def _describe_rate(outputs: "Outputs") -> str:
    seconds, count = outputs.seconds, len(outputs.hypotheses)
    return (
        f"{seconds:.1f} s, {count / seconds:,.1f} sentences/s, "
        f"{outputs.tokens / seconds:,.0f} tokens/s"
    )


def _table(report: "Report") -> Iterator[list[str]]:
    for scores in zip(*report.scores.values(), strict=True):
        name = scores[0].signature.name
        yield [name, *(f"{score.value:.2f}" for score in scores)]
        for part in ("rouge1", "rouge2") if name == "rouge" else ():
            yield [f"  {part}", *(f"{score.parts[part]:.2f}" for score in scores)]


def _results(metrics: Sequence[Metric], options: Namespace) -> Iterator[Score | Comparison]:
    """Scores of files, or comparisons with another file."""
    against = [options.against] if options.against else []
    hypotheses, *others = _read([options.hypotheses, *options.references, *against])
    for warning in _doubts(metrics, hypotheses):
        tell(f"warning: {warning}")
    if not against:
        for metric in metrics:
            yield metric.score(hypotheses, *others)
        return
    *references, baseline = others
    texts = (hypotheses, baseline, *references)
    for metric in metrics:
        if isinstance(metric, Summed):
            yield paired_bootstrap(metric, *texts, samples=options.samples, seed=options.seed)


def _doubts(metrics: Sequence[Metric], hypotheses: Sequence[str]) -> Iterator[str]:
    """Warnings about tokenised or plain text in the wrong place, judged by the full stops."""
    half = len(hypotheses) / 2
    apart = sum(line.endswith(" .") for line in hypotheses) > half
    joined = sum(line.endswith(".") and not line.endswith(" .") for line in hypotheses) > half
    for metric in metrics:
        if apart and isinstance(metric, SacreBLEU | ChrF):
            yield f"the hypotheses seem to be tokenised, {metric.name} expects plain text"
        if joined and isinstance(metric, TokenizedBLEU):
            yield f"the hypotheses seem not to be tokenised, {metric.name} expects that they are"


def _read(paths: Sequence[Path]) -> list[list[str]]:
    """Lines of files; ValueError if one has more than another."""
    notes = Notes()
    texts = [list(read_lines(path, notes)) for path in paths]
    if warning := notes.warning():
        tell(f"warning: {warning}")
    check_lines(paths, texts)
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
    add = parser.add_argument
    number: dict[str, Any] = {"metavar": "N", "type": int}
    file: dict[str, Any] = {"metavar": "FILE", "type": Path}
    repeated: dict[str, Any] = {"action": "append", "default": []}
    add("model", metavar="MODEL", type=Path, nargs="?", help="a model folder, or a run")
    add("--data", metavar="DIR", type=Path, help="a folder of `lightconv prepare`")
    add("--split", metavar="NAME", help="default: test")
    add("--beam", **number, help="default: the model's own")
    parser.add_settings(
        "change another value of the search, such as alpha=0.6", metavar="NAME=VALUE"
    )
    add(
        "--floor",
        action="store_true",
        help="beside it: the source as output, and what training says of the nearest source",
    )
    add(
        "--ensemble",
        metavar="MODEL",
        type=Path,
        **repeated,
        help="another model of the same data: the mean of all is searched; may be repeated",
    )
    add("--limit", **number, help="only the first N lines")
    add("--out", **file, help="write the outputs there")
    add("--overwrite", action="store_true", help="replace an older FILE")
    parser.add_device()
    add("--engine", choices=["auto", "native", "torch"], help="default: auto")
    add("--quantize", choices=["none", "int8"], help="default: none")
    add(
        "--compare",
        action="store_true",
        help="with --quantize int8: decode in float32 too; scores, speeds and paired bootstrap",
    )
    add("--hypotheses", **file, help="outputs, one per line; .gz, .bz2, .xz are unpacked")
    add("--references", **file, **repeated, help="may be given several times")
    add(
        "--metric",
        metavar="NAME",
        **repeated,
        help=f"may be given several times: {', '.join(METRICS)}; default: {' and '.join(DEFAULT)}",
    )
    add("--target-lang", metavar="LANG", help="zh: cut Chinese as sacrebleu does for it")
    add(
        "--against",
        **file,
        help="outputs of another system for the same lines; with a model also another model",
    )
    add("--samples", **number, default=SAMPLES, help=f"default: {SAMPLES}")
    add("--seed", **number, default=SEED, help=f"default: {SEED}")
    add("--format", choices=["text", "jsonl"], default="text", help="default: text")
    return parser
