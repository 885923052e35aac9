"""Jobs of a table: its rows at full size, or their small twins, as commands and as a script."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from lightconv.corpora import find_entry
from lightconv.data.prepared import Prepared, is_prepared
from lightconv.paper.models import describe
from lightconv.paper.recipes import RECIPES, set_width
from lightconv.paper.results import Scale
from lightconv.paper.tables import Table
from lightconv.recipe import Recipe, find_recipe
from lightconv.train.log import LOG_FILE, read_log

# Folder of prepared folders, by corpus.
DATA = Path("data")
# GPUs that the paper trained on, by corpus; where it does not say, as for WMT.
GPUS = {"iwslt14-de-en": 1, "billion-word": 32}
USUAL_GPUS = 8
MEET = '--rdzv-backend c10d --rdzv-endpoint "$HEAD:29500"'


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Options of `lightconv table`; its help explains them."""

    scale: Scale
    corpus: str | None = None
    data: Path | None = None
    seeds: int = 3
    steps: int | None = None
    width: int | None = None
    rows: Sequence[str] = ()
    set: Sequence[str] = ()
    limit: int | None = None
    out: Path = Path("runs")
    results: Path = Path("results")
    name: str | None = None
    max_seconds: float | None = None
    processes: int | None = None
    nodes: int = 1
    device: str = "auto"

    def command(self, table: Table) -> str:
        """The command; folders by their names, since paths of a machine mean nothing elsewhere."""
        words = ["lightconv", "table", table.name, "--scale", self.scale]
        for name in ("corpus", "data", "seeds", "steps", "width", "limit", "name", "processes"):
            value = getattr(self, name)
            if isinstance(value, Path) and value.is_absolute():
                value = value.name
            words += [] if value is None else [f"--{name}", str(value)]
        words += [word for pattern in self.rows for word in ("--rows", pattern)]
        words += [word for setting in self.set for word in ("--set", setting)]
        return shlex.join([*words, "--run"])

    def twin_data(self) -> Path:
        """The prepared folder of twins; it may be missing if its corpus can be fetched."""
        if self.data is not None:
            return self.data
        if self.corpus is None:
            raise ValueError(
                "--scale cpu needs data: --corpus NAME of `lightconv prepare --list`, or --data "
                "DIR of `lightconv prepare`"
            )
        entry, folder = find_entry(self.corpus), DATA / self.corpus
        if entry.takes_source and not folder.exists():
            raise ValueError(
                f"--corpus {self.corpus} cannot be fetched, it needs {entry.needs}. Run `lightconv "
                f"prepare {self.corpus} --from PATH --out {folder}` first"
            )
        return folder


@dataclass(frozen=True)
class Job:
    """One row with one seed: a run of `lightconv train`, then its measurement.

    settings  changes of the recipe, its seed included
    run       folder of the run
    tune      choose length penalty and averaged checkpoints on validation data
    """

    recipe: str
    seed: int
    settings: tuple[str, ...]
    run: Path
    tune: bool

    @property
    def corpus(self) -> str:
        return RECIPES[self.recipe].task.corpus

    @property
    def row(self) -> str:
        """Mixers and sizes as they are trained."""
        return describe(self.changed().model)

    @property
    def output(self) -> Path:
        return self.run.with_name(f"{self.run.name}.txt")

    def changed(self) -> Recipe:
        return find_recipe(self.recipe, self.settings, RECIPES)

    def train(self, data: Path) -> list[str]:
        """Arguments of `lightconv` that train it."""
        given = [word for setting in self.settings for word in ("--set", setting)]
        return ["train", self.recipe, "--data", str(data), "--out", str(self.run), *given]

    def choose(self, data: Path) -> list[str]:
        """Arguments that tune it."""
        words = ["tune", str(self.run), "--data", str(data)]
        if RECIPES[self.recipe].task.kind == "summarization":
            words += ["--grid", "max_len_plus=100,120,140"]
        return words

    def score(self, data: Path, splits: Sequence[str], limited: Sequence[str]) -> list[str]:
        """Commands that tune and score it."""
        commands = [self.choose(data)] if self.tune else []
        evaluate = ["evaluate", str(self.run), "--data", str(data), "--split"]
        commands += [[*evaluate, split, *limited] for split in splits]
        return [f"lightconv {shlex.join(words)}" for words in commands]

    def loop(self, commands: Sequence[str], seeds: int) -> str:
        """Commands of this seed as a loop of the shell over all seeds."""
        lines = [
            f"# {self.recipe}: {self.row}",
            f"for seed in {' '.join(map(str, range(1, seeds + 1)))}; do",
        ]
        seed = re.compile(rf"(\.seed|train\.seed=){self.seed}\b")
        lines += ["  " + seed.sub(r"\1$seed", command) for command in commands]
        return "\n".join([*lines, "done"])

    def step(self) -> int:
        log = self.run / LOG_FILE
        return max((entry["step"] for entry in read_log(log)), default=0) if log.exists() else 0

    def last_line(self) -> str:
        text = self.output.read_text(encoding="utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][:500] if lines else "it said nothing"


class TablePlan:
    """Rows of a table as jobs, with one seed before any with the next.

    data  prepared corpus, if there is one yet
    """

    def __init__(self, table: Table, options: TableOptions, data: Prepared | None = None) -> None:
        self.table, self.options, self.data = table, options, data
        self.small = options.scale == "cpu"
        self.limited = [] if options.limit is None else ["--limit", str(options.limit)]
        known = table.splits if data is None else data.splits
        # Validation is scored in the place of a missing test.
        self.splits = list(dict.fromkeys(s if s in known else "valid" for s in table.splits))
        self._check_task()
        self.settings = [*set_steps(options.steps), *options.set]
        rows = self._choose_rows()
        folder = str(options.corpus) if data is None else data.folder.absolute().name
        self.runs = options.out / table.name / (options.name or folder if self.small else "paper")
        self.jobs = []
        for seed in range(1, options.seeds + 1):
            for recipe in rows:
                width = set_width(recipe, options.width)
                settings = (*width, *self.settings, f"train.seed={seed}")
                # The paper tunes length penalty and averages for translation and summaries.
                tune = not self.small and table.name != "lm"
                run = self.runs / f"{recipe}.seed{seed}"
                self.jobs.append(Job(recipe, seed, settings, run, tune))
        for job in self.jobs[: len(rows)]:
            job.changed()  # ValueError for a wrong setting

    def speed(self, runs: Sequence[Path], data: Path) -> list[str]:
        """Arguments that measure the speed of all rows as the paper did, one run of each."""
        assert self.table.speed is not None
        known = {"test"} if self.data is None else self.data.splits
        words = ["speed", *map(str, runs), "--data", str(data)]
        words += ["--split", "test" if "test" in known else "valid"]
        words += ["--beam", str(self.table.speed[0]), "--batch-size", str(self.table.speed[1])]
        return [*words, *self.limited]

    def _choose_rows(self) -> list[str]:
        """Recipes that match a pattern: a part of the recipe's name, or one with *."""
        rows = self.table.rows_at(self.options.scale)
        chosen: set[str] = set()
        for pattern in self.options.rows or ("*",):
            wild = pattern if set(pattern) & set("*?[") else f"*{pattern}*"
            found = {name for name in rows if fnmatchcase(name, wild)}
            if not found:
                names = f"expected one of {', '.join(rows)}"
                raise ValueError(f"--rows {pattern}: no such row, {names}")
            chosen |= found
        return [name for name in rows if name in chosen]

    def _check_task(self) -> None:
        wanted = RECIPES[next(iter(self.table.rows_at("cpu")))].task.kind
        if self.small and self.data is not None and self.data.task.kind != wanted:
            raise ValueError(
                f"data ({self.data.folder}): {self.data.task.kind.replace('_', ' ')}, expected "
                f"{wanted.replace('_', ' ')} for the table {self.table.name}. `lightconv prepare "
                "--list` shows corpora"
            )


def set_steps(steps: int | None) -> list[str]:
    """Settings for that many updates, in the proportions of the twins' own 3,000."""
    if steps is None:
        return []
    sixth = max(1, steps // 6)
    return [
        f"train.max_steps={steps}",
        f"train.schedule.warmup={sixth}",
        f"train.schedule.period={max(1, steps - sixth)}",
        f"train.validate_every={sixth}",
        f"train.save_every={sixth}",
        f"train.log_every={max(1, steps // 30)}",
    ]


def write_script(table: Table, options: TableOptions) -> str:
    """The commands that train and score all rows, as a shell script."""
    folder = options.twin_data() if options.scale == "cpu" else None
    found = folder is not None and (is_prepared(folder) or options.data is not None)
    data = Prepared.open(folder) if folder and found else None
    plan = TablePlan(table, replace(options, seeds=1), data)
    root, nodes = options.data or DATA, 1 if folder else options.nodes
    if folder:
        head = [f"# {table.title}: small twins. With --run they are run, measured and shown"]
        if not found:
            head.append(f"lightconv prepare {options.corpus} --out {shlex.quote(str(folder))}")
    else:
        head = [f"# {table.title} ({table.place})"]
        head.append("# Every command can be repeated: what is done is not done again.")
        for corpus in dict.fromkeys(job.corpus for job in plan.jobs):
            out = shlex.quote(str(root / corpus))
            make = f"lightconv prepare {corpus} --from PATH --out {out}"
            head.append(f"test -d {out} || {make}  # docs/data.md says what PATH is")
    trained, scored = [], []
    for job in plan.jobs:
        where = folder or root / job.corpus
        gpus = options.processes or max(1, GPUS.get(job.corpus, USUAL_GPUS) // nodes)
        launch = "" if folder or gpus == 1 else f"torchrun --nproc-per-node {gpus} -m "
        if nodes > 1:
            launch = f"torchrun --nnodes {nodes} --nproc-per-node {gpus} {MEET} -m "
        train = [f"{launch}lightconv {shlex.join(job.train(where))}"]
        score = job.score(where, plan.splits, plan.limited)
        trained.append(job.loop(train if nodes > 1 else train + score, options.seeds))
        scored.append(job.loop(score, options.seeds))
    timed = []
    if table.speed is not None:  # its rows have one corpus
        words = plan.speed([job.run for job in plan.jobs], folder or root / plan.jobs[0].corpus)
        timed = [f"# The speed of all rows.\nlightconv {shlex.join(words)}"]
    if nodes == 1:
        return "\n\n".join(["\n".join(head), *trained, *timed])
    each = f"# On each of {nodes} machines that share these folders; HEAD is the name of one."
    return "\n\n".join(["\n".join(head), each, *trained, "# Then on one of them.", *scored, *timed])
