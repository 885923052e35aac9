"""Checkpoints of torch.save from strangers, read as data: nothing in them is run.

The archive and the names of all classes in it are checked first; then torch's restricted reader
builds tensors, plain values and argparse.Namespace. Every other class that fairseq writes becomes
an `Inert`, which holds values and has no methods. Any other name is refused.
"""

import argparse
import io
import pickle
import pickletools
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import torch

# The first bytes of torch.save before version 1.6: a pickle of a number.
LEGACY_START = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)
# The pickle of an archive is read whole; the largest known one has 2 MB.
LARGEST_PICKLE = 64 << 20
# Entries of an archive; a model of the paper with its optimizer has fewer than 2,000.
MOST_ENTRIES = 100_000

TENSORS = {
    "torch._utils": {"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_parameter"},
    "torch.nn.parameter": {"Parameter"},
    "collections": {"OrderedDict"},
    "argparse": {"Namespace"},
    "_codecs": {"encode"},
    "builtins": {"set"},
    "__builtin__": {"set"},  # its name in protocol 2
}
STORAGE = re.compile(
    r"\w+Storage|Size|device|u?int(8|16|32|64)|bool|half|float|double|b?float(16|32|64)"
)
# Types as values, such as the factory of a defaultdict; protocol 2 has old names for two.
TYPES = {
    **{name: name for name in ("int", "float", "bool", "str", "list", "dict", "tuple")},
    "long": "int",
    "unicode": "str",
}
# Other classes in checkpoints of fairseq: training meters, settings, NumPy scalars.
INERT = re.compile(r"(fairseq|omegaconf|hydra|numpy|typing|enum|pathlib)(\.\w+)*")

DAMAGES = (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, pickle.UnpicklingError)
SCALARS = (str, int, float, bool, type(None))
LONGEST_LIST = 1000
DEEPEST = 8
Allowed = Callable[..., Any] | tuple[Callable[..., Any], str]


class Inert:
    """An object of an unknown class: its values and nothing else."""

    values: tuple[Any, ...]
    state: Any = None

    def __new__(cls, *values: Any) -> "Inert":
        made = super().__new__(cls)
        made.values = values
        return made

    def __init__(self, *values: Any) -> None:
        pass  # object's own takes no values

    def __setstate__(self, state: Any) -> None:
        self.state = state


def read_pickle(path: str | Path) -> Any:
    """The object that torch.save wrote, as data; tensors of an archive are mapped from the file."""
    path = Path(path)
    is_archive = check_kind(path)
    try:
        allowed = check_names(path, names_in(path, is_archive))
    except (*DAMAGES, RuntimeError) as error:
        raise ValueError(f"{path} is damaged: {_first_line(error)}") from None
    try:
        with torch.serialization.safe_globals(allowed), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks on old formats
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
    except pickle.UnpicklingError:
        # torch's own text advises to load the file without restrictions.
        raise ValueError(f"{path} is damaged: its pickle is not of torch.save") from None
    except Exception as error:
        # A damaged or forged file can raise anything in torch.
        raise ValueError(f"{path} is damaged: {_first_line(error)}") from None


def check_kind(path: Path) -> bool:
    """True for a zip archive of torch.save, False for its older format, else ValueError."""
    if not path.exists():
        raise ValueError(f"there is no file {path}")
    if not path.is_file():
        raise ValueError(f"{path} is not a file, expected a checkpoint")
    with path.open("rb") as file:
        start = file.read(16)
    if start.startswith(b"PK\x03\x04"):
        return True
    if start.startswith(LEGACY_START):
        return False
    found = f"it begins with {start[:8]!r}" if start else "it is empty"
    raise ValueError(f"{path} is not a checkpoint: {found}, expected a file of torch.save")


def names_in(path: Path, is_archive: bool) -> set[tuple[str, str]]:
    """Classes named in the pickles of a file; the entries of an archive are checked first."""
    if is_archive:
        with zipfile.ZipFile(path) as archive:
            return class_names(io.BytesIO(archive.read(check_entries(path, archive.infolist()))))
    with path.open("rb") as file:  # number, version, sizes, object
        return set().union(*(class_names(file) for _ in range(4)))


def check_entries(path: Path, entries: list[zipfile.ZipInfo]) -> zipfile.ZipInfo:
    """The entry of the pickle; torch.save neither compresses nor nests."""
    if len(entries) > MOST_ENTRIES:
        raise ValueError(f"{path} has {len(entries)} entries, so it is not a checkpoint")
    names = [entry.filename for entry in entries]
    if len(set(names)) != len(names):
        raise ValueError(f"{path} names an entry twice, so it is not a file of torch.save")
    for entry in entries:
        where = f"{path}, entry {entry.filename[:80]!r}"
        parts = entry.filename.split("/")
        if len(parts) < 2 or ".." in parts or "" in parts or "\\" in entry.filename:
            raise ValueError(f"{where} is not a name of torch.save")
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
            raise ValueError(f"{where} is compressed, which torch.save never does")
        if entry.flag_bits & 1:
            raise ValueError(f"{where} is encrypted")
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        # Entries that share bytes would unpack to more than the file has.
        if entry.header_offset < end:
            raise ValueError(f"{path}, entry {entry.filename[:80]!r} overlaps another one")
        end = entry.header_offset + entry.file_size
    if end > path.stat().st_size:
        raise ValueError(f"{path} is damaged: its entries are longer than the file")
    pickles = [entry for entry in entries if entry.filename.split("/")[1:] == ["data.pkl"]]
    if len(pickles) != 1 or any(entry.filename.endswith("constants.pkl") for entry in entries):
        raise ValueError(f"{path} is not a checkpoint: an archive, but not of torch.save")
    if pickles[0].file_size > LARGEST_PICKLE:
        raise ValueError(f"{path} has a pickle of {pickles[0].file_size} bytes, so it is refused")
    return pickles[0]


def class_names(file: IO[bytes]) -> set[tuple[str, str]]:
    """(module, name) pairs in a pickle, which is scanned and not run.

    torch.serialization.get_unsafe_globals_in_checkpoint does not read the older format.
    """
    names = set()
    try:
        for operation, argument, _ in pickletools.genops(file):
            if operation.name in ("GLOBAL", "INST"):
                module, _, name = str(argument).partition(" ")
                names.add((module, name))
            elif operation.name in ("STACK_GLOBAL", "EXT1", "EXT2", "EXT4"):
                # torch.save writes protocol 2, which has only GLOBAL.
                raise ValueError(f"{operation.name} in a pickle of torch.save")
    except Exception as error:
        raise pickle.UnpicklingError(f"not a pickle: {_first_line(error)}") from None
    return names


def check_names(path: Path, names: set[tuple[str, str]]) -> list[Allowed]:
    """Classes for the names that torch's reader does not know; ValueError for a bad name."""
    allowed: list[Allowed] = [argparse.Namespace]
    for module, name in sorted(names):
        if name in TENSORS.get(module, ()) or (module == "torch" and STORAGE.fullmatch(name)):
            continue
        if (module, name) == ("collections", "defaultdict"):
            allowed.append((_plain_dict, "collections.defaultdict"))
        elif module in ("builtins", "__builtin__") and name in TYPES:
            allowed.append((Inert, f"builtins.{TYPES[name]}"))
        elif INERT.fullmatch(module) and re.fullmatch(r"[\w.]+", name):
            allowed.append((Inert, f"{module}.{name}"))
        else:
            raise ValueError(
                f"{path} names {module[:60]}.{name[:60]}, which no checkpoint of fairseq needs. "
                "Ask its author for a file with 'model' and 'args' or 'cfg' alone"
            )
    return allowed


def settings(value: Any) -> dict[str, Any]:
    """Numbers, texts and lists of them in a Namespace, a dict or an omegaconf container."""
    found = content(value)
    if not isinstance(found, Mapping):
        return {}
    return {key: _setting(item) for key, item in found.items() if isinstance(key, str)}


def _setting(value: Any) -> Any:
    found = content(value)
    if isinstance(found, list | tuple):
        # Longer ones are not settings, and a forged file may hold the same one many times.
        items = [content(item) for item in found[:LONGEST_LIST]]
        return items if all(isinstance(item, SCALARS) for item in items) else None
    return found if isinstance(found, SCALARS) else None


def content(value: Any) -> Any:
    """The value inside a Namespace, a container or node of omegaconf, or an enum."""
    for _ in range(DEEPEST):
        if isinstance(value, argparse.Namespace):
            return vars(value)
        if not isinstance(value, Inert):
            return value
        state = value.state if isinstance(value.state, Mapping) else {}
        if "_content" in state:
            value = state["_content"]
        elif "_val" in state:
            value = state["_val"]
        else:
            value = value.values[0] if len(value.values) == 1 else None
    return None


def _plain_dict(*_: Any) -> dict[Any, Any]:
    """A defaultdict without its factory."""
    return {}


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
