"""Named tensors as safetensors files: written with a digest, read without a second copy."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from lightconv.files import write_file
from lightconv.ops.check import DTYPES as FLOATS

# The format's name of each dtype.
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
# A header lists names, dtypes and shapes: 50 KB for the largest model of the paper.
LARGEST_HEADER = 8 << 20

Tensors = Mapping[str, Tensor]


def parameters(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name; a tied matrix stands once, by its first name."""
    kept = set(model.state_dict(keep_vars=True))
    named = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return named | {name: buffer for name, buffer in model.named_buffers() if name in kept}


def fill(model: nn.Module, tensors: Tensors) -> None:
    """Gives a model on the meta device these parameters, by the names of `parameters(model)`."""
    for name, tensor in tensors.items():
        place, _, leaf = name.rpartition(".")
        module = model.get_submodule(place)
        if leaf in module._buffers:
            module._buffers[leaf] = tensor
        else:
            setattr(module, leaf, nn.Parameter(tensor, requires_grad=True))


def write_tensors(path: Path, tensors: Tensors) -> dict[str, Any]:
    """Writes a new safetensors file, as `write_file`; no two tensors may share memory.

    The library's writer neither syncs nor returns a digest, raises no OSError, and lets nobody but
    the owner read the file.
    """
    # Wide dtypes first, so that every tensor begins at a multiple of its width.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header, views, start = {}, [], 0
    places: dict[tuple[torch.device, int], str] = {}
    for name in names:
        tensor = tensors[name].detach()
        if name == "__metadata__":  # the one name that the format reserves
            raise ValueError(f"{path.stem}: a tensor must not be called {name!r}")
        if tensor.dtype not in DTYPES:
            raise ValueError(f"{path.stem}: {name} has type {tensor.dtype}, which cannot be stored")
        place = (tensor.device, tensor.data_ptr())
        if tensor.numel() and (other := places.setdefault(place, name)) != name:
            raise ValueError(
                f"{path.stem}: {name} and {other} share memory, expected each tensor once, as "
                "lightconv.models.tensors.parameters lists them"
            )
        tensor = tensor.cpu().contiguous()
        entry = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape)}
        header[name] = entry | {"data_offsets": [start, start + tensor.nbytes]}
        views.append(tensor.reshape(-1).view(torch.uint8).numpy().data)
        start += tensor.nbytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return write_file(path, len(text).to_bytes(8, "little") + text, *views)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors of a file, memory-mapped."""
    size = path.stat().st_size
    with path.open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
    if not 2 <= header <= min(size - 8, LARGEST_HEADER):
        what = f"a header of {header} bytes in a file of {size}"
        raise ValueError(f"{path} is damaged: {what}, expected a safetensors file")
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        reason = str(error)[:300].encode("unicode_escape").decode()  # it quotes the file
        raise ValueError(f"{path} is damaged: {reason}") from None
    if not all(name.isprintable() and len(name) <= 200 for name in tensors):
        raise ValueError(f"{path} is damaged: a tensor has a name that cannot be shown")
    return tensors


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors of a file, all of one floating-point dtype."""
    tensors = read_tensors(path)
    first, kind = next(((name, tensor.dtype) for name, tensor in tensors.items()), ("", None))
    for name, tensor in tensors.items():
        if tensor.dtype not in FLOATS:
            raise ValueError(f"{path}: {name} has type {tensor.dtype}, expected floating point")
        if tensor.dtype != kind:
            raise ValueError(f"{path}: {name} has type {tensor.dtype}, but {first} has {kind}")
    return tensors


def compare(
    where: object, by: str, wanted: Tensors, found: Tensors, *, dtypes: bool = False
) -> None:
    """Raises ValueError unless names and shapes, and dtypes if told, are those wanted `by`."""
    if missing := [name for name in wanted if name not in found]:
        raise ValueError(f"{where} lacks {_some(missing)}, expected by {by}")
    if extra := [name for name in found if name not in wanted]:
        raise ValueError(f"{where} has {_some(extra)}, unknown to {by}")
    for name, tensor in wanted.items():
        got, shape = list(found[name].shape), list(tensor.shape)
        if got != shape:
            raise ValueError(f"{where}: {name} has shape {got}, expected {shape} by {by}")
        if dtypes and (kind := found[name].dtype) != tensor.dtype:
            raise ValueError(f"{where}: {name} is {kind}, expected {tensor.dtype} by {by}")


def _some(names: list[str]) -> str:
    """The first of many names, which come from untrusted files."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
