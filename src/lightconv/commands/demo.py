"""`lightconv demo`: from nothing to a page that shows what the layers can do."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from lightconv.commands.parser import Parser
from lightconv.console import Display, print_groups
from lightconv.corpora import find_entry
from lightconv.demo.plan import METRICS, PLANS, SOURCES, headline, quick

if TYPE_CHECKING:
    from lightconv.demo.run import Demo

STAGES = ("text", "training", "scores on held-out text", "the operator against attention", "report")
USES = {"translation": "interactive", "lm": "generate", "summary": "summarize"}


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        "demo",
        "Fetches real text, trains a small model for a few minutes, measures it and writes an HTML "
        "page that needs no network. Stopped or killed, the same command resumes.",
        "lightconv demo",
        "lightconv demo --task summary",
        "lightconv demo --corpus debian-en-fr --out runs/french",
    )
    parser.add(f"--task {'|'.join(PLANS)}", "default: translation", default="translation")
    parser.add("--out DIR", "folder of everything; default: runs/demo-TASK")
    parser.add("--corpus NAME", "other text of `lightconv prepare --list`, fetched or invented")
    parser.add("--quick", "everything in seconds; the model learns nothing")
    options = parser.parse(argv)
    task, plan = options.task, PLANS[options.task]
    out = options.out or Path("runs") / f"demo-{task}"
    if options.corpus is not None:
        find_entry(options.corpus)

    # Imports numpy and more: mistakes above are answered at once.
    from lightconv.demo.run import Demo

    _check_packages(task)
    out.mkdir(parents=True, exist_ok=True)
    demo = Demo(task, quick(plan) if options.quick else plan, out, options.corpus)
    print(f"lightconv demo: {plan.about}; everything is kept in {out}")
    _begin(1)
    with Display(idle="preparing") as display:
        demo.prepare(display)
    code = 0 if demo.done else _run(demo)
    if not code:
        _summarize(demo)
    return code


def _check_packages(task: str) -> None:
    """Raises ValueError before minutes are spent, if a package is missing that comes later."""
    for package, extra in [("matplotlib", "plot"), ("rouge_score", "rouge")]:
        if find_spec(package) is None and (extra == "plot" or task == "summary"):
            raise ValueError(
                f"the demo of {task} needs the package {package}, expected it to be installed. "
                f"Install it with pip install 'lightconv[{extra}]'"
            )


def _run(demo: "Demo") -> int:
    """Trains, measures and writes the page; an exit code."""
    if _begin(2, done=demo.trained):
        print(
            f"  {demo.plan.steps:,} updates of about {demo.plan.tokens:,} tokens: some "
            f"{demo.plan.minutes:g} minutes on two cores. Ctrl-C saves; the same command resumes\n"
            "  loading torch",
            flush=True,
        )
        if code := demo.train():
            return code
    if _begin(3, done="scores" in demo.results):
        demo.measure_model()
    with Display(idle="working") as display:
        if _begin(4, done="growth" in demo.results):
            demo.measure_operator(display)
        _begin(5)
        display.show("drawing (the first time, matplotlib lists the machine's fonts)")
        demo.write_page()
    return 0


def _begin(stage: int, *, done: bool = False) -> bool:
    """Prints the head of a stage; True if there is work to do."""
    print(f"\n{stage}/{len(STAGES)} {STAGES[stage - 1]}", flush=True)
    if done:
        print("  done before")
    return not done


def _summarize(demo: "Demo") -> None:
    task, results = demo.task, demo.results
    print()
    for example in results["examples"]:
        print(f"{SOURCES[task]:<10} {example['source']}")
        print(f"{'model':<10} {example['output']}")
        print(f"{'reference':<10} {example['reference']}\n")
    scores = [[who, f"{value:.1f}"] for who, value in headline(task, results)]
    print_groups({"": scores}, ("on the test set", METRICS[task]), (METRICS[task],))
    print()
    times = [(row["length"], row["microseconds"]) for row in results["growth"]]
    names = list(dict.fromkeys(name for _, row in times for name in row))
    header = ["tokens", *(f"{name}, us/token" for name in names)]
    rows = [
        [f"{length:,}", *(f"{row[name]:,.2f}" if name in row else "-" for name in names)]
        for length, row in times
    ]
    print_groups({"": rows}, header, header)
    print(f"\nthe model:  lightconv {USES[task]} {demo.run}")
    print(f"the report: {demo.report} (open it in a browser; it needs no network)", flush=True)
