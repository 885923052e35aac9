"""Which commands make a table: its rows at full size, or their small twins on a corpus at hand."""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from lightconv.data.prepared import Prepared
from lightconv.data.vocabulary import SHARED_FILE
from lightconv.models.config import ModelConfig, Seq2SeqConfig
from lightconv.paper.find import find_recipe
from lightconv.paper.recipes import RECIPES
from lightconv.paper.results import Experiment, Scale
from lightconv.paper.tables import Row, Table
from lightconv.recipe import Recipe

# On how many GPUs the paper trained, by the task's corpus; where it does not say, as for WMT.
GPUS = {"iwslt14-de-en": 1, "billion-word": 32}
USUAL_GPUS = 8


@dataclass(frozen=True, kw_only=True)
class Job:
    """One row with one seed: a run of `lightconv train`, then its measurement.

    run   the folder of the run
    tune  whether length penalty and averaged checkpoints are chosen on validation data
    """

    row: str
    recipe: str
    seed: int
    settings: tuple[str, ...]
    run: Path
    tune: bool = False

    def train(self, data: Path) -> list[str]:
        """The arguments of `lightconv` that train it."""
        settings = [*self.settings, f"train.seed={self.seed}"]
        given = [word for setting in settings for word in ("--set", setting)]
        return ["train", self.recipe, "--data", str(data), "--out", str(self.run), *given]

    def choose(self, data: Path) -> list[str]:
        """Those that tune it."""
        grid = []
        if RECIPES[self.recipe].task.kind == "summarization":
            grid = ["--grid", "max_len_plus=100,120,140"]
        return ["tune", str(self.run), "--data", str(data), *grid]

    def evaluate(self, data: Path, split: str, limit: int | None) -> list[str]:
        """Those that score it, or its first lines."""
        most = [] if limit is None else ["--limit", str(limit)]
        return ["evaluate", str(self.run), "--data", str(data), "--split", split, *most]

    def changed(self) -> Recipe:
        """The recipe with everything set."""
        return find_recipe(self.recipe, [*self.settings, f"train.seed={self.seed}"])


def make_jobs(
    rows: dict[str, Row],
    seeds: int,
    settings: Sequence[str],
    runs: Path,
    *,
    width: int | None = None,
    tune: bool = False,
) -> list[Job]:
    """Rows by their recipes, as jobs: all rows with one seed before any with the next."""
    return [
        Job(
            row=row.text,
            recipe=recipe,
            seed=seed,
            settings=(*set_width(recipe, width), *settings),
            run=runs / f"{recipe}.seed{seed}",
            tune=tune,
        )
        for seed in range(1, seeds + 1)
        for recipe, row in rows.items()
    ]


def choose_rows(rows: dict[str, Row], patterns: Sequence[str]) -> dict[str, Row]:
    """The rows whose recipe one of the patterns means: a part of its name, or one with *."""
    if not patterns:
        return rows
    wild = [p if set(p) & set("*?[") else f"*{p}*" for p in patterns]
    for pattern, each in zip(patterns, wild, strict=True):
        if not any(fnmatchcase(name, each) for name in rows):
            raise ValueError(f"--rows {pattern}: no such row, expected one of {', '.join(rows)}")
    return {name: row for name, row in rows.items() if any(fnmatchcase(name, w) for w in wild)}


def fit_vocabulary(recipe: Recipe, prepared: Prepared) -> list[str]:
    """Settings that give a twin the vocabulary of the data; one of two sides is shared by all."""
    source, target = prepared.vocab_sizes
    if recipe.task.kind == "language_model":
        return [f"model.vocab={source}"]
    share = "all" if SHARED_FILE in prepared.files() else "none"
    sizes = [f"model.source_vocab={source}", f"model.target_vocab={target}"]
    return [f"model.share_embeddings={share}", *sizes]


def set_steps(steps: int | None) -> list[str]:
    """Settings for a run of so many updates, with the proportions of the twins' own 3,000."""
    if steps is None:
        return []
    warmup, often = max(1, steps // 6), max(1, steps // 6)
    return [
        f"train.max_steps={steps}",
        f"train.schedule.warmup={warmup}",
        f"train.schedule.period={max(1, steps - warmup)}",
        f"train.validate_every={often}",
        f"train.save_every={often}",
        f"train.log_every={max(1, steps // 30)}",
    ]


def set_width(recipe: str, width: int | None) -> list[str]:
    """Settings for a model of another width: its heads keep theirs, inner layers the proportion."""
    if width is None:
        return []
    model = RECIPES[recipe].model
    heads = list(_sizes(model, "heads"))
    if isinstance(model, Seq2SeqConfig):
        heads.append(("model.source_heads", model.source_heads))
    head = max(model.dim // size for _, size in heads)
    if width % head:
        raise ValueError(f"--width {width}: expected a multiple of {head}, the width of a head")
    others = [("model.dim", model.dim), ("model.ffn_dim", model.ffn_dim)]
    named = [*others, *heads, *_sizes(model, "ffn_dim")]
    return [f"{path}={size * width // model.dim}" for path, size in named]


def _sizes(model: ModelConfig, name: str) -> Iterable[tuple[str, int]]:
    """Where layers have a field of that name, and its value."""
    stacks = ("encoder", "decoder") if isinstance(model, Seq2SeqConfig) else ("layers",)
    for stack in stacks:
        for place, layer in enumerate(getattr(model, stack)):
            if (size := getattr(layer, name, None)) is not None:
                yield f"model.{stack}.{place}.{name}", size


def check_kind(table: Table, prepared: Prepared) -> Recipe:
    """A recipe of the table's twins; ValueError if they learn something else than this data has."""
    recipe = RECIPES[next(iter(table.twin_rows))]
    wanted, found = recipe.task.kind, prepared.task.kind
    if wanted != found:
        raise ValueError(
            f"data ({prepared.folder}): {found.replace('_', ' ')}, expected "
            f"{wanted.replace('_', ' ')} for the table {table.name}. `lightconv prepare --list` "
            "shows corpora"
        )
    return recipe


def find_splits(table: Table, prepared: Prepared) -> list[str]:
    """Which splits are scored: those of the table; validation in the place of a missing test."""
    return list(dict.fromkeys(s if s in prepared.splits else "valid" for s in table.splits))


def describe_data(
    table: Table,
    prepared: Prepared,
    scale: Scale,
    name: str,
    settings: Sequence[str],
    width: int | None,
    limit: int | None,
) -> Experiment:
    """The experiment that trains rows of a table on this data."""
    return Experiment(
        table=table.name,
        name=name,
        scale=scale,
        corpus=prepared.task.corpus,
        data={split: each.digest for split, each in prepared.contents.splits.items()},
        settings=tuple(settings),
        width=width,
        limit=limit,
    )


def write_paper_script(
    table: Table,
    jobs: Sequence[Job],
    data: Path,
    *,
    seeds: int,
    limit: int | None,
    processes: int | None,
    nodes: int,
) -> str:
    """The full-size commands of jobs with one seed; DATA/CORPUS is where their data is."""
    head = [
        f"# {table.title} ({table.place})",
        "# Every command can be repeated: what is done is not done again.",
    ]
    for corpus in dict.fromkeys(RECIPES[job.recipe].task.corpus for job in jobs):
        folder = shlex.quote(str(data / corpus))
        make = f"lightconv prepare {corpus} --from PATH --out {folder}"
        head.append(f"test -d {folder} || {make}  # docs/data.md says what PATH is")
    trained, scored = [], []
    for job in jobs:
        corpus = RECIPES[job.recipe].task.corpus
        gpus = processes or max(1, GPUS.get(corpus, USUAL_GPUS) // nodes)
        train = [f"{_launch(gpus, nodes)} {shlex.join(job.train(data / corpus))}"]
        score = score_commands(job, data / corpus, table.splits, limit)
        trained.append(write_loop(job, train if nodes > 1 else train + score, seeds))
        scored.append(write_loop(job, score, seeds))
    if nodes == 1:
        return "\n\n".join(["\n".join(head), *trained])
    each = f"# On each of {nodes} machines that share these folders; HEAD is the name of one."
    return "\n\n".join(["\n".join(head), each, *trained, "# Then on one of them.", *scored])


def score_commands(job: Job, data: Path, splits: Sequence[str], limit: int | None) -> list[str]:
    """What follows a training."""
    tune = [job.choose(data)] if job.tune else []
    commands = [*tune, *(job.evaluate(data, split, limit) for split in splits)]
    return [f"lightconv {shlex.join(words)}" for words in commands]


def write_loop(job: Job, commands: Sequence[str], seeds: int) -> str:
    """Commands of a row, for all seeds."""
    head = [f"# {job.row}", f"for seed in {' '.join(map(str, range(1, seeds + 1)))}; do"]
    return "\n".join([*head, *(f"  {_each_seed(c, job.seed)}" for c in commands), "done"])


def _each_seed(command: str, seed: int) -> str:
    """A command of one seed as that of the loop's."""
    for name in (".seed", "train.seed="):
        command = re.sub(rf"{re.escape(name)}{seed}\b", f"{name}$seed", command)
    return command


def _launch(gpus: int, nodes: int) -> str:
    if nodes > 1:
        meet = '--rdzv-backend c10d --rdzv-endpoint "$HEAD:29500"'
        return f"torchrun --nnodes {nodes} --nproc-per-node {gpus} {meet} -m lightconv"
    if gpus > 1:
        return f"torchrun --nproc-per-node {gpus} -m lightconv"
    return "lightconv"
