"""A model folder: config.json, model.safetensors, vocabulary files and a README.md.

What training exports, what every command reads, and what one uploads. It holds no code: a folder
from a stranger can be wrong, but not do anything.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lightconv.config import from_dict, to_dict
from lightconv.config.text import LARGEST_FILE, parse_plain
from lightconv.files import inside, new_folder, sync, write_file
from lightconv.models.card import card
from lightconv.models.config import ModelConfig, Seq2SeqConfig
from lightconv.models.weights import (
    check_header,
    check_no_pickle,
    parameters,
    read_weights,
    write_weights,
)

if TYPE_CHECKING:
    from lightconv.models.lm import LanguageModel
    from lightconv.models.seq2seq import Seq2Seq

FORMAT = "lightconv"
VERSION = 1
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
CARD_FILE = "README.md"
# What config.json always has; the rest are tables of others.
OWN_NAMES = ("format", "version", "model")


class FolderVocabulary(Protocol):
    """What `save` needs of a vocabulary; models themselves know nothing but ids."""

    def sizes(self) -> tuple[int, int]:
        """How many ids source and target have."""

    def files(self) -> dict[str, bytes]:
        """Names and contents."""


class FolderConfig(NamedTuple):
    """A config.json: the model, and tables of others such as `task` and `decode`, unread."""

    model: ModelConfig
    tables: dict[str, Any]


class FolderModel(nn.Module):
    """A model that saves itself and is read back, by the names people look for."""

    config: ModelConfig

    def save(self, folder: str | Path, **options: Any) -> None:
        """Writes a model folder; options as of `lightconv.models.folder.save`."""
        save(self, folder, **options)

    def save_pretrained(self, folder: str | Path, **options: Any) -> None:
        """The same as `save`."""
        save(self, folder, **options)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
    ) -> Self:
        """The model in a folder, which must be of this class, ready for use; see `load`."""
        model = load(folder, device, dtype)
        if not isinstance(model, cls):
            raise ValueError(
                f"{folder} holds a {type(model).__name__}, expected a {cls.__name__}. "
                "lightconv.load takes either"
            )
        return model


def save(
    model: FolderModel,
    folder: str | Path,
    *,
    vocabulary: FolderVocabulary | None = None,
    files: Mapping[str, bytes | Path] | None = None,
    tables: Mapping[str, Mapping[str, Any]] | None = None,
    overwrite: bool = False,
) -> None:
    """Writes a model folder, in full or not at all.

    files  further files by name, as bytes or as a file to copy; a README.md among them is used
           instead of a generated one
    tables what config.json holds besides the model, such as `task`
    """
    folder = Path(folder)
    check_free(folder, overwrite=overwrite)
    extra = _extra_files(model.config, vocabulary, files or {})
    extra[CONFIG_FILE] = _config_text(model.config, tables or {}).encode()
    if CARD_FILE not in extra:
        count = sum(tensor.numel() for tensor in parameters(model).values())
        listed = sorted([WEIGHTS_FILE, *extra])
        name = folder.absolute().name
        extra[CARD_FILE] = card(name, model.config, count, listed).encode()
    with new_folder(folder, replace=overwrite) as fresh:
        for name, data in extra.items():
            write_file(fresh / name, data)
        weights = fresh / WEIGHTS_FILE
        write_weights(model, weights)
        # safetensors lets nobody else read its files; the others have the mode that is usual here.
        weights.chmod((fresh / CONFIG_FILE).stat().st_mode & 0o777)
        sync(weights)


def load(
    folder: str | Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    *,
    make: "Callable[[ModelConfig], Seq2Seq | LanguageModel] | None" = None,
) -> "Seq2Seq | LanguageModel":
    """The model in a folder, in evaluation mode.

    Its parameters are mapped from the file, not copied, unless `device` or `dtype` ask for other
    ones. The folder may come from a stranger: ValueError says what is wrong with it.

    make  builds the model in the place of `build`, a subclass perhaps
    """
    folder = check_folder(folder)
    config = read_config(folder).model
    weights = inside(folder, WEIGHTS_FILE)
    # Building a model costs time per layer, so a folder must have something to fill them.
    listed, layers = check_header(weights), _layers(config)
    if listed < layers:
        raise ValueError(f"{weights} has {listed} tensors for {layers} layers in {CONFIG_FILE}")
    try:
        model = build_empty(config, make or build)
    except (RuntimeError, OverflowError) as error:
        raise ValueError(f"{folder / CONFIG_FILE}: no such model can be built: {error}") from None
    read_weights(model, weights, torch.device(device), dtype)
    return model.eval()


def read_config(folder: str | Path) -> FolderConfig:
    """What config.json says, checked as far as the model goes; the weights are not read."""
    path = inside(check_folder(folder), CONFIG_FILE)
    if path.stat().st_size > LARGEST_FILE:
        raise ValueError(f"{path} is longer than {LARGEST_FILE} bytes, so it is no configuration")
    try:
        data = parse_plain(path.read_bytes().decode(), ".json")
        return _parse(data)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start + 1} is not UTF-8") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def build(config: ModelConfig) -> "Seq2Seq | LanguageModel":
    """A new model of that configuration, its parameters at random."""
    from lightconv.models.lm import LanguageModel
    from lightconv.models.seq2seq import Seq2Seq

    return Seq2Seq(config) if isinstance(config, Seq2SeqConfig) else LanguageModel(config)


def build_empty(
    config: ModelConfig, make: "Callable[[ModelConfig], Seq2Seq | LanguageModel]" = build
) -> "Seq2Seq | LanguageModel":
    """A model on the meta device: all shapes, no memory."""
    with torch.device("meta"), _Unfilled():
        return make(config)


class _Unfilled(TorchFunctionMode):
    """Leaves tensors as they are that would get normal random numbers.

    On the meta device they get none, but torch loads its compiler to do so: seconds and 150 MB.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (nn.init.normal_, Tensor.normal_):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def check_folder(folder: str | Path) -> Path:
    """The folder, if there is one; else what may be meant."""
    folder = Path(folder)
    if folder.is_file():
        check_no_pickle(folder)
        raise ValueError(f"{folder} is a file, expected the folder with {CONFIG_FILE} in it")
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    if not (folder / WEIGHTS_FILE).exists():
        for other in sorted(folder.iterdir()):
            if other.is_file() and not other.is_symlink():
                check_no_pickle(other)
    return folder


def check_free(folder: Path, *, overwrite: bool) -> None:
    """Raises ValueError if something stands there that `save` may not replace."""
    if not folder.is_symlink() and not folder.exists():
        return
    if not overwrite:
        raise ValueError(f"{folder} exists. Choose another name, or say overwrite (--overwrite)")
    is_folder = folder.is_dir() and not folder.is_symlink()
    names = {entry.name for entry in folder.iterdir()} if is_folder else set()
    subfolders = is_folder and any(entry.is_dir() for entry in folder.iterdir())
    if not is_folder or subfolders or (names and not {CONFIG_FILE, WEIGHTS_FILE} <= names):
        raise ValueError(f"{folder} exists and is no model folder, so it is not overwritten")


def _parse(data: Any) -> FolderConfig:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f'not a model of lightconv, expected "format": "{FORMAT}"')
    if data.get("version") != VERSION or isinstance(data["version"], bool):
        raise ValueError(
            f"version {str(data.get('version'))[:20]}, expected {VERSION}. A newer lightconv may "
            "read it"
        )
    model: ModelConfig = from_dict(ModelConfig, data.get("model"), "model")
    tables = {name: table for name, table in data.items() if name not in OWN_NAMES}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ValueError(f"{name[:60]!r} must be a table")
    return FolderConfig(model, tables)


def _config_text(model: ModelConfig, tables: Mapping[str, Mapping[str, Any]]) -> str:
    own = {"format": FORMAT, "version": VERSION, "model": to_dict(model)}
    taken = [name for name in tables if name in own]
    if taken:
        raise ValueError(f"tables must not be called {taken[0]!r}")
    data = own | {name: dict(table) for name, table in tables.items()}
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _extra_files(
    config: ModelConfig,
    vocabulary: FolderVocabulary | None,
    files: Mapping[str, bytes | Path],
) -> dict[str, bytes]:
    extra: dict[str, bytes] = {}
    if vocabulary is not None:
        if vocabulary.sizes() != _vocab_sizes(config):
            raise ValueError(
                f"vocabulary of {vocabulary.sizes()} tokens (source, target), but the model has "
                f"{_vocab_sizes(config)}"
            )
        extra |= vocabulary.files()
    for name, content in files.items():
        plain = name and not name.startswith(".") and Path(name).name == name
        if not plain or name in (*extra, CONFIG_FILE, WEIGHTS_FILE):
            raise ValueError(f"a further file must not be called {name!r}")
        extra[name] = content if isinstance(content, bytes) else content.read_bytes()
    return extra


def _vocab_sizes(config: ModelConfig) -> tuple[int, int]:
    if isinstance(config, Seq2SeqConfig):
        return config.source_vocab, config.target_vocab
    return config.vocab, config.vocab


def _layers(config: ModelConfig) -> int:
    if isinstance(config, Seq2SeqConfig):
        return len(config.encoder) + len(config.decoder)
    return len(config.layers)
