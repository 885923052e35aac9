"""`lightconv fit`: from files of one's own to a model."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightconv.commands.parser import Parser
from lightconv.console import print_groups, read_duration, show_duration, tell
from lightconv.data.config import TaskKind
from lightconv.processes import EXIT_INTERRUPT

if TYPE_CHECKING:
    from lightconv.fitting.run import Decision, Fit

# Paths in a command are not broken.
WHOLE: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
USES = {"translation": "interactive", "language_model": "generate", "summarization": "summarize"}


def main(argv: Sequence[str]) -> int:
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
    parser.add_device()
    parser.add_format()
    options = parser.parse(argv)
    task: TaskKind = "translation"
    if options.text or options.summaries:
        task = "language_model" if options.text else "summarization"
    seconds = read_duration(options.time)

    # These load numpy and more: mistakes above are answered at once.
    from lightconv.fitting.run import Fit, run_fit
    from lightconv.fitting.texts import read_own

    fitting = Fit(
        options.out,
        seconds,
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
    print_groups({"": scores}, ("system", metric), (metric,))
    repeat = f"lightconv train {fitting.out / 'recipe.toml'} --data {fitting.data} --out runs/again"
    rows = {
        "the model": f"{fitting.out} ({show_duration(fitting.spent)} in all)",
        "use it": f"lightconv {USES[kind]} {fitting.out}",
        "repeat it": " \\\n".join(textwrap.wrap(repeat, 64, subsequent_indent=" " * 16, **WHOLE)),
        "improve it": "the same command with more --time",
    }
    print("", *(f"{name:<11} {text}" for name, text in rows.items()), sep="\n")
