"""The run folder: config.json, vocabulary and codes, log.jsonl, checkpoints, the model at the end.

`Run` is the only reader and writer of one. torch is imported by the methods that need it.
"""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from lightconv.config import differences, from_dict, read, read_plain, to_json
from lightconv.console import Display, tell
from lightconv.data.pipeline import PIPELINE_FILES
from lightconv.files import digest, inside, named, replace_file
from lightconv.models.config import ModelConfig
from lightconv.models.folder import (
    CONFIG_FILE,
    RUN_CHECKPOINTS,
    RUN_MODEL,
    ModelFolder,
    build,
    build_from,
)
from lightconv.train.config import TrainConfig
from lightconv.train.log import BOARD_FOLDER, LOG_FILE, PLOT_FILE, Board, Entry, Log, read_log

if TYPE_CHECKING:
    import torch

    from lightconv.models import LanguageModel, Seq2Seq
    from lightconv.train.checkpoints import Checkpoint, Checkpoints
    from lightconv.train.data import TrainingData
    from lightconv.train.distributed import Group
    from lightconv.train.launch import Stop
    from lightconv.train.loop import RunMetric, RunProgress

# Tables of config.json that a model folder has too.
TABLES = ("task", "decode")
OWN_NAMES = {CONFIG_FILE, LOG_FILE, RUN_CHECKPOINTS, RUN_MODEL, BOARD_FOLDER, PLOT_FILE}
OWN_NAMES |= {*PIPELINE_FILES}
# Checkpoints to average by default: as many as the paper takes for IWSLT.
LAST = 10
# Fields that describe a recipe and change nothing.
WORDS = ("about", "sources")
# Not even --allow-changes permits these: the model, the order of the data, and the state of the
# optimiser and of the average depend on them.
FIXED = ("task", "model", "train.optimizer", "train.max_tokens", "train.ema", "train.seed")


class Outcome(NamedTuple):
    """The end of a training.

    code        0 if it is complete, else the exit code of the stop
    checkpoint  folder of the last checkpoint
    averaged    steps whose parameters are averaged in the exported model; none if stopped
    """

    code: int
    step: int
    checkpoint: Path
    averaged: list[int]
    progress: "RunProgress"
    skipped: int
    entries: list[Entry]


@dataclass
class Run:
    """A run folder.

    recipe_tables  tables of config.json of the exported model besides the model
    """

    path: Path
    model_config: ModelConfig
    train_config: TrainConfig
    recipe_tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    _file_names: set[str] = field(default_factory=lambda: {*PIPELINE_FILES})

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """An existing run; ValueError if the folder is not one."""
        path = Path(path)
        if not path.is_dir():
            raise ValueError(f"there is no folder {path}, expected a run folder of `train`")
        data = read_plain(path / CONFIG_FILE)
        if not isinstance(data, dict) or "train" not in data:
            raise ValueError(f"{path} is not a run folder: {CONFIG_FILE} has no table `train`")
        with named(path / CONFIG_FILE):
            model: ModelConfig = from_dict(ModelConfig, data.get("model"), "model")
            train: TrainConfig = from_dict(TrainConfig, data["train"], "train")
        tables = {name: data[name] for name in TABLES if isinstance(data.get(name), dict)}
        return cls(path, model, train, tables)

    @classmethod
    def start(
        cls, path: str | Path, recipe: Any, *, overwrite: bool = False, allow_changes: bool = False
    ) -> Self:
        """A new run, or an existing one of the same recipe; ValueError lists what differs.

        overwrite      removes an existing run first
        allow_changes  permits changes of `train` and `decode` that a run survives
        """
        path = Path(path)
        if overwrite and path.exists():
            _remove(path)
        if (path / CONFIG_FILE).exists():
            _resume(path / CONFIG_FILE, recipe, allow_changes=allow_changes)
        elif path.exists() and _strange(path, {*PIPELINE_FILES}):
            raise ValueError(f"{path} exists and is not a run folder. Choose another name")
        else:
            path.mkdir(parents=True, exist_ok=True)
            replace_file(path / CONFIG_FILE, to_json(recipe).encode())
        return cls.open(path)

    @property
    def model_path(self) -> Path:
        return self.path / RUN_MODEL

    def checkpoints(self, *, writer: bool = False) -> "Checkpoints":
        """The checkpoints, with the run's rule of what is kept."""
        from lightconv.train.checkpoints import Checkpoints

        config = self.train_config
        return Checkpoints(
            self.path / RUN_CHECKPOINTS,
            keep_last=config.keep_last,
            keep_best=config.keep_best,
            is_regular=config.is_regular,
            writer=writer,
        )

    def log(self) -> list[Entry]:
        """Entries of log.jsonl; damaged lines are reported on stderr."""
        return read_log(self.path / LOG_FILE, tell)

    def regular_steps(self) -> list[int]:
        """Steps of the checkpoints that an uninterrupted run would have, oldest first."""
        return [step for step in self.checkpoints().steps() if self.train_config.is_regular(step)]

    def choose(
        self,
        *,
        last: int | None = None,
        best: int | None = None,
        steps: Sequence[int] | None = None,
    ) -> list[int]:
        """Steps in ascending order: those given, the best, or the last regular ones."""
        checkpoints = self.checkpoints()
        if steps is not None:
            for step in steps:
                checkpoints.find(step)
            return sorted(steps)
        if best is not None:
            known, count, kind, option = checkpoints.ranking(), best, "with a score", "--best"
        else:
            known, count = self.regular_steps()[::-1], last or LAST
            kind, option = "at regular steps", "--last"
        if len(known) < count:
            remedy = f". Use {option} {len(known)}" if known else ""
            raise ValueError(
                f"{checkpoints.folder} has {len(known)} checkpoints {kind}, expected "
                f"{count}{remedy}"
            )
        return sorted(known[:count])

    def average(self, steps: Sequence[int], *, ema: bool = False) -> "Seq2Seq | LanguageModel":
        """The model whose parameters are the mean over the checkpoints of these steps.

        ema  averages the moving averages that training kept instead of the parameters
        """
        from lightconv.train.checkpoints import average

        checkpoints = self.checkpoints()
        folders = [checkpoints.find(step) for step in steps]
        tensors = average(folders, ema=ema)
        return build_from(self.model_config, tensors, folders[0], str(self.path / CONFIG_FILE))

    def export(
        self,
        model: "Seq2Seq | LanguageModel",
        out: Path | None = None,
        *,
        tables: Mapping[str, Mapping[str, Any]] | None = None,
        overwrite: bool = False,
    ) -> ModelFolder:
        """Writes a model folder, RUN/model by default, with the run's own vocabulary and codes.

        tables  added to the run's own tables
        """
        tables = {**self.recipe_tables, **(tables or {})}
        out = out or self.model_path
        return ModelFolder.write(out, model, files=self.files(), tables=tables, overwrite=overwrite)

    def files(self) -> dict[str, Path]:
        """Vocabulary, codes and pipeline that the run began with.

        ValueError if one of them is no longer what the newest checkpoint says.
        """
        from lightconv.train.checkpoints import CheckpointFiles, DamagedError

        digests: dict[str, str] = {}
        for _, folder in sorted(self.checkpoints().folders().items()):
            try:
                digests = CheckpointFiles(folder).state()["values"].get("data", {})
            except DamagedError:
                continue
        found: dict[str, Path] = {}
        for name in sorted(self._file_names):
            if name in digests or (self.path / name).exists():
                found[name] = inside(self.path, name)
                if digest(found[name]) != digests.get(name, digest(found[name])):
                    raise ValueError(
                        f"{found[name]} is not the file that the run began with. Train again to "
                        "restore it from the data"
                    )
        return found

    def train(
        self,
        data: "TrainingData",
        *,
        device: "torch.device | None" = None,
        stop: "Stop | None" = None,
        group: "Group | None" = None,
        metric: "RunMetric | None" = None,
        tensorboard: bool = False,
    ) -> Outcome:
        """Trains from the newest checkpoint, or from the start, to the end and exports the model.

        data    `PreparedData(folder)`, or an object with the methods of TrainingData
        device  default: the CPU
        stop    asked when to stop; by default Ctrl-C and SIGTERM save and stop
        group   the ranks that train together; default: this process alone
        metric  measured at each validation; decides which checkpoint is best
        """
        import torch

        from lightconv.train.distributed import Group
        from lightconv.train.launch import Stop
        from lightconv.train.loop import Loop
        from lightconv.train.memory import Allocator, most_kept
        from lightconv.train.optim import derive, set_seed
        from lightconv.train.trainer import Trainer

        group, config = group or Group(), self.train_config
        device = device or torch.device("cpu")
        first = group.rank == 0
        with ExitStack() as stack:
            stop = stop or stack.enter_context(Stop())
            checkpoints = stack.enter_context(self.checkpoints(writer=first))
            checkpoints.claim()
            found = _find_checkpoint(checkpoints, group)
            if found is not None:
                self._check_data(found, data)
                self._check_metric(found, metric)
            set_seed(derive(config.seed), device)
            allocator = stack.enter_context(Allocator(most_kept(device.type, group.size)))
            model = build(self.model_config)
            group.prepare(model)  # before .to: the whole may be too large for one device
            trainer = Trainer(model.to(device), config, group=group)
            display = stack.enter_context(Display(quiet=not first))
            log = None
            if first:
                self._keep_files(data)
                log = stack.enter_context(self._open_log(found, display, board=tensorboard))
            loop = Loop(trainer, data, checkpoints, log, display, stop, metric, allocator)
            if found is not None:
                loop.resume(found)
            code = loop.run()
            return Outcome(
                code,
                trainer.step,
                checkpoints.path(trainer.step),
                self._export_last(trainer.step) if first and code == 0 else [],
                loop.progress,
                trainer.guard.skipped,
                [] if log is None else log.entries,
            )

    def _export_last(self, step: int) -> list[int]:
        from lightconv.train.checkpoints import DamagedError

        config = self.train_config
        steps = self.regular_steps()[-config.average_last :] if config.average_last else []
        if len(steps) < 2:
            steps = [step]
        try:
            self.export(self.average(steps, ema=config.ema > 0.0), overwrite=True)
        except DamagedError as error:
            raise DamagedError(f"{error}. Move this checkpoint away and start again") from None
        return steps

    def _open_log(self, found: "Checkpoint | None", display: Display, *, board: bool) -> Log:
        step = 0 if found is None else found.step
        known = {"valid": 0 if found is None else found.values["progress"]["validated"]}
        curves = Board(self.path / BOARD_FOLDER, step) if board else None
        return Log(
            self.path / LOG_FILE,
            lambda entry: bool(entry["step"] <= known.get(entry.get("kind", ""), step)),
            report=display.note,
            board=curves,
        )

    def _keep_files(self, data: "TrainingData") -> None:
        """Copies vocabulary and codes into the run, whose model is made of these copies."""
        files = data.files()
        for name in {*PIPELINE_FILES} - {*files}:
            (self.path / name).unlink(missing_ok=True)
        for name, content in files.items():
            new = content if isinstance(content, bytes) else content.read_bytes()
            if data.digests.get(name) not in (None, hashlib.sha256(new).hexdigest()):
                raise ValueError(f"{name} of the data has changed since it was opened. Start again")
            path = self.path / name
            if not path.exists() or path.read_bytes() != new:
                replace_file(path, new)
        self._file_names = {*PIPELINE_FILES, *files}

    def _check_data(self, found: "Checkpoint", data: "TrainingData") -> None:
        absent = dict.fromkeys({**found.values["data"], **data.digests}, "absent")
        old, new = ({**absent, **digests} for digests in (found.values["data"], data.digests))
        lines = [f"{k}: {old[k][:12]} -> {new[k][:12]}" for k in absent if old[k] != new[k]]
        if lines:
            raise ValueError(
                f"{self.path} was begun with other data: {'; '.join(lines)}. Give the data it was "
                "begun with, or choose another folder"
            )

    def _check_metric(self, found: "Checkpoint", metric: "RunMetric | None") -> None:
        """Raises ValueError if validation measured something else before.

        The best checkpoint must be decided by one measure only.
        """
        now = "" if metric is None else metric.name
        before = found.values.get("metric")
        if before is None and (self.path / LOG_FILE).exists():  # a checkpoint of 0.1.0
            valid = [e for e in read_log(self.path / LOG_FILE) if e.get("kind") == "valid"]
            before = " ".join(valid[-1].get("metric", {})) if valid else None
        if found.values["progress"]["validated"] and before not in (None, now):
            raise ValueError(
                f"{self.path} was begun with {before or 'no --metric'}, expected the same, got "
                f"{now or 'no --metric'}. Set it back, or choose another folder"
            )


def run(
    folder: str | Path,
    data: "TrainingData",
    model: ModelConfig,
    config: TrainConfig,
    *,
    tables: Mapping[str, Mapping[str, Any]] | None = None,
    **options: Any,
) -> Outcome:
    """`Run.train` without a recipe; an older run's configuration is not compared."""
    return Run(Path(folder), model, config, tables or {}).train(data, **options)


class RunModel(ModelFolder):
    """The model of a run that has not ended: its best checkpoint, or its newest without a score."""

    def __init__(self, path: str | Path) -> None:
        self.run = Run.open(path)
        self.path, self.config = self.run.path, self.run.model_config
        self.tables = dict(self.run.recipe_tables)
        checkpoints = self.run.checkpoints()
        ranking = checkpoints.ranking()
        self.step = ranking[0] if ranking else checkpoints.steps()[-1]
        which = "best so far" if ranking else "newest"
        self.note = f"{path} has not ended: using the checkpoint of step {self.step:,} ({which})"

    def verify(self) -> None:
        """Nothing: checkpoints are verified when they are read."""

    def load(
        self, device: "torch.device | str" = "cpu", dtype: "torch.dtype | None" = None
    ) -> "Seq2Seq | LanguageModel":
        tell(f"note: {self.note}")
        return self.run.average([self.step]).to(device, dtype)


def is_run(path: str | Path) -> bool:
    """True for a folder with checkpoints of a run."""
    return (Path(path) / RUN_CHECKPOINTS).is_dir()


def _find_checkpoint(checkpoints: "Checkpoints", group: "Group") -> "Checkpoint | None":
    found = checkpoints.latest() if group.rank == 0 else None
    chosen = group.tell(None if found is None else str(found.step))
    return found if chosen is None or found is not None else checkpoints.load(int(chosen))


def _resume(path: Path, recipe: Any, *, allow_changes: bool) -> None:
    """Changes config.json where it may change; ValueError if something else did."""
    old = read(path, type(recipe))
    recipe = _keep_defaults(old, recipe)
    changed = [line for line in differences(old, recipe) if not line.startswith(WORDS)]
    fixed = [line for line in changed if not allow_changes or line.startswith(FIXED)]
    if fixed:
        hint = "" if allow_changes else ". --allow-changes permits some changes of train and decode"
        raise ValueError(
            f"{path.parent} was begun with another configuration: {'; '.join(fixed)}. Set these "
            f"back, or choose another folder{hint}"
        )
    if changed:
        replace_file(path, to_json(recipe).encode())


def _keep_defaults(old: Any, new: Any) -> Any:
    """The new recipe with defaults of the old one that are others since 0.1.0.

    Then an update was a number of tokens, and neither task nor sharing came from the data.
    """

    def stays(*paths: str) -> bool:
        return not any(recipe.is_set(path) for recipe in (old, new) for path in paths)

    kept = {"task": old.task} if stays("task") else {}
    tokens, batches = old.train.tokens_per_update, new.train.batches_per_update
    if tokens and batches and stays("train.tokens_per_update", "train.batches_per_update"):
        kept["train"] = replace(new.train, batches_per_update=0, tokens_per_update=tokens)
    apart = {**vars(old.model), "share_embeddings": "decoder"}
    if vars(new.model) == apart and stays("model.share_embeddings"):
        kept["model"] = old.model
    return replace(new, **kept)


def _remove(path: Path) -> None:
    """Removes a run; ValueError if the folder holds anything else."""
    from lightconv.train.checkpoints import Checkpoints

    if strange := _strange(path, OWN_NAMES):
        raise ValueError(f"{path} is not overwritten: {strange[0]} does not belong to a run")
    if is_run(path):
        with Checkpoints(path / RUN_CHECKPOINTS) as checkpoints:
            checkpoints.claim()  # not while another process writes there
    # First the file that makes it a run: a half removed one is not taken for a whole one.
    (path / CONFIG_FILE).unlink(missing_ok=True)
    shutil.rmtree(path)


def _strange(path: Path, known: set[str]) -> list[str]:
    """Visible names in a folder besides the known ones; that of a path that is not a folder."""
    if not path.is_dir():
        return [path.name]
    names = {entry.name for entry in path.iterdir() if not entry.name.startswith(".")}
    return sorted(names - known)
