"""`lightconv demo`: from nothing to a page that shows what the layers can do."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightconv.commands.parser import Parser
from lightconv.config import to_dict
from lightconv.console import print_groups
from lightconv.demo.plan import PLANS, Plan, quick

if TYPE_CHECKING:
    from lightconv.console import Display
    from lightconv.data.prepared import Prepared
    from lightconv.demo.results import Results
    from lightconv.recipe import Recipe

REPORT_FILE = "report.html"
STAGES = {
    "data": "text",
    "training": "training",
    "scores": "scores on held-out text",
    "growth": "the operator against attention",
    "report": "report",
}
KINDS = {"translation": "translation", "lm": "language_model", "summary": "summarization"}


def main(argv: Sequence[str]) -> int:
    """Does what has not been done yet, prints a short table and the name of the page."""
    options = _parser().parse(argv)
    plan = PLANS[options.task]
    out = options.out or Path("runs") / f"demo-{options.task}"
    if options.quick:
        plan = quick(plan)
    if options.corpus is not None:
        from lightconv.corpora import find_entry

        find_entry(options.corpus)

    # These load numpy and more: mistakes above are answered at once.
    from lightconv.console import Display

    _check_packages(plan.name)
    out.mkdir(parents=True, exist_ok=True)
    print(f"lightconv demo: {plan.about}; everything is kept in {out}")
    _head("data")
    with Display(idle="preparing", pause=2.0) as display:
        prepared = _prepare(plan, out, display, options.corpus)
    recipe, results = _begin(plan, out, prepared)
    if not _is_done(out, recipe, results):
        code = _run(plan, out, prepared, recipe, results)
        if code:
            return code
    _summarize(plan, out, results)
    return 0


def _check_packages(task: str) -> None:
    """Raises ValueError before minutes are spent, if a package is missing that comes later."""
    from lightconv.demo.plots import check_matplotlib

    check_matplotlib()
    if task == "summary" and find_spec("rouge_score") is None:
        raise ValueError(
            "summaries are scored by the package rouge-score. Install it with "
            "pip install 'lightconv[rouge]'"
        )


def _prepare(plan: Plan, out: Path, display: "Display", corpus: str | None) -> "Prepared":
    from lightconv.demo.corpus import find_data

    prepared = find_data(plan, out / "data", display, corpus)
    if prepared.task.kind != KINDS[plan.name]:
        raise ValueError(
            f"--corpus {corpus} is for {prepared.task.kind}, expected one for {KINDS[plan.name]}. "
            "`lightconv prepare --list` shows them; choose another folder with --out"
        )
    return prepared


def _begin(plan: Plan, out: Path, prepared: "Prepared") -> "tuple[Recipe, Results]":
    """The recipe, and what is known of its results."""
    from lightconv.demo.results import Results, make_key
    from lightconv.demo.training import find_recipe

    recipe = find_recipe(plan, prepared)
    digests = {name: split.digest for name, split in prepared.contents.splits.items()}
    return recipe, Results.read(out, make_key(to_dict(recipe), digests, asdict(plan.size)))


def _is_done(out: Path, recipe: "Recipe", results: "Results") -> bool:
    from lightconv.demo.training import is_trained

    return results.complete and (out / REPORT_FILE).is_file() and is_trained(out, recipe)


def _run(plan: Plan, out: Path, prepared: "Prepared", recipe: "Recipe", results: "Results") -> int:
    """Trains, measures and writes the page: the exit code."""
    from lightconv.console import Display
    from lightconv.demo.training import is_trained, train

    _head("training")
    if is_trained(out, recipe):
        print("  done before")
    else:
        steps, tokens = recipe.train.max_steps, recipe.train.tokens_per_update
        print(
            f"  {steps:,} updates of about {tokens:,} tokens: some {plan.minutes:g} minutes on two "
            "cores. Ctrl-C saves; the same command goes on\n  loading torch",
            flush=True,
        )
        code = train(out, prepared, recipe)
        if code:
            return code

    from lightconv.demo.page import make_page
    from lightconv.demo.results import replace_file
    from lightconv.demo.stages import draw_all, measure_model, measure_operator

    with Display(idle="working", pause=2.0) as display:
        _head("scores")
        measure_model(plan, out, prepared, recipe, results, display)
        _head("growth")
        measure_operator(plan, out, results, display)
        _head("report")
        display.show("drawing (the first time, matplotlib lists the machine's fonts)")
        page = make_page(plan.name, results, draw_all(results))
        replace_file(out / REPORT_FILE, page.encode())
    return 0


def _head(stage: str) -> None:
    place = list(STAGES).index(stage) + 1
    print(f"\n{place}/{len(STAGES)} {STAGES[stage]}", flush=True)


def _summarize(plan: Plan, out: Path, results: "Results") -> None:
    """A few lines for those who do not open the page."""
    from lightconv.demo.page import WORDS, headline

    words = WORDS[plan.name]
    print()
    for example in results.examples or []:
        rows = zip(words.parts, ("source", "output", "reference"), strict=True)
        print("\n".join(f"{name:<10} {example[part]}" for name, part in rows), end="\n\n")
    scores = [[who, f"{value:.1f}"] for who, value in headline(plan.name, results)]
    print_groups({"": scores}, ("on the test set", words.metric), (words.metric,))
    print()
    header, rows_of_growth = _growth(results.growth or [])
    print_groups({"": rows_of_growth}, header, header)
    print(f"\nthe model:  lightconv {_use(plan.name)} {out / 'run'}")
    print(
        f"the report: {out / REPORT_FILE} (open it in a browser; it needs no network)", flush=True
    )


def _growth(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Microseconds of a token at each length, and how many times as long attention takes."""
    names = list(dict.fromkeys(name for row in rows for name in row["microseconds"]))
    header = ["tokens", *(f"{name}, us/token" for name in names)]
    found = []
    for row in rows:
        times = (row["microseconds"].get(name) for name in names)
        cells = ["-" if each is None else f"{each:,.2f}" for each in times]
        found.append([f"{row['length']:,}", *cells])
    return header, found


def _use(task: str) -> str:
    return {"translation": "interactive", "lm": "generate", "summary": "summarize"}[task]


def _parser() -> Parser:
    parser = Parser(
        "demo",
        "Fetches real text, trains a small model for a few minutes, scores it against systems that "
        "have no model, measures the operator against attention, and writes one HTML page with "
        "plots that opens without a network. What is done already is not done again: stopped or "
        "killed, the same command goes on.",
        "lightconv demo",
        "lightconv demo --task summary",
        "lightconv demo --corpus debian-en-fr --out runs/french",
    )
    parser.add_argument("--task", choices=list(PLANS), default="translation")
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="where everything is kept; default: runs/demo-TASK"
    )
    parser.add_argument(
        "--corpus",
        metavar="NAME",
        help="other text, one of `lightconv prepare --list` that can be fetched or is invented",
    )
    parser.add_argument(
        "--quick", action="store_true", help="everything in seconds; the model learns nothing"
    )
    return parser
