"""A table at one of two scales: its commands printed, or run on the data that is there."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from lightconv.commands.prepare import main as prepare_command
from lightconv.console import Display, read_duration
from lightconv.corpora import find_entry
from lightconv.data.prepared import Prepared, is_prepared
from lightconv.paper.plan import (
    Job,
    check_kind,
    choose_rows,
    describe_data,
    find_splits,
    fit_vocabulary,
    make_jobs,
    score_commands,
    set_steps,
    write_loop,
    write_paper_script,
)
from lightconv.paper.recipes import RECIPES
from lightconv.paper.report import draw, notes, print_part, show_experiment, write_markdown
from lightconv.paper.results import Results, Scale, results_folder
from lightconv.paper.run import EXIT_DIVERGED, Plan, run
from lightconv.paper.tables import Table
from lightconv.processes import EXIT_INTERRUPT, EXIT_STOPPED
from lightconv.train.signals import Stop

# Where prepared data is, by corpus, unless told otherwise.
DATA = Path("data")

# --- The paper's size


def _paper_jobs(table: Table, options: argparse.Namespace, seeds: int) -> list[Job]:
    rows = {row.recipe: row for row in table.rows if row.recipe is not None}
    chosen = choose_rows(rows, options.rows)
    runs = options.out / table.name / "paper"
    # The paper tunes length penalty and averages for translation and summaries.
    return make_jobs(chosen, seeds, options.set, runs, tune=table.name != "lm")


def print_paper(table: Table, options: argparse.Namespace) -> int:
    """Prints the full-size commands as a shell script."""
    jobs = _paper_jobs(table, options, 1)
    for job in jobs:
        job.changed()  # what is set must exist
    script = write_paper_script(
        table,
        jobs,
        options.data or DATA,
        seeds=options.seeds,
        limit=options.limit,
        processes=options.processes,
        nodes=options.nodes,
    )
    print(script)
    return 0


def run_paper(table: Table, options: argparse.Namespace) -> int:
    """Runs the rows whose data is there."""
    jobs = _paper_jobs(table, options, options.seeds)
    root: Path = options.data or DATA
    corpora = dict.fromkeys(RECIPES[job.recipe].task.corpus for job in jobs)
    folders: dict[str, Prepared] = {}
    for corpus in corpora:
        for folder in (root / corpus, root):
            if is_prepared(folder) and (data := Prepared.open(folder)).task.corpus == corpus:
                folders.setdefault(corpus, data)
    for corpus in corpora:
        if corpus not in folders:
            text = f"{root / corpus} has no prepared data of {corpus}"
            remedy = f"`lightconv prepare {corpus} --from PATH --out {root / corpus}` makes it"
            if not folders:
                raise ValueError(f"--data: {text}, expected it for --run. {remedy}")
            print(f"note: {text}; its rows are not run. {remedy}", file=sys.stderr)
    code = 0
    for corpus, prepared in folders.items():
        mine = [job for job in jobs if RECIPES[job.recipe].task.corpus == corpus]
        name = f"{options.name or 'paper'}-{corpus}"
        done = _run(table, options, prepared, mine, "paper", name, options.set)
        code = code or done
        if done > EXIT_DIVERGED:  # stopped, not only a row that failed
            break
    return code


# --- Small twins


def _data_folder(options: argparse.Namespace) -> Path:
    if options.data is not None:
        return Path(options.data)
    if options.corpus is None:
        raise ValueError(
            "--scale cpu needs data: --corpus NAME of `lightconv prepare --list`, or --data DIR of "
            "`lightconv prepare`"
        )
    entry = find_entry(options.corpus)
    folder = Path(DATA, options.corpus)
    if entry.takes_source and not folder.exists():
        raise ValueError(
            f"--corpus {options.corpus} cannot be fetched, it needs {entry.needs}. Run `lightconv "
            f"prepare {options.corpus} --from PATH --out {folder}` first"
        )
    return folder


def _twin_settings(
    table: Table, options: argparse.Namespace, prepared: Prepared | None
) -> list[str]:
    """What is laid over every row."""
    # Without data its vocabulary is not known: the recipes' own is assumed.
    fitted = [] if prepared is None else fit_vocabulary(check_kind(table, prepared), prepared)
    return [*fitted, *set_steps(options.steps), *options.set]


def _twin_jobs(
    table: Table,
    options: argparse.Namespace,
    prepared: Prepared | None,
    settings: Sequence[str],
) -> list[Job]:
    rows = choose_rows(table.twin_rows, options.rows)
    folder = options.name or (prepared.folder.absolute().name if prepared else options.corpus)
    runs = options.out / table.name / folder
    jobs = make_jobs(rows, options.seeds, settings, runs, width=options.width)
    for job in jobs:
        job.changed()  # what is set must exist
    return jobs


def print_twins(table: Table, options: argparse.Namespace) -> int:
    """Prints the commands of the small twins as a shell script."""
    folder = _data_folder(options)
    prepared = Prepared.open(folder) if is_prepared(folder) or options.data else None
    settings = _twin_settings(table, options, prepared)
    jobs = [job for job in _twin_jobs(table, options, prepared, settings) if job.seed == 1]
    print(f"# {table.title}: small twins. With --run they are run, measured and shown")
    if prepared is None:
        print(f"lightconv prepare {options.corpus} --out {shlex.quote(str(folder))}")
    splits = find_splits(table, prepared) if prepared else table.splits
    for job in jobs:
        train = f"lightconv {shlex.join(job.train(folder))}"
        commands = [train, *score_commands(job, folder, splits, options.limit)]
        print(f"\n{write_loop(job, commands, options.seeds)}")
    return 0


def run_twins(table: Table, options: argparse.Namespace) -> int:
    """Runs the small twins; a corpus that can be fetched is prepared first."""
    folder = _data_folder(options)
    if options.corpus is not None and not is_prepared(folder):
        code = prepare_command([options.corpus, "--out", str(folder)])
        if code != 0:
            return code
        print()
    prepared = Prepared.open(folder)
    settings = _twin_settings(table, options, prepared)
    jobs = _twin_jobs(table, options, prepared, settings)
    name = jobs[0].run.parent.name
    return _run(table, options, prepared, jobs, "cpu", name, settings)


def _run(
    table: Table,
    options: argparse.Namespace,
    prepared: Prepared,
    jobs: Sequence[Job],
    scale: Scale,
    name: str,
    settings: Sequence[str],
) -> int:
    """Runs jobs on one corpus, writes their table and prints it."""
    most = None if options.max_time is None else read_duration(options.max_time)
    experiment = describe_data(table, prepared, scale, name, settings, options.width, options.limit)
    results = Results.create(results_folder(options.results), experiment)
    plan = Plan(
        table=table,
        results=results,
        data=prepared.folder,
        splits=find_splits(table, prepared),
        jobs=jobs,
        command=describe_command(table, options),
        processes=options.processes,
        device=options.device,
    )

    def after() -> None:
        write_markdown(table, results)

    with Stop(most) as stop, Display() as display:
        code = run(plan, stop, display, after)
        display.end()
    print_part(show_experiment(table, results), as_markdown=options.markdown)
    print("\n".join(f"- {line}" for line in notes(results)))
    for path in (write_markdown(table, results), draw(table, results)):
        if path is not None:
            print(path)
    if code in (EXIT_STOPPED, EXIT_INTERRUPT):
        print("stopped; the same command goes on from there", file=sys.stderr)
    return code


def describe_command(table: Table, options: argparse.Namespace) -> str:
    """What the user typed, with folders by their names: a machine's paths say nothing elsewhere."""
    words = ["lightconv", "table", table.name, "--scale", options.scale]
    if options.corpus is not None:
        words += ["--corpus", options.corpus]
    if options.data is not None:
        words += ["--data", _name(options.data)]
    words += ["--seeds", str(options.seeds)]
    for option in ("steps", "width", "limit", "name", "processes"):
        value = getattr(options, option)
        words += [] if value is None else [f"--{option}", str(value)]
    words += [word for pattern in options.rows for word in ("--rows", pattern)]
    words += [word for setting in options.set for word in ("--set", setting)]
    return shlex.join([*words, "--run"])


def _name(path: Path) -> str:
    return path.name if path.is_absolute() else str(path)
