"""`lightconv demo`: from nothing to a page that shows what the layers can do."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from lightconv.commands.fit import show_choice, show_result, show_stop
from lightconv.commands.parser import Parser
from lightconv.console import Display, print_groups, read_duration
from lightconv.corpora import find_entry

TASKS = ("translation", "lm", "summary")


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        "demo",
        "Fetches real text, fits a small model to it in a few minutes, measures it and writes an "
        "HTML page that needs no network. Stopped or killed, the same command resumes.",
        "lightconv demo",
        "lightconv demo --task summary",
        "lightconv demo --corpus debian-en-fr --out runs/french",
    )
    parser.add(f"--task {'|'.join(TASKS)}", "default: translation", default="translation")
    parser.add("--out DIR", "folder of everything; default: runs/demo-TASK")
    parser.add("--time TIME", "for the model: 90s, 10m, 2h (default: 5m)", default="5m")
    parser.add("--corpus NAME", "other text of `lightconv prepare --list`, fetched or invented")
    parser.add("--quick", "everything in seconds; the model learns nothing")
    parser.add_format()
    options = parser.parse(argv)
    task, seconds = options.task, read_duration(options.time)
    out = options.out or Path("runs") / f"demo-{task}"
    if options.corpus is not None:
        find_entry(options.corpus)
    _check_packages(task)

    # Imports numpy and more: mistakes above are answered at once.
    from lightconv.demo.run import DEMO_TASKS, Demo
    from lightconv.fitting.run import run_fit

    demo = Demo(task, out, seconds, options.corpus, quick=options.quick)
    print(f"lightconv demo: {DEMO_TASKS[task].about}; everything is kept in {out}", flush=True)
    with Display(idle="preparing") as display:
        texts = demo.find_text(display)
    fitting = demo.open_fit(show_choice)
    if code := run_fit(fitting, texts):
        show_stop(fitting)
        return code
    if not demo.done:
        print("\nthe operator against attention", flush=True)
        with Display(idle="working") as display:
            demo.measure(display)
            display.show("drawing (the first time, matplotlib lists the machine's fonts)")
            demo.write_page()
    show_result(fitting)
    print()
    times = [(row["length"], row["microseconds"]) for row in demo.results["growth"]]
    names = list(dict.fromkeys(name for _, row in times for name in row))
    header = ["us per token, of", *names]
    rows = [
        [f"{length:,} tokens", *(f"{row[name]:,.2f}" if name in row else "-" for name in names)]
        for length, row in times
    ]
    print_groups({"": rows}, header, names)
    print(f"\nthe page:   {demo.report} (open it in a browser; it needs no network)", flush=True)
    return 0


def _check_packages(task: str) -> None:
    """Raises ValueError before minutes are spent, if a package is missing that comes later."""
    for package, extra in [("matplotlib", "plot"), ("rouge_score", "rouge")]:
        if find_spec(package) is None and (extra == "plot" or task == "summary"):
            raise ValueError(
                f"the demo of {task} needs the package {package}, expected it to be installed. "
                f"Install it with pip install 'lightconv[{extra}]'"
            )
