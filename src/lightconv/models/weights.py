"""A model's parameters as a safetensors file: written once each, read without a second copy."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

# A header lists names, types and shapes. That of the largest model of the paper has 50 KB.
LARGEST_HEADER = 8 << 20
# The safetensors name of each type that parameters may have.
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
# How a zip archive of torch.save and a bare pickle begin.
PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")

Shapes = Mapping[str, tuple[int, ...]]


def check_no_pickle(path: Path) -> None:
    """Raises ValueError for a file of torch.save, whatever it is called."""
    with path.open("rb") as file:
        start = file.read(4)
    if start.startswith(PICKLES):
        raise ValueError(
            f"{path} is a pickle, which can run any code when it is opened, so it is not. If it is "
            "a checkpoint of fairseq, import it: lightconv import fairseq "
            f"{path} --dict DICT --out FOLDER"
        )


def parameters(model: nn.Module) -> dict[str, Tensor]:
    """What there is to store: a tied matrix stands once, by its first name."""
    named = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return named | {name: buffer for name, buffer in model.named_buffers() if name in _kept(model)}


def write_weights(model: nn.Module, path: Path) -> None:
    """Writes the parameters of `model`; its mode and its way to the disk are the caller's."""
    tensors = {name: _own(tensor) for name, tensor in parameters(model).items()}
    try:
        save_file(tensors, path)
    except SafetensorError as error:  # a full disk, most likely
        raise OSError(f"{path} cannot be written: {error}") from None


def read_weights(
    model: nn.Module, path: Path, device: torch.device, dtype: torch.dtype | None
) -> None:
    """Gives a model on the meta device its parameters, mapped from the file if they stay as stored.

    All names and shapes are compared before the first number is read.
    """
    check_header(path)
    wanted = {name: tuple(tensor.shape) for name, tensor in parameters(model).items()}
    try:
        with safe_open(path, "pt") as file:
            found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            shapes = {name: tuple(part.get_shape()) for name, part in found.items()}
            compare(path, "its config.json", wanted, shapes)
            check_dtypes(path, {name: part.get_dtype() for name, part in found.items()})
            fill(model, {name: file.get_tensor(name).to(device, dtype) for name in wanted})
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def fill(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Gives a model on the meta device these parameters, by the names of `parameters(model)`."""
    for name, tensor in tensors.items():
        place, _, leaf = name.rpartition(".")
        module = model.get_submodule(place)
        if leaf in module._buffers:
            module._buffers[leaf] = tensor
        else:
            setattr(module, leaf, nn.Parameter(tensor, requires_grad=True))


def check_header(path: Path) -> int:
    """How many tensors the file lists; ValueError if it is no safetensors file at all."""
    check_no_pickle(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(size - 8, LARGEST_HEADER):
            raise ValueError(
                f"{path} is no safetensors file, or damaged: a header of {length} bytes in a file "
                f"of {size}"
            )
        return file.read(length).count(b'"data_offsets"')


def compare(where: object, by: str, wanted: Shapes, found: Shapes) -> None:
    """Raises ValueError unless the names and shapes found `where` are those wanted `by`."""
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ValueError(f"{where} lacks {_some(missing)}, expected by {by}")
    extra = [name for name in found if name not in wanted]
    if extra:
        raise ValueError(f"{where} has {_some(extra)}, unknown to {by}")
    for name, shape in wanted.items():
        if found[name] != shape:
            raise ValueError(
                f"{where}: {name} has shape {list(found[name])}, expected {list(shape)} by {by}"
            )


def check_dtypes(path: Path, found: Mapping[str, str]) -> None:
    """Raises ValueError unless all are of one type, and that one of floating-point numbers."""
    first, kind = next(iter(found.items()))
    for name, dtype in found.items():
        if dtype not in DTYPES:
            raise ValueError(
                f"{path}: {name} has type {dtype}, expected one of {', '.join(DTYPES)}"
            )
        if dtype != kind:
            raise ValueError(f"{path}: {name} has type {dtype}, but {first} has {kind}")


def _kept(model: nn.Module) -> set[str]:
    return set(model.state_dict(keep_vars=True))


def _own(tensor: Tensor) -> Tensor:
    """The tensor, contiguous on the CPU, and alone in its storage, as the format demands."""
    tensor = tensor.cpu().contiguous()
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _some(names: list[str]) -> str:
    """The first of many names, which come from files of strangers."""
    return f"{names[0][:100]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
