"""Model folder: config.json, model.safetensors, vocabulary files, README.md, manifest.json.

Training exports it and every command reads it. It holds no code, so an untrusted folder can be
wrong but cannot do anything.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING, Any, Self

from lightconv.config import from_dict, read_plain, to_dict
from lightconv.files import (
    MANIFEST_FILE,
    inside,
    named,
    new_folder,
    replace_file,
    verify_manifest,
    write_file,
    write_manifest,
)
from lightconv.models.config import LanguageModelConfig, MixerConfig, ModelConfig, Seq2SeqConfig

if TYPE_CHECKING:
    import torch

    from lightconv.data import Vocabularies, Vocabulary
    from lightconv.models.layers import BaseModel
    from lightconv.models.lm import LanguageModel
    from lightconv.models.seq2seq import Seq2Seq

FORMAT = "lightconv"
VERSION = 1
# The name by which transformers knows a config.json of ours; not read here.
MODEL_TYPE = "lightconv"
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
CARD_FILE = "README.md"
# A run folder has these: its checkpoints, and the model once it has ended.
RUN_CHECKPOINTS = "checkpoints"
RUN_MODEL = "model"
# config.json holds these; every other name is a table of somebody else's.
OWN_NAMES = ("format", "version", "model_type", "model")
# First bytes of a zip archive of torch.save and of bare pickles.
PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
# Folders verified by this process, with the inodes and times of their files, and its age in ns.
OLD_ENOUGH = 1_000_000_000
_VERIFIED: dict[Path, dict[str, tuple[int, int]]] = {}


class ModelFolder:
    """A model folder, opened and checked; a run folder stands for the model in it.

    path    the folder
    config  configuration of the model
    tables  other tables of config.json by name, such as `task` and `decode`; not checked
    """

    def __init__(self, path: str | Path) -> None:
        self.path = _find(Path(path))
        file = inside(self.path, CONFIG_FILE)
        data = read_plain(file)
        with named(file):
            self.config, self.tables = _parse(data)

    @property
    def pairs(self) -> bool:
        """True for a sequence-to-sequence model, False for a language model."""
        return isinstance(self.config, Seq2SeqConfig)

    def verify(self) -> None:
        """Compares all files with the manifest; folders of lightconv 0.1 have none."""
        if not (self.path / MANIFEST_FILE).exists():
            return
        stats = {path.name: path.stat() for path in self.path.iterdir()}
        # The time of a change (ctime) cannot be set back.
        state = {name: (found.st_ino, found.st_ctime_ns) for name, found in stats.items()}
        if _VERIFIED.get(self.path) == state:
            return
        try:
            verify_manifest(self.path)
        except ValueError as error:
            raise ValueError(
                f"{error}. The folder is damaged: copy or export it again. If you changed the file "
                f"yourself, remove {self.path / MANIFEST_FILE}"
            ) from None
        # A change within a tick of the clock would leave the time as it is.
        if max(time for _, time in state.values()) < time_ns() - OLD_ENOUGH:
            _VERIFIED[self.path] = state

    def load(
        self, device: "torch.device | str" = "cpu", dtype: "torch.dtype | None" = None
    ) -> "Seq2Seq | LanguageModel":
        """The model in evaluation mode, its parameters memory-mapped unless converted."""
        import torch

        from lightconv.models.tensors import read_weights

        weights = inside(self.path, WEIGHTS_FILE)
        check_no_pickle(weights)
        self.verify()
        tensors = read_weights(weights)
        # Building a model costs time per layer, so the file must have tensors to fill them.
        count, layers = len(tensors), sum(map(len, self.config.stacks.values()))
        if count < layers:
            raise ValueError(f"{weights} has {count} tensors for {layers} layers in {CONFIG_FILE}")
        model = build_from(self.config, tensors, weights, f"its {CONFIG_FILE}")
        return model.to(torch.device(device), dtype)

    def set_tables(self, tables: Mapping[str, Mapping[str, Any]]) -> None:
        """Replaces tables of config.json."""
        tables = {**self.tables, **tables}
        self.set_file(CONFIG_FILE, _config_text(self.config, tables).encode())
        self.tables = tables

    def set_file(self, name: str, data: bytes) -> None:
        """Adds or replaces a file; older versions ignore those that they do not know."""
        self.verify()
        verified = (self.path / MANIFEST_FILE).exists()
        # Without a manifest in between: a crash must not leave one that does not fit.
        (self.path / MANIFEST_FILE).unlink(missing_ok=True)
        replace_file(self.path / name, data)
        if verified:
            write_manifest(self.path, skip=(CARD_FILE,))

    @classmethod
    def write(
        cls,
        path: str | Path,
        model: "BaseModel",
        *,
        vocabulary: "Vocabularies | Vocabulary | None" = None,
        files: Mapping[str, bytes | Path] | None = None,
        tables: Mapping[str, Mapping[str, Any]] | None = None,
        overwrite: bool = False,
    ) -> Self:
        """Writes a model folder atomically.

        files   further files by name, as bytes or as a file to copy; a README.md among them
                replaces the generated one
        tables  tables of config.json besides the model, such as `task`
        """
        from lightconv.models.tensors import parameters, write_tensors

        path = Path(path)
        check_free(path, overwrite=overwrite)
        named = parameters(model)
        extra = _extra_files(model.config, vocabulary, files or {})
        extra[CONFIG_FILE] = _config_text(model.config, tables or {}).encode()
        if CARD_FILE not in extra:
            count = sum(tensor.numel() for tensor in named.values())
            listed = sorted([WEIGHTS_FILE, *extra])
            task = (tables or {}).get("task", {})
            card = _card(path.absolute().name, model.config, count, listed, task)
            extra[CARD_FILE] = card.encode()
        try:
            with new_folder(path, replace=overwrite) as fresh:
                for name, data in extra.items():
                    write_file(fresh / name, data)
                write_tensors(fresh / WEIGHTS_FILE, named)
                write_manifest(fresh, skip=(CARD_FILE,))  # people may edit the card
        except OSError as error:  # a failed write names no file
            reason = f"the model folder cannot be written: {error.strerror}"
            raise OSError(error.errno, reason, str(path)) from error
        return cls(path)


def build(config: ModelConfig) -> "Seq2Seq | LanguageModel":
    """A new model of that configuration with random parameters."""
    from lightconv.models.lm import LanguageModel
    from lightconv.models.seq2seq import Seq2Seq

    return Seq2Seq(config) if isinstance(config, Seq2SeqConfig) else LanguageModel(config)


def build_empty(config: ModelConfig) -> "Seq2Seq | LanguageModel":
    """A model on the meta device: all shapes, no memory."""
    import torch

    from lightconv.models.layers import SkipInit

    with torch.device("meta"), SkipInit():
        return build(config)


def build_from(
    config: ModelConfig, tensors: "Mapping[str, torch.Tensor]", where: object, by: str
) -> "Seq2Seq | LanguageModel":
    """The model of these parameters in evaluation mode; `where` and `by` as of `compare`."""
    from lightconv.models.tensors import compare, fill, parameters

    model = build_empty(config)
    compare(where, by, parameters(model), tensors)
    fill(model, tensors)
    return model.eval()


def check_free(folder: Path, *, overwrite: bool) -> None:
    """Raises ValueError if `folder` exists and may not be replaced by a model folder."""
    if not folder.is_symlink() and not folder.exists():
        return
    if not overwrite:
        raise ValueError(f"{folder} exists. Choose another name, or use overwrite (--overwrite)")
    is_folder = folder.is_dir() and not folder.is_symlink()
    entries = {each.name: each.is_dir() for each in folder.iterdir()} if is_folder else {"": True}
    if any(entries.values()) or (entries and not {CONFIG_FILE, WEIGHTS_FILE} <= entries.keys()):
        raise ValueError(f"{folder} exists and is not a model folder, so it is not overwritten")


def check_no_pickle(path: Path) -> None:
    """Raises ValueError for a file of torch.save, whatever its name."""
    with path.open("rb") as file:
        start = file.read(4)
    if start.startswith(PICKLES):
        raise ValueError(
            f"{path} is a pickle, which can run code when it is opened, so it is not. If it is a "
            f"checkpoint of fairseq, import it: lightconv import fairseq {path} --dict DICT --out "
            "FOLDER"
        )


def describe_layers(layers: Sequence[MixerConfig]) -> str:
    """`7 dynamicconv, kernels 3, 7, 15, 31, 31, 31, 31`."""
    kinds = Counter(layer.kind for layer in layers)
    text = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    kernels = [str(layer.kernel) for layer in layers if hasattr(layer, "kernel")]
    return text + (f", kernels {', '.join(kernels)}" if kernels else "")


def _find(path: Path) -> Path:
    """The model folder meant by a path, which may be a run; ValueError if it is neither."""
    expected = "expected a model folder. `lightconv train` leaves one in RUN/model"
    if path.is_file():
        check_no_pickle(path)
        raise ValueError(f"{path} is a file, {expected}")
    if not path.is_dir():
        raise ValueError(f"{path} does not exist, {expected}")
    if (path / RUN_CHECKPOINTS).is_dir():
        if not (path / RUN_MODEL / CONFIG_FILE).is_file():
            raise ValueError(
                f"{path} is a run without a model or checkpoint, expected one. The command that "
                "began it resumes it"
            )
        path = path / RUN_MODEL
    if not (path / WEIGHTS_FILE).exists():
        for other in sorted(path.iterdir()):
            if other.is_file() and not other.is_symlink():
                check_no_pickle(other)
    if not (path / CONFIG_FILE).exists() and not (path / CONFIG_FILE).is_symlink():
        raise ValueError(f"{path} has no {CONFIG_FILE}, {expected}")
    return path


def _parse(data: Any) -> tuple[ModelConfig, dict[str, Any]]:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f'not a model of lightconv, expected "format": "{FORMAT}"')
    if data.get("version") != VERSION or isinstance(data["version"], bool):
        got = str(data.get("version"))[:20]
        raise ValueError(f"version {got}, expected {VERSION}. A newer lightconv may read it")
    model: ModelConfig = from_dict(ModelConfig, data.get("model"), "model")
    tables = {name: table for name, table in data.items() if name not in OWN_NAMES}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ValueError(f"{name[:60]!r} must be a table")
    return model, tables


def _config_text(model: ModelConfig, tables: Mapping[str, Mapping[str, Any]]) -> str:
    shape = {"model_type": MODEL_TYPE, "model": to_dict(model)}
    data: dict[str, Any] = {"format": FORMAT, "version": VERSION, **shape}
    if taken := [name for name in tables if name in data]:
        raise ValueError(f"tables must not be called {taken[0]!r}")
    data |= {name: dict(table) for name, table in tables.items()}
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _extra_files(
    config: ModelConfig,
    vocabulary: "Vocabularies | Vocabulary | None",
    files: Mapping[str, bytes | Path],
) -> dict[str, bytes]:
    extra: dict[str, bytes] = {}
    if vocabulary is not None:
        if vocabulary.sizes() != config.vocab_sizes:
            raise ValueError(
                f"vocabulary of {vocabulary.sizes()} tokens (source, target), but the model has "
                f"{config.vocab_sizes}"
            )
        extra |= vocabulary.files()
    for name, content in files.items():
        plain = name and not name.startswith(".") and Path(name).name == name
        if not plain or name in (*extra, CONFIG_FILE, WEIGHTS_FILE, MANIFEST_FILE):
            raise ValueError(f"a further file must not be called {name!r}")
        extra[name] = content if isinstance(content, bytes) else content.read_bytes()
    return extra


def _metadata(config: ModelConfig, task: Mapping[str, Any]) -> list[str]:
    """Lines of YAML that a hub filters models by: languages, task, tags."""
    given = dict.fromkeys(str(task.get(name)) for name in ("source_lang", "target_lang"))
    languages = [
        name for name in given if name.isascii() and name.isalpha() and len(name) in (2, 3)
    ]
    usual = "translation" if isinstance(config, Seq2SeqConfig) else "text-generation"
    kind = "summarization" if task.get("kind") == "summarization" else usual
    kinds = dict.fromkeys(layer.kind for layers in config.stacks.values() for layer in layers)
    lists = {"language": languages, "tags": ["lightconv", *kinds]}
    lines = [
        f"{name}: [{', '.join(map(json.dumps, each))}]" for name, each in lists.items() if each
    ]
    return [f"pipeline_tag: {kind}", *lines]


def _card(
    name: str, config: ModelConfig, parameters: int, files: Sequence[str], task: Mapping[str, Any]
) -> str:
    """README.md of a model folder; it begins with the tags that a hub reads."""
    rows = {key.replace("_", " "): str(task[key]) for key in task if task[key] is not None}
    rows |= {"parameters": f"{parameters:,}", "width": str(config.dim)}
    rows |= {stack: describe_layers(layers) for stack, layers in config.stacks.items()}
    if isinstance(config, LanguageModelConfig):
        title, rows["vocabulary"] = "Language model", f"{config.vocab:,}"
        text_call = 'model.generate(["a text"])  # continues the text'
        call = "scores = model(tokens)  # int64 [B, T] -> [B, T, V]"
    else:
        title = "Encoder-decoder model"
        rows["source vocabulary"] = f"{config.source_vocab:,}"
        rows["target vocabulary"] = f"{config.target_vocab:,}"
        text_call = 'model.translate(["a text"])  # text in, text out'
        call = "scores = model(source, target_in)  # int64 [B, S] and [B, T] -> [B, T, V]"
    if any(file.startswith("vocab") for file in files):
        call = f"{text_call}\n{call}"
    parts = [
        "\n".join(["---", "library_name: lightconv", *_metadata(config, task), "---"]),
        f"# {name}",
        f"{title} of `lightconv`. `config.json` says all about its shape.",
        "\n".join(["| | |", "| --- | --- |", *(f"| {key} | {rows[key]} |" for key in rows)]),
        f'```python\nimport lightconv\n\nmodel = lightconv.load("{name}")\n{call}\n```',
        f"Files: {', '.join(f'`{file}`' for file in files)}.\n",
    ]
    return "\n\n".join(parts)
