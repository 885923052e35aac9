"""safetensors files of our own writing, read by the library."""

import hashlib
import json
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, load_file

from lightconv.models.tensors import DTYPES, read_tensors, write_tensors

SHAPES = [(), (0,), (1,), (3,), (2, 0, 3), (2, 3), (5, 1, 7)]


def random_bits(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Any pattern of bits, NaNs among them; truth values are 0 or 1."""
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, dtype=dtype)
    count = torch.Size(shape).numel() * dtype.itemsize
    return torch.randint(0, 256, (count,), dtype=torch.uint8).view(dtype).reshape(shape)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def test_every_type_and_shape_comes_back(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensors = {
        f"{name}.{number}": random_bits(shape, dtype)
        for dtype, name in DTYPES.items()
        for number, shape in enumerate(SHAPES)
    }
    path = tmp_path / "some.safetensors"
    entry = write_tensors(path, tensors)
    data = path.read_bytes()
    assert entry == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    for found in (load_file(path), load(data), read_tensors(path)):
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert found[name].dtype == tensor.dtype
            assert found[name].shape == tensor.shape
            assert bits(found[name]) == bits(tensor)


def test_numbers_begin_where_their_type_wants_them(tmp_path: Path) -> None:
    tensors = {
        "a": torch.ones(3, dtype=torch.bool),
        "b": torch.ones(3, dtype=torch.float64),
        "c": torch.ones(5, dtype=torch.bfloat16),
        "d": torch.ones(1),
    }
    write_tensors(tmp_path / "x.safetensors", tensors)
    data = (tmp_path / "x.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    for name, tensor in tensors.items():
        assert header[name]["data_offsets"][0] % tensor.element_size() == 0


def test_views_are_written_as_they_look(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    tensors = {
        "transposed": base.T,
        "column": base[:, 1],
        "expanded": base[1:2, 2:3].expand(3, 2),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    write_tensors(tmp_path / "x.safetensors", tensors)
    found = load_file(tmp_path / "x.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


@given(st.lists(st.text(min_size=1), unique=True, max_size=5))
def test_any_name(names: list[str]) -> None:
    names = [name for name in names if name.isprintable() and name != "__metadata__"]  # or none
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        write_tensors(path, {name: torch.tensor(i) for i, name in enumerate(names)})
        found = {name: int(tensor) for name, tensor in load_file(path).items()}
        assert found == {name: i for i, name in enumerate(names)}


def test_what_cannot_be_stored(tmp_path: Path) -> None:
    tied = torch.ones(3)
    for tensors, message in (
        ({"a": tied, "b": tied}, "x: b and a share memory, expected each tensor once"),
        ({"a": tied, "b": tied[:2]}, "x: b and a share memory"),
        ({"a": torch.ones(1, dtype=torch.complex64)}, "x: a has type torch.complex64"),
        ({"__metadata__": tied}, "x: a tensor must not be called '__metadata__'"),
    ):
        with pytest.raises(ValueError, match=message):
            write_tensors(tmp_path / "x.safetensors", tensors)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("data", [b"", b"\x08\0\0\0\0\0\0\0{'a'   }", b"\xff" * 16, bytes(16)])
def test_garbage_is_a_value_error(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(data)
    with pytest.raises(ValueError, match=r"x\.safetensors is .*damaged"):
        read_tensors(tmp_path / "x.safetensors")
