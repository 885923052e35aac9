"""One checkpoint: what is written is what is read; R5: what is damaged is not used."""

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lightconv.train.checkpoint import (
    DamagedError,
    check_parts,
    read_checkpoint,
    read_part,
    read_state,
    verify_checkpoint,
)
from lightconv.train.checkpoints import Checkpoints

FILES = ("manifest.json", "model.safetensors", "optimizer.safetensors", "state.json")
VALUES: dict[str, Any] = {
    "epoch": 3,
    "position": [1, 2, 3],
    "scale": 65536.0,
    "rate": 0.1 + 0.2,
    "name": "bad \ud800 text ü\0",
    "none": None,
    "flags": {"on": True, "off": False},
    "large": 2**80,
}


def tensors(step: int) -> dict[str, dict[str, torch.Tensor]]:
    weight, bias, average = torch.randn(3, 1024, generator=torch.Generator().manual_seed(step))
    return {
        "model": {"weight": weight, "bias": bias[:3]},
        "optimizer": {"state/weight/exp_avg": average, "state/weight/step": torch.tensor(1.0)},
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two checkpoints."""
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        checkpoints.save(100, tensors(100), VALUES)
        checkpoints.save(200, tensors(200), VALUES, score=-1.5)
    return tmp_path / "checkpoints"


def test_what_is_written_is_what_is_read(folder: Path) -> None:
    found = read_checkpoint(folder / "step-00000200")
    assert (found.step, found.score, found.values, found.skipped) == (200, -1.5, VALUES, ())
    assert found.path == folder / "step-00000200"
    assert [type(found.values[key]) for key in VALUES] == [type(value) for value in VALUES.values()]
    for part, named in tensors(200).items():
        assert found.tensors[part].keys() == named.keys()
        for name, tensor in named.items():
            assert torch.equal(found.tensors[part][name], tensor)
    assert read_checkpoint(folder / "step-00000100").score is None


def test_the_files(folder: Path) -> None:
    path = folder / "step-00000200"
    assert sorted(file.name for file in path.iterdir()) == list(FILES)
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["files"] == {
        name: {
            "bytes": (path / name).stat().st_size,
            "sha256": hashlib.sha256((path / name).read_bytes()).hexdigest(),
        }
        for name in FILES[1:]
    }
    assert torch.equal(load_file(path / "model.safetensors")["bias"], tensors(200)["model"]["bias"])
    state = json.loads((path / "state.json").read_text())
    assert state == {"step": 200, "score": -1.5, "values": VALUES}


def test_numbers_that_are_none(tmp_path: Path) -> None:
    values = {"best": math.inf, "loss": math.nan}
    Checkpoints(tmp_path).save(1, tensors(1), values)
    found = read_checkpoint(tmp_path / "step-00000001").values
    assert found["best"] == math.inf
    assert math.isnan(found["loss"])


def test_what_cannot_be_stored() -> None:
    good = tensors(1)
    for given, values, message in (
        ({"optimizer": {}}, {}, r"needs the part 'model', got \['optimizer'\]"),
        (good | {"../x": {}}, {}, r"a part must not be called '\.\./x'"),
        (good | {"b": dict.fromkeys("xy", torch.ones(1))}, {}, "b: y and x share memory"),
        (good, {"a": {"b": [1, (2, 3)]}}, r"values\.a\.b\.1 is a tuple, expected text"),
        (good, {"a": {1: 2}}, r"values\.a has the key 1, expected text"),
        (good, {"a": torch.ones(1)}, r"values\.a is a Tensor"),
    ):
        with pytest.raises(ValueError, match=message):
            check_parts(given, values)
    check_parts(good, VALUES)


@pytest.mark.parametrize("name", FILES)
def test_the_last_byte_matters(name: str, folder: Path) -> None:
    path = folder / "step-00000200" / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedError):
        verify_checkpoint(path.parent)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_gone(name: str, folder: Path) -> None:
    (folder / "step-00000200" / name).unlink()
    with pytest.raises(DamagedError, match=name):
        verify_checkpoint(folder / "step-00000200")
    verify_checkpoint(folder / "step-00000100")
    found = Checkpoints(folder).latest()
    assert found is not None
    assert found.step == 100
    assert name in found.skipped[0].reason


def test_files_of_another_checkpoint(folder: Path) -> None:
    (folder / "step-00000200" / "model.safetensors").unlink()
    os.link(
        folder / "step-00000100" / "model.safetensors",
        folder / "step-00000200" / "model.safetensors",
    )
    with pytest.raises(DamagedError, match=r"model\.safetensors: the bytes are not those"):
        read_checkpoint(folder / "step-00000200")


def test_only_what_is_read_is_verified(folder: Path) -> None:
    path = folder / "step-00000200"
    (path / "optimizer.safetensors").write_bytes(b"")
    assert torch.equal(read_part(path, "model")["weight"], tensors(200)["model"]["weight"])
    assert read_state(path)["step"] == 200
    with pytest.raises(DamagedError, match=r"optimizer\.safetensors: 0 bytes, expected"):
        read_part(path, "optimizer")
    with pytest.raises(DamagedError, match=r"has no ema\.safetensors"):
        read_part(path, "ema")


def rewrite(path: Path, name: str, data: bytes) -> None:
    """Another file with the right digest, as a stranger would make it."""
    (path / name).write_bytes(data)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"step": 1}',
        b'{"step": "1", "score": null, "values": {}}',
        b'{"step": 1, "score": "high", "values": {}}',
        b'{"step": 1, "score": null, "values": []}',
        b'{"step": 1, "values": {}}',
    ],
)
def test_a_strange_state(data: bytes, folder: Path) -> None:
    rewrite(folder / "step-00000200", "state.json", data)
    with pytest.raises(DamagedError, match=r"state\.json: "):
        read_checkpoint(folder / "step-00000200")


@pytest.mark.parametrize("data", [b"", b"{}", b"\x80\x04N.", bytes(100)])
def test_strange_tensors(data: bytes, folder: Path) -> None:
    rewrite(folder / "step-00000200", "model.safetensors", data)
    with pytest.raises(DamagedError, match=r"model\.safetensors: "):
        read_checkpoint(folder / "step-00000200")


@pytest.mark.parametrize("name", ["../escape.safetensors", "code.py", "A.safetensors", "x.pt"])
def test_a_manifest_lists_nothing_else(name: str, folder: Path) -> None:
    path = folder / "step-00000200"
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"][name] = manifest["files"]["state.json"]
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DamagedError, match=r"manifest\.json"):
        read_checkpoint(path)


@pytest.mark.parametrize("name", ["model.safetensors", "state.json"])
def test_a_manifest_lists_all(name: str, folder: Path) -> None:
    path = folder / "step-00000200"
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["files"][name]
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DamagedError, match=f"does not list {name}"):
        read_checkpoint(path)


def test_a_link_that_leaves_the_folder(folder: Path) -> None:
    path = folder / "step-00000200"
    target = folder / "elsewhere"
    (path / "state.json").rename(target)
    (path / "state.json").symlink_to(target)
    with pytest.raises(DamagedError, match="a link that leaves its folder"):
        read_checkpoint(path)
