"""Named tensors as a safetensors file that is on the disk, with its digest, when it is written.

The library's own writer neither waits for the disk nor tells a digest: the file would have to be
read again. So this one writes the format (a length, a header of JSON, the numbers), and the library
reads it.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypedDict

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

# What the format calls the types that models and optimisers have.
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
# The one name that the format keeps for itself.
RESERVED = "__metadata__"
# A file has this mode, less what the user's umask takes.
MODE = 0o666


class Entry(TypedDict):
    """What a manifest says of a file."""

    bytes: int
    sha256: str


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> Entry:
    """Writes a new safetensors file. No two tensors may share memory: a tied matrix stands once."""
    check_tensors(path.stem, tensors)
    # Wide types first, so that every tensor begins at a multiple of its width.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header, views, start = {}, [], 0
    for name in names:
        tensor = tensors[name].detach().cpu().contiguous()
        stop = start + tensor.nbytes
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, stop],
        }
        views.append(tensor.reshape(-1).view(torch.uint8).numpy().data)
        start = stop
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return write_views(path, [memoryview(len(text).to_bytes(8, "little") + text), *views])


def check_tensors(part: str, tensors: Mapping[str, Tensor]) -> None:
    """Raises ValueError naming the tensor that cannot be stored."""
    places: dict[tuple[torch.device, int], str] = {}
    for name, tensor in tensors.items():
        if name == RESERVED:
            raise ValueError(f"{part}: a tensor must not be called {name!r}")
        if tensor.dtype not in DTYPES:
            raise ValueError(f"{part}: {name} has type {tensor.dtype}, which cannot be stored")
        if tensor.numel():
            other = places.setdefault((tensor.device, tensor.data_ptr()), name)
            if other != name:
                raise ValueError(
                    f"{part}: {name} and {other} share memory, expected each tensor once, as "
                    "lightconv.models.weights.parameters lists them"
                )


def write_views(path: Path, views: Sequence[memoryview]) -> Entry:
    """Writes a new file; it is on the disk when this returns."""
    # A second thread computes the digest while this one waits for the disk.
    with ThreadPoolExecutor(1) as thread:
        digest = thread.submit(_digest, views)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
        try:
            for view in views:
                rest = view
                while rest:
                    rest = rest[os.write(file, rest) :]
            os.fsync(file)
        finally:
            os.close(file)
        return {"bytes": sum(map(len, views)), "sha256": digest.result()}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, mapped rather than copied."""
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path}: {error}") from None


def _digest(views: Sequence[memoryview]) -> str:
    digest = hashlib.sha256()
    for view in views:
        digest.update(view)
    return digest.hexdigest()
