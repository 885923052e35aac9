"""`lightconv table`: the paper's tables, the results of running them, and how to run them."""

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from lightconv.commands.parser import Parser
from lightconv.config import to_json
from lightconv.console import (
    markdown,
    print_groups,
    print_text,
    read_duration,
    suggest,
    tell,
    tell_waiting,
)
from lightconv.paper.tables import TABLES, Table
from lightconv.processes import EXIT_DIVERGED, EXIT_INTERRUPT, EXIT_STOPPED

if TYPE_CHECKING:
    from lightconv.paper.jobs import TableOptions
    from lightconv.paper.results import Section, TableReport

SEEDS = 3
MOST_SEEDS = 1000
# Options that need --scale.
RUN_OPTIONS = (
    *("run", "corpus", "data", "seeds", "steps", "rows", "set", "limit", "name"),
    *("width", "max_time", "processes"),
)
# Corpora for an example of a command; other tables translate.
EXAMPLES = {"lm": "debian-lm", "summarization": "debian-summary"}


def main(argv: Sequence[str]) -> int:
    parser = _parser()
    parser.add_format()
    options = parser.parse(argv)
    if options.table is None:
        rows = [[table.name, table.title, f"{len(table.rows)} rows"] for table in TABLES.values()]
        print_groups({"": rows}, ("", "", ""), ())
        return 0
    if options.table not in TABLES:
        known = suggest(options.table, TABLES)
        raise ValueError(f"unknown table '{options.table[:60]}'{known}")
    table = TABLES[options.table]
    _check(parser, options)
    if options.scale is None:
        return _show(table, options)

    from lightconv.paper.jobs import TableOptions, write_script

    options.results = _results_folder(options)
    options.max_seconds = None if options.max_time is None else read_duration(options.max_time)
    given = TableOptions(**{f.name: getattr(options, f.name) for f in fields(TableOptions)})
    if options.run:
        return _run(table, given, as_markdown=options.markdown)
    print(write_script(table, given))
    return 0


def _check(parser: Parser, options: argparse.Namespace) -> None:
    if options.scale is None:
        given = [name for name in RUN_OPTIONS if getattr(options, name) not in (None, [], False)]
        if given:
            parser.error(f"--{given[0].replace('_', '-')} needs --scale paper or --scale cpu")
    if options.scale == "paper":
        for name in ("corpus", "steps"):
            if getattr(options, name) is not None:
                parser.error(f"--{name} is for --scale cpu; the paper has its own")
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


def _show(table: Table, options: argparse.Namespace) -> int:
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
        return 0
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
    return 0


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
    add("--max-time TIME", "stop and save after 30m, 8h, 2d")
    add("--processes N", "GPUs, or processes, per machine")
    add("--nodes N", "print commands for so many machines", default=1)
    parser.add_device()
    add("--markdown", "tables for a Markdown page")
    add("--write", "write table.md and table.png anew")
    return parser


def measure(argv: Sequence[str]) -> int:
    """Internal command that `table` starts: measures a run; the argument is JSON."""
    from lightconv.device import choose_device
    from lightconv.paper.experiment import measure as measure_run

    asked = json.loads(argv[0])
    out, device = Path(asked.pop("out")), choose_device(asked.pop("device"))
    out.write_text(to_json(measure_run(**asked, device=device)), encoding="utf-8")
    return 0
