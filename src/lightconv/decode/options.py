"""How texts are answered, and what a model folder says about it: read without torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from lightconv.config import check_counts, check_from_zero, check_positive, from_dict, read_plain
from lightconv.data.config import TaskKind
from lightconv.decode.config import DecodeConfig

TooLong = Literal["parts", "start", "end"]
EngineName = Literal["auto", "native", "torch"]
Quantization = Literal["none", "int8"]

CONFIG_FILE = "config.json"
# Where a run leaves its model.
RUN_MODEL = "model"
# The kind of a model, and the task it has when nobody says which.
_TASKS: dict[str, TaskKind] = {"seq2seq": "translation", "language_model": "language_model"}


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Batches, windows, and what becomes of texts that are too long."""

    # How many answers there are for each text, best first.
    n_best: int = 1
    # Sentences times the longest of them is at most this in a batch; and so many sentences.
    max_tokens: int = 4096
    max_sentences: int = 64
    # A source of more tokens is answered in parts, or only its start or its end is read.
    max_source: int = 1024
    too_long: TooLong = "parts"
    # Whether a source that is too long is an error.
    strict: bool = False
    # How many texts of a stream are sorted by length and answered together.
    window: int = 1024
    # Whether a text of nothing is answered, not only given back.
    answer_empty: bool = False
    # Whether outputs come with the source token of each of their tokens.
    alignments: bool = False
    # Whether subwords are left as they are, a space between them, and not put together.
    subwords: bool = False
    # What steps the model: the C++ engine ("native"), torch, or the first that can.
    engine: EngineName = "auto"
    # Whether the engine's linear layers compute in 8 bits.
    quantize: Quantization = "none"

    def __post_init__(self) -> None:
        check_counts(self, "n_best", "max_tokens", "max_sentences", "max_source", "window")
        for name, known in (
            ("too_long", get_args(TooLong)),
            ("engine", get_args(EngineName)),
            ("quantize", get_args(Quantization)),
        ):
            if getattr(self, name) not in known:
                value = getattr(self, name)
                raise ValueError(f"{name}={value!r} must be one of {', '.join(known)}")
        if self.quantize != "none" and self.engine == "torch":
            raise ValueError(f"quantize={self.quantize!r} needs the C++ engine, got engine='torch'")


@dataclass(frozen=True, kw_only=True)
class SampleConfig:
    """Outputs drawn at random in the place of a search."""

    temperature: float = 1.0
    # Only so many words, the most probable ones, may be drawn; 0 means all.
    top_k: int = 0
    # Of these, the most probable that together have this probability.
    top_p: float = 1.0
    # What is drawn for a text is a function of this and of the text's number.
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive(self, "temperature")
        check_from_zero(self, "top_k", "seed")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p={self.top_p} must be in (0, 1]")


@dataclass(frozen=True, kw_only=True)
class FolderSettings:
    """What a model folder says besides its shape: its task, as far as known, and its search."""

    folder: Path
    kind: TaskKind
    pairs: bool
    target_lang: str | None
    decode: DecodeConfig


def find_model(folder: str | Path) -> Path:
    """The model folder: the one given, or that of a run."""
    folder = Path(folder)
    inner = folder / RUN_MODEL
    is_run = (folder / "checkpoints").is_dir() and (inner / CONFIG_FILE).is_file()
    return inner if is_run else folder


def read_settings(folder: str | Path) -> FolderSettings:
    """The settings of a model folder or a run; ValueError if it is neither."""
    found = find_model(folder)
    if found.is_file():
        raise ValueError(
            f"{found} is a file, expected a model folder. A checkpoint such as .pt is a pickle, "
            "which could run code: `lightconv import` makes a folder of one of fairseq, safely"
        )
    if not found.is_dir():
        raise ValueError(
            f"{found} does not exist, expected a model folder. `lightconv train` leaves one in "
            "RUN/model"
        )
    if not (found / CONFIG_FILE).is_file():
        raise ValueError(
            f"{found} has no {CONFIG_FILE}, expected a model folder. `lightconv train` leaves one "
            "in RUN/model"
        )
    path = found / CONFIG_FILE
    table = read_plain(path)
    model = _table(table, "model", path)
    if model.get("kind") not in _TASKS:
        raise ValueError(
            f"{path}: no model of lightconv, expected model.kind to be one of {', '.join(_TASKS)}"
        )
    task = _table(table, "task", path)
    try:
        decode: DecodeConfig = from_dict(DecodeConfig, _table(table, "decode", path), "decode")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    language = task.get("target_lang")
    return FolderSettings(
        folder=found,
        kind=_kind(task, model["kind"]),
        pairs=model["kind"] == "seq2seq",
        target_lang=language if isinstance(language, str) else None,
        decode=decode,
    )


def check_coverage(coverage: float, text: TextOptions) -> None:
    """The C++ engine does not say where it looks."""
    if coverage > 0.0 and (text.engine == "native" or text.quantize != "none"):
        asked = "engine='native'" if text.engine == "native" else f"quantize={text.quantize!r}"
        raise ValueError(
            f"coverage={coverage:g} runs in torch only, got {asked}. Leave one of them"
        )


def check_n_best(n_best: int, beam: int) -> None:
    """A search cannot give more answers than it looks at."""
    if n_best > beam:
        raise ValueError(
            f"n_best={n_best} must not be above beam={beam}. Say --beam {n_best}, or fewer answers"
        )


def _kind(task: Mapping[str, Any], model: str) -> TaskKind:
    """The task by name; what contradicts the model, or is missing, follows from the model."""
    for kind in get_args(TaskKind):
        if task.get("kind") == kind and (kind == "language_model") == (model == "language_model"):
            found: TaskKind = kind
            return found
    return _TASKS[model]


def _table(data: Any, name: str, path: Path) -> dict[str, Any]:
    found = data.get(name, {}) if isinstance(data, dict) else {}
    if not isinstance(found, dict):
        raise ValueError(f"{path}: {name} must be a table")
    return found
