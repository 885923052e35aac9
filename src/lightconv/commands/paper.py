"""`lightconv list`, `show` and `table`: the recipes, and the paper's tables run and shown."""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from lightconv.commands.parser import Parser
from lightconv.config import to_json, to_toml
from lightconv.console import (
    Rows,
    markdown,
    print_groups,
    print_rows,
    print_text,
    suggest,
    tell,
    tell_waiting,
)
from lightconv.device import choose_device
from lightconv.fitting.plan import OWN
from lightconv.paper.recipes import RECIPES, TITLES, task_of
from lightconv.paper.tables import NONE, TABLES, Table, agrees
from lightconv.processes import EXIT_DIVERGED, EXIT_INTERRUPT, EXIT_STOPPED
from lightconv.recipe import Recipe, count_parameters, count_parts, find_recipe, suggest_recipe

if TYPE_CHECKING:
    from lightconv.paper.jobs import TableOptions
    from lightconv.paper.results import Section, TableReport

BEGIN = "<!-- lightconv list --params: begin -->"
END = "<!-- lightconv list --params: end -->"
SEEDS = 3
MOST_SEEDS = 1000
# Options that need --scale.
RUN_OPTIONS = (
    *("run", "corpus", "data", "seeds", "steps", "rows", "set", "limit", "name"),
    *("width", "max_time", "processes"),
)
# Corpora for an example of a command; other tables translate.
EXAMPLES = {"lm": "debian-lm", "summarization": "debian-summary"}


def list_recipes(argv: Sequence[str]) -> None:
    parser = Parser(
        "list",
        "Lists the recipes: every model of the paper, and small twins that two processor cores "
        "train. With --params, the parameters that the paper prints beside the exact number here.",
        "lightconv list",
        "lightconv list iwslt              # names that contain iwslt",
        "lightconv list 'wmt-*-lightconv'  # a pattern",
        "lightconv list ablation --params  # a table of the paper, with parameters",
    )
    parser.add("[PATTERN]", f"part of a name, a pattern with *, or a table: {', '.join(TABLES)}")
    parser.add("--params", "parameters: the paper's and ours")
    parser.add("--markdown", "tables for a Markdown page")
    parser.add("--write PAGE", "put the tables between the markers of a page, as in docs/paper.md")
    parser.share("--format")
    options = parser.parse(argv)
    known = RECIPES if options.params or options.write else {**RECIPES, **OWN}
    names = _matching(options.pattern, known)
    if options.params or options.write:
        tell_waiting("counting parameters")
        header, right = ["row", "recipe", "paper", "ours", "agree"], ["paper", "ours"]
        groups = _by_table(names)
    else:
        # Names and words need no header, except in Markdown.
        header, right = ["recipe", "about"] if options.markdown else ["", ""], []
        groups = _by_task(names)
    if options.write:
        _write_between(options.write, markdown(groups, header, right))
    elif options.markdown:
        print(markdown(groups, header, right))
    else:
        print_groups(groups, header, right)


def show_recipe(argv: Sequence[str]) -> None:
    parser = Parser(
        "show",
        "Prints a recipe as TOML, with the source of each value that the paper does not print. "
        "What it prints can be changed and read again.",
        "lightconv show iwslt-de-en-dynamicconv > my.toml",
        "lightconv show my.toml",
        "lightconv show wmt-en-de-lightconv --set train.max_steps=100 --set model.dropout=0.2",
        "lightconv show wmt-en-de-lightconv --set 'model.encoder.*.glu=false' --params",
    )
    parser.add("NAME_OR_FILE", "a recipe, or a .toml or .json file")
    parser.add("--set PATH=VALUE ...", "change a value, as often as you like; * is every layer")
    parser.add("--json", "print JSON instead")
    parser.share("--format")
    parser.add("--params", "count parameters, part by part")
    options = parser.parse(argv)
    recipe = find_recipe(options.name_or_file, options.set, {**RECIPES, **OWN})
    if not options.params:
        print((to_json if options.json else to_toml)(recipe).rstrip("\n"))
        return
    parts = count_parts(recipe.model)
    all_parts = {**parts, "total": sum(parts.values())}
    if options.json:
        print(json.dumps(all_parts, indent=2))
        return
    rows = [[part, f"{n:,}", f"{n / all_parts['total']:.1%}"] for part, n in all_parts.items()]
    print_rows(rows, ("part", "parameters", "share"), ("parameters", "share"))


def _matching(pattern: str | None, known: Mapping[str, Recipe]) -> list[str]:
    """Names that match a pattern, in order; without one, all."""
    if pattern is None:
        return list(known)
    if pattern in TABLES:
        members = {row.recipe for row in TABLES[pattern].rows if not row.cited}
    else:
        wild = pattern if set(pattern) & set("*?[") else f"*{pattern}*"
        members = {name for name in known if fnmatchcase(name, wild.lower())}
    if not members:
        raise ValueError(f"no recipe matches '{pattern[:60]}': {suggest_recipe(pattern, known)}")
    return [name for name in known if name in members]


def _by_task(names: Sequence[str]) -> dict[str, Rows]:
    """Names and their descriptions, under the titles of their tasks."""
    groups: dict[str, list[list[str]]] = {title: [] for title in TITLES.values()}
    for name in names:
        if name in RECIPES:
            groups[TITLES[task_of(name)]].append([name, RECIPES[name].about])
    groups["Your own text"] = [[name, OWN[name].about] for name in names if name in OWN]
    return {title: rows for title, rows in groups.items() if rows}


def _by_table(names: Sequence[str]) -> dict[str, Rows]:
    """Rows of the paper with its counts and ours, table by table; then recipes of no table."""
    groups: dict[str, list[list[str]]] = {}
    rest = dict.fromkeys(names)
    for table in TABLES.values():
        rows = groups.setdefault(table.title, [])
        for row in table.rows:
            if row.recipe in names and not row.cited:
                ours = count_parameters(RECIPES[row.recipe].model)
                agree = NONE if row.params == NONE else "yes" if agrees(row.params, ours) else "NO"
                rows.append([row.text, row.recipe, row.params, f"{ours:,}", agree])
                rest.pop(row.recipe, None)
    groups["In no table of the paper"] = [
        [RECIPES[name].about, name, NONE, f"{count_parameters(RECIPES[name].model):,}", NONE]
        for name in rest
    ]
    return {title: rows for title, rows in groups.items() if rows}


def _write_between(page: Path, text: str) -> None:
    old = page.read_text(encoding="utf-8")
    if BEGIN not in old or END not in old:
        raise ValueError(f"{page} has no tables to replace: put {BEGIN} and {END} into it")
    head, rest = old.split(BEGIN, 1)
    page.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.split(END, 1)[1]}", encoding="utf-8")


def paper_table(argv: Sequence[str]) -> int | None:
    parser = _parser()
    options = parser.parse(argv)
    if options.table is None:
        rows = [[table.name, table.title, f"{len(table.rows)} rows"] for table in TABLES.values()]
        print_rows(rows, ("", "", ""))
        return None
    if options.table not in TABLES:
        known = suggest(options.table, TABLES)
        raise ValueError(f"unknown table '{options.table[:60]}'{known}")
    table = TABLES[options.table]
    _check(parser, options)
    if options.scale is None:
        _show(table, options)
        return None

    from lightconv.paper.jobs import TableOptions, write_script

    options.results = _results_folder(options)
    options.max_seconds = options.max_time
    given = TableOptions(**{f.name: getattr(options, f.name) for f in fields(TableOptions)})
    if options.run:
        return _run(table, given, as_markdown=options.markdown)
    print(write_script(table, given))
    return None


def _check(parser: Parser, options: argparse.Namespace) -> None:
    for name in () if options.scale else parser.given(options, *RUN_OPTIONS):
        parser.error(f"{name} needs --scale paper or --scale cpu")
    for name in parser.given(options, "corpus", "steps") if options.scale == "paper" else ():
        parser.error(f"{name} is for --scale cpu; the paper has its own")
    if options.corpus is not None and options.data is not None:
        parser.error("--corpus and --data are two sources of data, expected one of them")
    if options.name is not None and not re.fullmatch(r"\w[\w.-]*", options.name):
        parser.error(f"--name {options.name[:60]!r}, expected letters, digits, dots and hyphens")
    if options.nodes > 1 and options.run:
        parser.error("--run is for one machine; without it, the commands for several are printed")
    options.seeds = options.seeds or SEEDS
    if options.seeds > MOST_SEEDS:
        parser.error(f"--seeds {options.seeds} must be at most {MOST_SEEDS}")


def _results_folder(options: argparse.Namespace) -> Path:
    """--results, else docs/results of a checkout, else ./results."""
    docs = Path("docs") / "results"
    return options.results or (docs if docs.is_dir() else Path("results"))


def _run(table: Table, options: "TableOptions", *, as_markdown: bool) -> int:
    from lightconv.paper.experiment import find_series, prepare_corpus
    from lightconv.paper.results import TableReport

    if options.scale == "cpu" and (code := prepare_corpus(options)) is not None:
        if code:
            return code
        print()
    code = 0
    for series in find_series(table, options):
        done = series.run()
        report = TableReport(series.results)
        _print(report.show(), report.notes(), as_markdown=as_markdown)
        _write(report)
        if done in (EXIT_STOPPED, EXIT_INTERRUPT):
            tell("stopped; the same command resumes from there")
        code = code or done
        if done > EXIT_DIVERGED:  # stopped, not only a row that failed
            break
    return code


def _show(table: Table, options: argparse.Namespace) -> None:
    from lightconv.paper.results import Result, TableReport, find_results, show_cited, show_paper

    root = _results_folder(options)
    if options.results is not None and not root.is_dir():
        raise ValueError(f"--results {root}: no such folder, expected one of results")
    reports = [TableReport(results) for results in find_results(root, table.name)]
    if options.write:
        if not reports:
            raise ValueError(f"nothing of the table {table.name} was run, expected results")
        for report in reports:
            _write(report)
        return
    # Parameters are counted by building every model without its memory, which needs torch.
    tell_waiting("counting parameters")
    full: dict[str, list[Result]] = {}
    for report in reports:
        if report.experiment.scale == "paper":
            full = report.found | full  # of two such experiments the first; both are below
    _print(show_paper(table, full), as_markdown=options.markdown)
    if table.cited:
        _print(show_cited(table), as_markdown=options.markdown)
    for report in reports:
        _print(report.show(), [*report.notes(), ""], as_markdown=options.markdown)
    if not any(report.experiment.scale == "cpu" for report in reports):
        corpus = EXAMPLES.get(table.name, "debian-en-de")
        print(
            f"No small twins were run (no results in {root / table.name}); for example:\n"
            f"  lightconv table {table.name} --scale cpu --corpus {corpus} --run"
        )


def _print(section: "Section", notes: Sequence[str] = (), *, as_markdown: bool) -> None:
    if as_markdown:
        print(markdown(*section))
    else:
        print_groups(*section)
    print()
    for line in notes:
        print_text(f"- {line}" if line else "")


def _write(report: "TableReport") -> None:
    for path in (report.write(), report.draw()):
        if path is not None:
            print(path)


def _parser() -> Parser:
    parser = Parser(
        "table",
        "Shows a table of the paper beside what was run here. With --scale, prints the commands "
        "that make it at full size or as small twins, as a shell script, or runs them (--run). "
        "Stopped or killed, the same command resumes.",
        "lightconv table                    # the names of the tables",
        "lightconv table ablation",
        "lightconv table ablation --scale paper > ablation.sh",
        "lightconv table mt1 --scale paper --data data --processes 8 --run",
        "lightconv table ablation --scale cpu --corpus debian-en-de --seeds 3 --run",
        "lightconv table lm --scale cpu --data data/mine --steps 1000 --rows dynamicconv --run",
        "lightconv table ablation --write   # table.md and table.png beside the results",
    )
    add = parser.add
    add("[TABLE]", ", ".join(TABLES))
    add("--scale paper|cpu", "full size, or small twins")
    add("--corpus NAME", "a corpus of `prepare --list`, for twins")
    add("--data DIR", "twins: a folder of `prepare`; full size: the folder of such folders")
    add("--seeds N", f"1 to N (default: {SEEDS})")
    add("--steps N", "updates of a twin (default: 3,000)")
    add("--width N", "of every model (default: 256 for a twin, the paper's at full size)")
    add("--rows PATTERN ...", "only rows whose recipe has this in its name; may be repeated")
    add("--set PATH=VALUE ...", "change a value of every row's recipe, as often as you like")
    add("--limit N", "score the first N lines only")
    add("--run", "run what is not done yet")
    add("--out RUNS", "folder of the runs", default=Path("runs"))
    add("--results DIR", "default: docs/results if it is there, else results")
    add("--name NAME", "of the experiment (default: that of its data)")
    parser.share("--max-time")
    add("--processes N", "GPUs, or processes, per machine")
    add("--nodes N", "print commands for so many machines", default=1)
    add("--markdown", "tables for a Markdown page")
    add("--write", "write table.md and table.png anew")
    parser.share("--device", "--format")
    return parser


def measure(argv: Sequence[str]) -> None:
    """Internal command that `table` starts: measures a run; the argument is JSON."""
    from lightconv.paper.experiment import measure as measure_run

    asked = json.loads(argv[0])
    out, device = Path(asked.pop("out")), choose_device(asked.pop("device"))
    out.write_text(to_json(measure_run(**asked, device=device)), encoding="utf-8")
