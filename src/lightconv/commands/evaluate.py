"""`lightconv evaluate`, `tune`, `shortlist` and `speed`: a model scored, its search chosen."""

import json
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from lightconv.commands.parser import PREPARED, Parser
from lightconv.config import to_json
from lightconv.console import Display, print_rows, print_text, tell
from lightconv.data.prepared import Prepared
from lightconv.data.text import Notes, read_lines, side_by_side
from lightconv.decode.options import TextOptions, find_model
from lightconv.decode.speed import ROUNDS, measure_speed
from lightconv.device import choose_device
from lightconv.evaluate.bootstrap import SAMPLES, SEED, Comparison, paired_bootstrap
from lightconv.evaluate.metrics import (
    METRICS,
    ChrF,
    Metric,
    SacreBLEU,
    Score,
    Summed,
    TokenizedBLEU,
    digest_lines,
    find_metric,
)
from lightconv.files import write_file

if TYPE_CHECKING:
    from lightconv.evaluate.comparison import Evaluation, Report
    from lightconv.evaluate.system import Outputs
    from lightconv.models import Seq2Seq

# Measures of texts by default.
DEFAULT = ("sacrebleu", "chrf")
# Options of outputs, which a language model has not; and further ones of a model.
SEARCH_OPTIONS = ("compare", "ensemble", "quantize", "engine", "out", "batch_size")
OUTPUT_OPTIONS = ("metric", "against", *SEARCH_OPTIONS)
MODEL_OPTIONS = ("data", "split", "beam", "set", "floor", "limit", "overwrite", *SEARCH_OPTIONS)


def evaluate(argv: Sequence[str]) -> None:
    parser = _parser()
    options = parser.parse(argv)
    if not 0 <= options.seed < 1 << 32:
        raise ValueError(f"--seed {options.seed}, expected 0 to {(1 << 32) - 1}")
    if options.model is not None:
        _evaluate_model(parser, options)
        return
    if not options.hypotheses or not options.references:
        raise ValueError(
            "nothing to evaluate, expected MODEL --data DIR, or --hypotheses FILE and "
            "--references FILE. `lightconv evaluate --help` explains"
        )
    for name in parser.given(options, *MODEL_OPTIONS):
        raise ValueError(f"{name} is for a model, expected MODEL before it")
    metrics = [find_metric(name, options.target_lang) for name in options.metric or DEFAULT]
    for metric in metrics if options.against and options.metric else ():
        if not isinstance(metric, Summed):
            known = ", ".join(name for name, each in METRICS.items() if isinstance(each, Summed))
            raise ValueError(f"{metric.name} cannot be compared by --against, expected {known}")
    if options.against:
        metrics = [metric for metric in metrics if isinstance(metric, Summed)]
    for result in _results(metrics, options):
        print(json.dumps(result.plain()) if options.format == "jsonl" else result, flush=True)


def _evaluate_model(parser: Parser, options: Namespace) -> None:
    _check_model(parser, options)

    from lightconv.evaluate.comparison import Evaluation

    text = TextOptions(engine=options.engine or "auto", quantize=options.quantize or "none")
    if options.batch_size is not None:  # whatever the lengths of the sentences are
        text = replace(text, max_sentences=options.batch_size, max_tokens=1 << 40)
    same = ("model", "data", "against", "ensemble", "compare", "limit", "samples", "seed")
    evaluation = Evaluation(
        **{name: getattr(options, name) for name in same},
        split=options.split or _find_split(options.data),
        settings=[*options.set, *([] if options.beam is None else [f"beam={options.beam}"])],
        metrics=options.metric,
        baselines=options.floor,
        text=text,
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
        return
    print_rows(list(_describe(evaluation, report).items()))
    print()
    header = ("metric", *report.scores)
    print_rows(list(_table(report)), header, header[1:])
    if options.details or report.comparisons or not sys.stdout.isatty():
        print()
        for line in (*next(iter(report.scores.values())), *report.comparisons):
            print_text(str(line))


def _find_split(data: Path) -> str:
    """The test split, or that of validation where there is no test."""
    if "test" in Prepared.open(data).contents.splits:
        return "test"
    tell(f"note: {data} has no test split: using validation data, which training has seen")
    return "valid"


def _check_model(parser: Parser, options: Namespace) -> None:
    if options.data is None:
        raise ValueError("--data DIR is needed with a model, the folder that `prepare` wrote")
    if options.hypotheses or options.references:
        raise ValueError("--hypotheses and --references are files, expected none with a model")
    if options.compare and options.quantize in (None, "none"):
        raise ValueError("--compare without --quantize int8, expected both")
    folder = find_model(options.model)
    for name in parser.given(options, *(() if folder.pairs else OUTPUT_OPTIONS)):
        raise ValueError(f"{name} is for outputs, but {folder.path} is a language model")
    if options.out is not None and options.out.exists():
        if not options.overwrite:
            raise ValueError(f"{options.out} exists. Choose another name, or use --overwrite")
        options.out.unlink()


def _describe(evaluation: "Evaluation", report: "Report") -> dict[str, str]:
    from lightconv.evaluate.system import describe_search

    facts = {
        "model": " + ".join(str(folder.path) for folder in evaluation.folders),
        "data": f"{evaluation.data} ({evaluation.split})",
    }
    outputs, exact = report.outputs, report.exact
    if outputs is None:
        return facts
    quantize = "" if evaluation.text.quantize == "none" else f", {evaluation.text.quantize}"
    reason = outputs.reason.partition(": ")[2]
    search = describe_search(evaluation.decode)
    facts |= {
        "lines": f"{evaluation.count:,}",
        "search": ", ".join(f"{name} {value}" for name, value in search.items()),
        "engine": outputs.engine + quantize + (f" ({reason})" if reason else ""),
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
    rates = f"{count / seconds:,.1f} sentences/s, {outputs.tokens / seconds:,.0f} tokens/s"
    return f"{seconds:.1f} s, {rates}"


def _table(report: "Report") -> Iterator[list[str]]:
    for scores in zip(*report.scores.values(), strict=True):
        name = scores[0].signature.name
        yield [name, *(f"{score.value:.2f}" for score in scores)]
        for part in ("rouge1", "rouge2") if name == "rouge" else ():
            yield [f"  {part}", *(f"{score.parts[part]:.2f}" for score in scores)]


def _results(metrics: Sequence[Metric], options: Namespace) -> Iterator[Score | Comparison]:
    """Scores of files, or comparisons with another file."""
    against = [options.against] if options.against else []
    notes, paths = Notes(), [options.hypotheses, *options.references, *against]
    lines = side_by_side(paths, partial(read_lines, notes=notes))
    hypotheses, *others = map(list, zip(*lines, strict=True))
    for warning in (notes.warning(), *_doubts(metrics, hypotheses)):
        if warning is not None:
            tell(f"warning: {warning}")
    references = others[: len(options.references)]
    compare = partial(paired_bootstrap, samples=options.samples, seed=options.seed)
    for metric in metrics:
        found: Score | Comparison
        if against and isinstance(metric, Summed):
            found = compare(metric, hypotheses, others[-1], *references)
        else:
            found = metric.score(hypotheses, *references)
        signature = found.signature.extend({"texts": digest_lines(*references)})
        yield replace(found, signature=signature)


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


def _parser() -> Parser:
    parser = Parser(
        "evaluate",
        "Scores a model on prepared data, or texts against references; every score is signed. "
        "--against compares a second system by paired bootstrap resampling (Koehn, 2004).",
        "lightconv evaluate runs/first --data data/debian --split test",
        "lightconv evaluate my-model --data data/debian --floor --against other-model",
        "lightconv evaluate my-model --data data/debian --quantize int8 --compare",
        "lightconv evaluate --hypotheses out.txt --references ref.txt",
        "lightconv evaluate --hypotheses out.tok --references ref.tok --metric tokenized_bleu",
        "lightconv evaluate --hypotheses out.txt --references ref.txt --against baseline.txt",
    )
    add = parser.add
    parser.add_search("[MODEL]")
    add("--data DIR", PREPARED)
    add("--split NAME", "default: test, or valid where there is no test")
    add("--batch-size N", "sentences of a batch (default: at most 64, and 4,096 tokens)")
    add("--floor", "also score baselines: a copy of the source, the target of the nearest source")
    parser.share("--limit")
    add("--out FILE", "write the outputs there")
    add("--overwrite", "replace an older FILE")
    add("--compare", "with --quantize int8: decode in float32 too, and compare scores and speeds")
    add("--hypotheses FILE", "outputs, one per line; .gz, .bz2, .xz are unpacked")
    add("--references FILE ...", "may be given several times")
    defaults = f"{', '.join(METRICS)}; default: {' and '.join(DEFAULT)}"
    add("--metric NAME ...", f"may be given several times: {defaults}")
    add("--target-lang LANG", "zh: cut Chinese as sacrebleu does for it")
    add("--against FILE", "outputs of another system for the same lines, or another model")
    add("--samples N", f"default: {SAMPLES}", default=SAMPLES)
    add("--seed N", f"default: {SEED}", default=SEED, type=int)
    add("--format text|jsonl", "json is another name of jsonl", default="text")
    add("--details", "signatures on a terminal too; elsewhere they are always there")
    return parser


def tune(argv: Sequence[str]) -> None:
    parser = Parser(
        "tune",
        "Chooses length penalty and, for a run, the number of averaged checkpoints on validation "
        "data, and writes the choice into the model folder (RUN/model for a run).",
        "lightconv tune runs/first --data data/debian",
        "lightconv tune my-model --data data/debian --alphas 0.4,0.6,0.8,1.0 --limit 500",
        "lightconv tune my-model --data data/cnn --grid max_len_plus=100,120,140 --dry-run",
    )
    parser.share("MODEL", "--data", "--split", "--limit", "--dry-run", "--device", "--format")
    parser.add("--alphas A,B,C", "length penalties (default: 0 to 2)", type=_numbers, default=())
    parser.add("--counts A,B,C", "numbers of checkpoints (default: 1 to 20)", default=())
    parser.add("--grid NAME=A,B,C ...", "of the search, such as max_len_plus=100,140", type=_values)
    parser.add("--metric NAME", "default: the one of the task")
    options = parser.parse(argv)

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
    print_rows(rows, header, header[1:])
    if not options.dry_run:
        tuner.write(best)


def shortlist(argv: Sequence[str]) -> None:
    parser = Parser(
        "shortlist",
        "Makes a lexical shortlist from the training data: the words that a source may be "
        "translated with. Prints what it costs on validation data, and writes it into the model "
        "folder, where `lightconv translate --shortlist` finds it.",
        "lightconv shortlist my-model --data data/debian",
        "lightconv shortlist my-model --data data/debian --best 100 --limit 500 --dry-run",
    )
    parser.share("MODEL", "--data", "--split", "--limit", "--dry-run")
    parser.add("--best N", "words of each source token (default: 50)", default=50)
    parser.add("--always N", "most frequent words, for every source (default: 100)", default=100)
    parser.add("--quantize none|int8|bf16", "linear layers in 8 or 16 bits", default="none")
    options = parser.parse(argv)

    from safetensors.torch import save

    from lightconv.decode.shortlist import SHORTLIST_FILE, make_shortlist
    from lightconv.evaluate.system import Examples, open_model
    from lightconv.evaluate.tune import choose_metric

    prepared = Prepared.open(options.data)
    folder, decode = open_model(options.model, prepared)
    if not folder.pairs:
        raise ValueError(f"{folder.path} is a language model, expected a model of pairs")
    train = prepared.store("train")
    pairs = (train[row] for row in range(len(train)))
    made = make_shortlist(pairs, folder.config.vocab_sizes, options.best, options.always)
    examples = Examples(prepared, options.split, options.limit)
    words = [len(made.choose(ids)) for ids in examples.sources()]
    metric, model = choose_metric(prepared, None), cast("Seq2Seq", folder.load())
    rows = []
    for title, own in (("all words", None), ("shortlist", made)):
        text = TextOptions(quantize=options.quantize, shortlist=own is not None)
        how = {"options": text, "shortlist": own}
        outputs, _, (score,) = examples.evaluate(model, decode, [metric], **how)
        size = folder.config.vocab_sizes[1] if own is None else sum(words) / max(1, len(words))
        rate = f"{examples.count / outputs.seconds:,.1f}"
        rows.append([title, f"{size:,.0f}", f"{score.value:.2f}", rate])
    print_rows(rows, ["", "words", metric.name, "sentences/s"], ["words"])
    print(f"\nloss: {float(rows[0][2]) - float(rows[1][2]):.2f} {metric.name}")
    if not options.dry_run:
        folder.set_file(SHORTLIST_FILE, save(made._asdict()))


def speed(argv: Sequence[str]) -> None:
    parser = Parser(
        "speed",
        "Measures the decoding speed of models of one vocabulary: the same sentences, engine and "
        "threads, outputs as long as their sources, in interleaved rounds; their median counts.",
        "lightconv speed runs/first runs/second --data data/mine --beam 4 --batch-size 256",
        "lightconv speed my-model other-model --data data/mine --beam 1 --batch-size 1 --limit 100",
    )
    add = parser.add
    add("MODEL ...", "model folders, or runs")
    parser.share("--data", "--limit", "--device", "--format")
    add("--split NAME", "default: test", default="test")
    add("--beam N", "default: 4", default=4)
    add("--batch-size N", "sentences of a batch (default: 256)", default=256)
    add("--rounds N", f"default: {ROUNDS}", default=ROUNDS)
    add("--out FILE", "also write the seconds of all rounds there, as JSON")
    options = parser.parse(argv)

    from lightconv.evaluate.system import Examples, open_model

    prepared, device = Prepared.open(options.data), choose_device(options.device)
    models = [open_model(path, prepared)[0].load(device) for path in options.model]
    sources = list(Examples(prepared, options.split, options.limit).sources())
    how = {name: getattr(options, name) for name in ("split", "beam", "batch_size", "rounds")}
    with Display() as display:
        show = partial(display.show, "rounds", total=options.rounds)
        found = measure_speed(models, sources, **how, show=show, tell=tell)
    print_rows(list(found.speeds[0].facts().items()))
    print()
    header = ("model", "sentences/s (lowest to highest)", "tokens/s", "ratio to the first")
    rows = []
    for place, (path, each) in enumerate(zip(options.model, found.speeds, strict=True)):
        ratio = f"{found.ratio(place):.3f}"
        rates = each.show("sentences/s", 1), f"{each.rates('tokens/s')[0]:,.1f}"
        rows.append([str(path), *rates, ratio])
    print_rows(rows, header, header[1:])
    if options.out is not None:
        write_file(options.out, to_json(found).encode())


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
