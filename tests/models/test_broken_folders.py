"""Folders from strangers: whatever is wrong with one, `load` says it and does no harm."""

import json
import os
import random
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import lightconv
from lightconv.models import (
    AttentionConfig,
    DynamicConvConfig,
    LightConvConfig,
    Seq2Seq,
    Seq2SeqConfig,
)

PAIR = Seq2SeqConfig(
    dim=8,
    ffn_dim=12,
    source_heads=2,
    encoder=(LightConvConfig(kernel=3, heads=2), DynamicConvConfig(kernel=5, heads=2, glu=True)),
    decoder=(AttentionConfig(heads=2), DynamicConvConfig(kernel=3, heads=4)),
    source_vocab=9,
    target_vocab=7,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved model without a manifest, as of a stranger or of lightconv 0.1."""
    Seq2Seq(PAIR).save(tmp_path / "model")
    (tmp_path / "model" / "manifest.json").unlink()
    return tmp_path / "model"


def rewrite_config(folder: Path, **changes: Any) -> None:
    data = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(data | changes))


def rewrite_model(folder: Path, **changes: Any) -> None:
    data = json.loads((folder / "config.json").read_text())
    rewrite_config(folder, model=data["model"] | changes)


# What can be wrong with a folder. Each takes one that is right.


def drop_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["encoder.1.mixer.kernel_proj.weight"]
    save_file(tensors, folder / "model.safetensors")


def add_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"extra": torch.zeros(1)}, folder / "model.safetensors")


def reshape_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["output.weight"] = tensors["output.weight"].t().contiguous()
    save_file(tensors, folder / "model.safetensors")


def retype_tensor(dtype: torch.dtype) -> Any:
    def retype(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        tensors["output.weight"] = tensors["output.weight"].to(dtype)
        save_file(tensors, folder / "model.safetensors")

    return retype


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def lengthen(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"hidden")


def lie_about_header(length: int) -> Any:
    def lie(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])

    return lie


def edit_header(edit: Any) -> Any:
    def rewrite(folder: Path) -> None:
        path = folder / "model.safetensors"
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        edit(header)
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])

    return rewrite


def overlap(header: dict[str, Any]) -> None:
    header["output.weight"]["data_offsets"] = header["target_embedding.weight"]["data_offsets"]


def enlarge(header: dict[str, Any]) -> None:
    header["output.weight"]["shape"] = [10**9, 10**9]


def link_out(name: str) -> Any:
    def link(folder: Path) -> None:
        (folder / name).rename(folder.parent / name)
        (folder / name).symlink_to(f"../{name}")

    return link


def make_pipe(folder: Path) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")


def link_to_itself(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("config.json")


def write(name: str, data: bytes) -> Any:
    return lambda folder: (folder / name).write_bytes(data)


BROKEN: dict[str, tuple[Any, str]] = {
    "missing tensor": (drop_tensor, r"lacks encoder\.1\.mixer\.kernel_proj\.weight, expected by"),
    "extra tensor": (add_tensor, r"has extra, unknown to its config\.json"),
    "wrong shape": (
        reshape_tensor,
        r"output\.weight has shape \[8, 7\], expected \[7, 8\] by its config\.json",
    ),
    "int tensor": (retype_tensor(torch.int64), r"output\.weight has type .*int64, expected"),
    "mixed types": (retype_tensor(torch.float16), r"has type .*float(16|32), but"),
    "truncated": (truncate, r"model\.safetensors is damaged"),
    "longer": (lengthen, r"model\.safetensors is damaged"),
    "header too long": (lie_about_header(2**63), r"safetensors file, or damaged"),
    "header beyond file": (lie_about_header(10**6), r"safetensors file, or damaged"),
    "header cut": (lie_about_header(100), r"model\.safetensors (is damaged|has 1 tensors for 4)"),
    "empty weights": (write("model.safetensors", b""), r"safetensors file, or damaged"),
    "weights overlap": (edit_header(overlap), r"model\.safetensors is damaged"),
    "header of a giant": (edit_header(enlarge), r"model\.safetensors is damaged"),
    "weights link out": (link_out("model.safetensors"), r"a link that leaves its folder.*cp -rL"),
    "config link out": (link_out("config.json"), r"a link that leaves its folder"),
    "config is a pipe": (make_pipe, r"config\.json is not a regular file"),
    "config links to itself": (link_to_itself, r"config\.json cannot be read"),
    "config of a megabyte": (write("config.json", b" " * 2**20), r"longer than \d+ bytes"),
    "config nested": (write("config.json", b"[" * 10**5), r"nested too deeply|not JSON"),
    "config of latin1": (write("config.json", b'{"a": "\xe4"}'), r"is not UTF-8"),
    "config empty": (write("config.json", b""), r"config\.json: not JSON"),
    "config of others": (write("config.json", b'{"model_type": "bert"}'), r"not a model of light"),
    "config no table": (write("config.json", b"[1]"), r"not a model of lightconv"),
    "no config": (lambda folder: (folder / "config.json").unlink(), r"has no config\.json"),
    "no weights": (
        lambda folder: (folder / "model.safetensors").unlink(),
        r"has no file model\.safetensors",
    ),
    "newer version": (lambda f: rewrite_config(f, version=2), r"version 2, expected 1.*newer"),
    "version true": (lambda f: rewrite_config(f, version=True), r"version True, expected 1"),
    "no model": (lambda f: rewrite_config(f, model=None), r"model=null must be a table|model"),
    "table of others": (lambda f: rewrite_config(f, task=3), r"'task' must be a table"),
    "unknown kind": (lambda f: rewrite_model(f, kind="gpt"), r"unknown model\.kind='gpt'"),
    "unknown field": (lambda f: rewrite_model(f, dims=8), r"unknown field model\.dims"),
    "giant width": (lambda f: rewrite_model(f, dim=10**8), r"expected \[\d+, 100000000\]"),
    "giant beyond numbers": (lambda f: rewrite_model(f, dim=10**9), r"no such model can be built"),
    "giant vocabulary": (
        lambda f: rewrite_model(f, source_vocab=2**60),
        r"expected \[1152|no such",
    ),
    "many layers": (
        lambda f: rewrite_model(f, encoder=[{"kind": "attention", "heads": 2}] * 5000),
        r"tensors for 5002 layers",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_wrong_is_said(what: str, folder: Path) -> None:
    break_it, message = BROKEN[what]
    break_it(folder)
    with pytest.raises(ValueError, match=message) as raised:
        lightconv.load(folder)
    assert len(str(raised.value)) < 600
    assert str(folder) in str(raised.value)


def test_links_inside_the_folder_are_fine(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "weights-v1")
    (folder / "model.safetensors").symlink_to("weights-v1")
    lightconv.load(folder)
    folder.with_name("latest").symlink_to("model")
    lightconv.load(folder.with_name("latest"))


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_pickles_are_refused_with_the_way_to_import_them(legacy: bool, folder: Path) -> None:
    pickled = folder.parent / "checkpoint.pt"
    torch.save({"model": {}}, pickled, _use_new_zipfile_serialization=not legacy)
    message = r"is a pickle, which can run code .* lightconv import fairseq .*checkpoint\.pt"
    with pytest.raises(ValueError, match=message):
        lightconv.load(pickled)
    # By another name, or in a folder of another toolkit.
    (folder / "model.safetensors").write_bytes(pickled.read_bytes())
    with pytest.raises(ValueError, match=r"model\.safetensors is a pickle"):
        lightconv.load(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin is a pickle"):
        lightconv.load(folder)


def test_what_is_no_folder_is_said(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere does not exist"):
        lightconv.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"is a file, expected a model folder"):
        lightconv.load(folder / "model.safetensors")


def test_mutated_configs_are_errors_or_models(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = (folder / "config.json").read_bytes()
    draw = random.Random(0)
    data = bytearray()
    monkeypatch.setattr(Path, "read_bytes", lambda _: bytes(data))  # writing takes milliseconds
    pieces = [b"0", b"-1", b"1e9", b"null", b"true", b"{}", b"[]", b'"', b",", b"9" * 30, b"\xff"]
    loaded = 0
    for _ in range(2000):
        data[:] = good
        for _ in range(draw.randint(1, 3)):
            place = draw.randrange(len(data))
            piece = draw.choice([draw.randbytes(draw.randint(0, 3)), draw.choice(pieces)])
            data[place : place + draw.randint(0, 3)] = piece
        try:
            lightconv.load(folder)
            loaded += 1
        except ValueError as error:
            assert len(str(error)) < 600
    assert loaded > 0  # a changed space or dropout is no damage


def test_mutated_weights_are_errors_or_models(folder: Path) -> None:
    path = folder / "model.safetensors"
    good = path.read_bytes()
    header = int.from_bytes(good[:8], "little") + 8
    draw = random.Random(0)
    for _ in range(100):
        data = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(header)] = draw.randrange(256)
        path.write_bytes(data)
        try:
            lightconv.load(folder)
        except ValueError as error:
            assert str(path) in str(error)
