"""`lightconv fit` and `demo`: from files of one's own, or fetched text, to a model."""

import textwrap
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightconv.commands.parser import Parser
from lightconv.console import Display, print_rows, show_duration, tell
from lightconv.corpora import find_entry
from lightconv.data.config import TaskKind
from lightconv.processes import EXIT_INTERRUPT

if TYPE_CHECKING:
    from lightconv.fitting.run import Decision, Fit

# Paths in a command are not broken.
WHOLE: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
DEMOS = ("translation", "lm", "summary")
USES = {"translation": "interactive", "language_model": "generate", "summarization": "summarize"}


def fit(argv: Sequence[str]) -> int:
    parser = Parser(
        "fit",
        "Makes a model of your own text in the time allowed: cleans it, splits validation and test "
        "off, chooses vocabulary, model and schedule, trains, tunes and scores. Ctrl-C leaves a "
        "model that can be used; the same command resumes, and more time improves the model.",
        "lightconv fit train.en train.fr --out my-model --time 10m",
        "lightconv fit pairs.tsv --source-lang en --target-lang fr --out my-model",
        "lightconv fit --text book.txt --out my-writer",
        "lightconv fit --summaries articles.jsonl --out my-summariser",
    )
    add = parser.add
    add("FILES ...", "two files of lines, one table (.tsv, .csv, .jsonl, .parquet), or a folder")
    kind = parser.add_mutually_exclusive_group()
    add("--text", "a language model of files of text", group=kind)
    add("--summaries", "summaries of texts: source and target as for translation", group=kind)
    add("--out MODEL", "the model folder; its work is beside it in MODEL.fit", required=True)
    add("--time TIME", "for all of it: 90s, 10m, 2h (default: 10m)", default="10m")
    add("--source-lang LANG", "default: the ending of its file, or the name of its column")
    add("--target-lang LANG", "the same")
    add("--columns NAMES", "columns of a table: source,target or text")
    add("--valid FILE", "validation text, as FILES; default: split off", nargs="+")
    add("--test FILE", "test text, as FILES; default: split off", nargs="+")
    add("--licence NAME", "for the model card, such as cc-by-4.0", default="")
    add("--size NAME", "nano, tiny, small, medium, large; default: chosen")
    add("--set PATH=VALUE ...", "change the recipe; train.max_steps replaces the time")
    parser.share("--device", "--format")
    options = parser.parse(argv)
    task: TaskKind = "translation"
    if options.text or options.summaries:
        task = "language_model" if options.text else "summarization"

    from lightconv.fitting.run import Fit, run_fit
    from lightconv.fitting.texts import read_own

    fitting = Fit(
        options.out,
        options.time,
        size=options.size,
        settings=options.set,
        about={"licence": options.licence},
        device=options.device,
        report=show_choice,
    )
    own = read_own(
        [Path(name) for name in options.files],
        task,
        valid=options.valid,
        test=options.test,
        languages=(options.source_lang, options.target_lang),
        columns=options.columns.split(",") if options.columns else (),
    )
    fitting.about["files"] = own.name
    try:
        code = run_fit(fitting, own)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPT
    if code:
        show_stop(fitting)
        return code
    show_result(fitting)
    return 0


def show_choice(choice: "Decision") -> None:
    """A line for the choice, and one for its reason."""
    print(f"{choice.what:<11} {choice.value}\n{'':11} {choice.reason}", flush=True)


def show_stop(fitting: "Fit") -> None:
    can = f"{fitting.out} can be used as it is" if fitting.out.exists() else "no model yet"
    tell(f"stopped after {show_duration(fitting.spent)}: {can}; the same command resumes")


def show_result(fitting: "Fit") -> None:
    from lightconv.fitting.card import TASKS, score_rows

    kind, state = fitting.prepared.task.kind, fitting.state
    for example in state["examples"]:
        print()
        for name, text in example.items():
            lines = textwrap.wrap(text, 68) or [""]
            print(f"{name:<11} {lines[0]}", *(f"{'':11} {line}" for line in lines[1:]), sep="\n")
    print(f"\non {state['scored']:,} held-out texts", flush=True)
    scores = [[who, f"{value:.1f}"] for who, value in score_rows(state)]
    metric = TASKS[kind][3]
    print_rows(scores, ("system", metric), (metric,))
    repeat = f"lightconv train {fitting.out / 'recipe.toml'} --data {fitting.data} --out runs/again"
    rows = {
        "the model": f"{fitting.out} ({show_duration(fitting.spent)} in all)",
        "use it": f"lightconv {USES[kind]} {fitting.out}",
        "repeat it": " \\\n".join(textwrap.wrap(repeat, 64, subsequent_indent=" " * 16, **WHOLE)),
        "improve it": "the same command with more --time",
    }
    print("", *(f"{name:<11} {text}" for name, text in rows.items()), sep="\n")


def demo(argv: Sequence[str]) -> int:
    parser = Parser(
        "demo",
        "Fetches real text, fits a small model to it in a few minutes, measures it and writes an "
        "HTML page that needs no network. Stopped or killed, the same command resumes.",
        "lightconv demo",
        "lightconv demo --task summary",
        "lightconv demo --corpus debian-en-fr --out runs/french",
    )
    parser.add(f"--task {'|'.join(DEMOS)}", "default: translation", default="translation")
    parser.add("--out DIR", "folder of everything; default: runs/demo-TASK")
    parser.add("--time TIME", "for the model: 90s, 10m, 2h (default: 5m)", default="5m")
    parser.add("--corpus NAME", "other text of `lightconv prepare --list`, fetched or invented")
    parser.add("--quick", "everything in seconds; the model learns nothing")
    parser.share("--format")
    options = parser.parse(argv)
    task, out = options.task, options.out or Path("runs") / f"demo-{options.task}"
    if options.corpus is not None:
        find_entry(options.corpus)
    _check_packages(task)

    from lightconv.demo.run import DEMO_TASKS, Demo
    from lightconv.fitting.run import run_fit

    made = Demo(task, out, options.time, options.corpus, quick=options.quick)
    print(f"lightconv demo: {DEMO_TASKS[task].about}; everything is kept in {out}", flush=True)
    with Display(idle="preparing") as display:
        texts = made.find_text(display)
    fitting = made.open_fit(show_choice)
    if code := run_fit(fitting, texts):
        show_stop(fitting)
        return code
    if not made.done:
        print("\nthe operator against attention", flush=True)
        with Display(idle="working") as display:
            made.measure(display)
            display.show("drawing (the first time, matplotlib lists the machine's fonts)")
            made.write_page()
    show_result(fitting)
    print()
    show_growth(made.results["growth"])
    print(f"\nthe page:   {made.report} (open it in a browser; it needs no network)", flush=True)
    return 0


def show_growth(measured: Sequence[Mapping[str, Any]]) -> None:
    """Times of operators as a table, from `measure_growth` at several lengths."""
    times = [(row["length"], row["microseconds"]) for row in measured]
    names = list(dict.fromkeys(name for _, row in times for name in row))
    rows = [
        [f"{length:,} tokens", *(f"{row[name]:,.2f}" if name in row else "-" for name in names)]
        for length, row in times
    ]
    print_rows(rows, ("us per token, of", *names), names)


def _check_packages(task: str) -> None:
    """Raises ValueError before minutes are spent, if a package is missing that comes later."""
    for package, extra in [("matplotlib", "plot"), ("rouge_score", "rouge")]:
        if find_spec(package) is None and (extra == "plot" or task == "summary"):
            raise ValueError(
                f"the demo of {task} needs the package {package}, expected it to be installed. "
                f"Install it with pip install 'lightconv[{extra}]'"
            )
