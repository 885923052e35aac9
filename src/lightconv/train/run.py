"""The run folder: config.json, vocabulary and codes, log.jsonl, checkpoints, the model at the end.

`Run` is the only reader and writer of one. torch is imported by the methods that need it.
"""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from lightconv.config import ConfigError, differences, from_dict, read, read_plain, to_dict, to_json
from lightconv.console import Display, tell
from lightconv.data.prepared import PIPELINE_FILES
from lightconv.files import digest, inside, replace_file
from lightconv.models.config import ModelConfig
from lightconv.models.folder import (
    CONFIG_FILE,
    RUN_CHECKPOINTS,
    RUN_MODEL,
    ModelFolder,
    build,
    build_empty,
)
from lightconv.train.config import TrainConfig
from lightconv.train.log import BOARD_FOLDER, LOG_FILE, Board, Entry, Log, read_log
from lightconv.train.plot import PLOT_FILE

if TYPE_CHECKING:
    import torch

    from lightconv.models import LanguageModel, Seq2Seq
    from lightconv.train.checkpoint import Checkpoint
    from lightconv.train.checkpoints import Checkpoints
    from lightconv.train.data import TrainingData
    from lightconv.train.group import Group
    from lightconv.train.loop import Loop, Metric, Progress
    from lightconv.train.signals import Stop

# Tables of config.json that a model folder has too.
TABLES = ("task", "decode")
OWN_NAMES = {
    CONFIG_FILE,
    LOG_FILE,
    RUN_CHECKPOINTS,
    RUN_MODEL,
    BOARD_FOLDER,
    PLOT_FILE,
    *PIPELINE_FILES,
}
# Checkpoints to average by default: as many as the paper takes for IWSLT.
LAST = 10
# Fields that describe a recipe and change nothing.
WORDS = ("about", "sources")
# Settings that --allow-changes permits: not the model, the order of the data, or the state of the
# optimiser and of the averages.
CHANGEABLE = (
    "decode",
    "train.average_last",
    "train.clip_norm",
    "train.compile",
    "train.keep_best",
    "train.keep_last",
    "train.label_smoothing",
    "train.log_every",
    "train.max_steps",
    "train.patience",
    "train.precision",
    "train.save_every",
    "train.schedule",
    "train.tokens_per_update",
    "train.validate_every",
)


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
    progress: "Progress"
    skipped: int
    entries: list[Entry]


class Run:
    """A run folder.

    recipe_tables  tables that config.json of the exported model has beside the model
    """

    def __init__(
        self,
        path: str | Path,
        model: ModelConfig,
        train: TrainConfig,
        tables: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.path = Path(path)
        self.model_config = model
        self.train_config = train
        self.recipe_tables = dict(tables or {})
        self._file_names = set(PIPELINE_FILES)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """An existing run; ValueError if the folder is not one."""
        path = Path(path)
        if not path.is_dir():
            raise ValueError(f"there is no folder {path}, expected a run folder of `train`")
        data = read_plain(path / CONFIG_FILE)
        if not isinstance(data, dict) or "train" not in data:
            raise ValueError(f"{path} is not a run folder: {CONFIG_FILE} has no table `train`")
        try:
            model: ModelConfig = from_dict(ModelConfig, data.get("model"), "model")
            train: TrainConfig = from_dict(TrainConfig, data["train"], "train")
        except ConfigError as error:
            raise ValueError(f"{path / CONFIG_FILE}: {error}") from None
        tables = {name: data[name] for name in TABLES if isinstance(data.get(name), dict)}
        return cls(path, model, train, tables)

    @classmethod
    def start(
        cls, path: str | Path, recipe: Any, *, overwrite: bool = False, allow_changes: bool = False
    ) -> Self:
        """A new run, or an existing one of the same recipe; ValueError lists what differs.

        overwrite      removes an existing run first
        allow_changes  permits changes of the settings in CHANGEABLE
        """
        path = Path(path)
        config = path / CONFIG_FILE
        if overwrite and path.exists():
            _remove(path)
        if config.exists():
            changed = _check_same(path, recipe, allow_changes=allow_changes)
        elif path.exists() and (not path.is_dir() or set(_names(path)) - set(PIPELINE_FILES)):
            raise ValueError(
                f"{path} exists and is not a run folder: it has no {CONFIG_FILE}. Choose another "
                "name"
            )
        else:
            path.mkdir(parents=True, exist_ok=True)
            changed = True
        if changed:
            replace_file(config, to_json(recipe).encode())
        tables = {name: to_dict(getattr(recipe, name)) for name in TABLES}
        return cls(path, recipe.model, recipe.train, tables)

    @property
    def model_path(self) -> Path:
        """Folder of the exported model."""
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
        present = checkpoints.steps()
        if steps is not None:
            if missing := [step for step in steps if step not in present]:
                listed = ", ".join(map(str, present)) or "none"
                raise ValueError(
                    f"{checkpoints.folder} has no checkpoint of step {missing[0]}; there are: "
                    f"{listed}"
                )
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
        from lightconv.models.tensors import compare, fill, parameters
        from lightconv.train.checkpoints import average

        folders = self.checkpoints().folders()
        tensors = average([folders[step] for step in steps], ema=ema)
        model = build_empty(self.model_config)
        wanted = {name: tuple(tensor.shape) for name, tensor in parameters(model).items()}
        found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        compare(folders[steps[0]], str(self.path / CONFIG_FILE), wanted, found)
        fill(model, tensors)
        return model.eval()

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
        return ModelFolder.write(
            out or self.model_path,
            model,
            files=self.files(),
            tables={**self.recipe_tables, **(tables or {})},
            overwrite=overwrite,
        )

    def files(self) -> dict[str, Path]:
        """Vocabulary, codes and pipeline that the run began with.

        ValueError if one of them is no longer what the newest checkpoint says.
        """
        digests = self._digests()
        found: dict[str, Path] = {}
        for name in sorted(self._file_names):
            wanted = digests.get(name)
            if wanted is None and not (self.path / name).exists():
                continue
            found[name] = inside(self.path, name)
            if wanted is not None and digest(found[name]) != wanted:
                raise ValueError(
                    f"{found[name]} is not the file that the run began with. Train again with the "
                    "same command to restore it from the data"
                )
        return found

    def train(
        self,
        data: "TrainingData",
        *,
        device: "torch.device | None" = None,
        stop: "Stop | None" = None,
        group: "Group | None" = None,
        metric: "Metric | None" = None,
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

        from lightconv.train.allocator import Allocator, most_kept
        from lightconv.train.group import Group
        from lightconv.train.loop import Loop
        from lightconv.train.optim import derive, set_seed
        from lightconv.train.signals import Stop
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
            loop = Loop(
                trainer,
                data,
                checkpoints=checkpoints,
                log=log,
                display=display,
                stop=stop,
                metric=metric,
                allocator=allocator,
                machine=describe_machine(device, group),
            )
            if found is not None:
                loop.resume(found)
                _tell_resumed(loop, found)
            code = self._finish(loop)
            averaged = self._export_last(trainer.step) if first and code == 0 else []
            return Outcome(
                code,
                trainer.step,
                checkpoints.path(trainer.step),
                averaged,
                loop.progress,
                trainer.guard.skipped,
                [] if log is None else log.entries,
            )

    def _finish(self, loop: "Loop") -> int:
        """Runs the loop; an error names the last checkpoint."""
        from lightconv.train.checkpoints import SaveError
        from lightconv.train.guard import DivergenceError

        try:
            return loop.run()
        except DivergenceError as error:
            raise DivergenceError(f"{error}. {loop.checkpoints.describe_last()}") from None
        except SaveError:
            raise
        except OSError as error:
            what = f"{error.filename or self.path}: {error.strerror or error}"
            raise SaveError(f"{what}. {loop.checkpoints.describe_last()}") from error

    def _export_last(self, step: int) -> list[int]:
        """Exports the result of a training that ended at `step`; returns the steps averaged."""
        config = self.train_config
        steps = self.regular_steps()[-config.average_last :] if config.average_last else []
        if len(steps) < 2:
            steps = [step]
        self.export(self.average(steps, ema=config.ema > 0.0), overwrite=True)
        return steps

    def _open_log(self, found: "Checkpoint | None", display: Display, *, board: bool) -> Log:
        """The log up to what the checkpoint knows of."""
        step = validated = 0
        if found is not None:
            step, validated = found.step, found.values["progress"]["validated"]

        def keep(entry: Entry) -> bool:
            known: int = validated if entry.get("kind") == "valid" else step
            return bool(entry["step"] <= known)

        curves = Board(self.path / BOARD_FOLDER, step) if board else None
        return Log(self.path / LOG_FILE, keep, report=display.note, board=curves)

    def _digests(self) -> dict[str, str]:
        """Digests of the data, as the newest good checkpoint has them."""
        from lightconv.train.checkpoint import DamagedError, read_state

        for _, folder in sorted(self.checkpoints().folders().items(), reverse=True):
            try:
                return dict(read_state(folder)["values"].get("data", {}))
            except DamagedError:
                continue
        return {}

    def _keep_files(self, data: "TrainingData") -> None:
        """Copies vocabulary and codes into the run, whose model is made of these copies."""
        files = data.files()
        for name in PIPELINE_FILES:
            if name not in files:
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
        """Raises ValueError unless the checkpoint was made with this data."""
        old, new = found.values["data"], data.digests
        lines = [
            f"{name}: {_short(old.get(name))} -> {_short(new.get(name))}"
            for name in {**old, **new}
            if old.get(name) != new.get(name)
        ]
        if lines:
            raise ValueError(
                f"{self.path} was begun with other data: {'; '.join(lines)}. Give the data it was "
                "begun with, or choose another folder"
            )

    def _check_metric(self, found: "Checkpoint", metric: "Metric | None") -> None:
        """Raises ValueError if validation measured something else before.

        The best checkpoint must be decided by one measure only.
        """
        now = "" if metric is None else metric.name
        before = found.values.get("metric")
        if before is None and (self.path / LOG_FILE).exists():  # a checkpoint of 0.1.0
            valid = [e for e in read_log(self.path / LOG_FILE) if e.get("kind") == "valid"]
            before = " ".join(valid[-1].get("metric", {})) if valid else None
        if before is not None and found.values["progress"]["validated"] and before != now:
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
    """`Run.train` without a recipe: nothing compares the configuration with that of an older run.

    options  as of `Run.train`
    """
    return Run(folder, model, config, tables).train(data, **options)


def is_run(path: str | Path) -> bool:
    """True for a folder with checkpoints of a run."""
    return (Path(path) / RUN_CHECKPOINTS).is_dir()


def describe_machine(device: "torch.device", group: "Group") -> dict[str, Any]:
    """All that must stay the same for a resumed run to be the same, bit for bit."""
    import torch

    from lightconv.ops.library import native

    return {
        "torch": torch.__version__,
        "device": device.type,
        "threads": torch.get_num_threads(),
        "kernels": native().isa,
        "processes": group.size,
    }


def _find_checkpoint(checkpoints: "Checkpoints", group: "Group") -> "Checkpoint | None":
    """The newest good checkpoint as rank 0 finds it; all ranks load the same."""
    found = checkpoints.latest() if group.rank == 0 else None
    chosen = group.tell(None if found is None else str(found.step))
    if chosen is None or found is not None:
        return found
    return checkpoints.load(int(chosen))


def _tell_resumed(loop: "Loop", found: "Checkpoint") -> None:
    note = loop.display.note
    for damaged in found.skipped:
        note(f"the checkpoint of step {damaged.step} is damaged: {damaged.reason}")
    note(f"resumed from step {found.step:,} ({found.path})")
    old = found.values["machine"]
    changed = [f"{k} {old.get(k)} -> {v}" for k, v in loop.machine.items() if old.get(k) != v]
    if changed:
        note(
            f"other machine: {', '.join(changed)}. The run continues, but not bit for bit as it "
            "would have"
        )
    if loop.ended():
        note("it has ended; the model is written once more")


def _check_same(path: Path, recipe: Any, *, allow_changes: bool) -> bool:
    """True if something changed that may change; ValueError if something else did."""
    old = read(path / CONFIG_FILE, type(recipe))
    changed = [line for line in differences(old, recipe) if not line.startswith(WORDS)]
    fixed = [line for line in changed if not (allow_changes and line.startswith(CHANGEABLE))]
    if fixed:
        hint = "" if allow_changes else ". --allow-changes permits some changes of train and decode"
        raise ValueError(
            f"{path} was begun with another configuration: {'; '.join(fixed)}. Set these back, "
            f"or choose another folder{hint}"
        )
    return bool(changed)


def _remove(path: Path) -> None:
    """Removes a run; ValueError if the folder holds anything else."""
    from lightconv.train.checkpoints import Checkpoints

    strange = sorted(set(_names(path)) - OWN_NAMES) if path.is_dir() else [path.name]
    if strange:
        raise ValueError(f"{path} is not overwritten: {strange[0]} does not belong to a run")
    if (path / RUN_CHECKPOINTS).is_dir():
        # Not while another process writes there.
        with Checkpoints(path / RUN_CHECKPOINTS) as checkpoints:
            checkpoints.claim()
    # First the file that makes it a run: a half removed one is not taken for a whole one.
    (path / CONFIG_FILE).unlink(missing_ok=True)
    shutil.rmtree(path)


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if not path.name.startswith(".")]


def _short(text: str | None) -> str:
    return "absent" if text is None else f"{text[:12]}..."
