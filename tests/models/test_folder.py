"""Model folders: what is written is what is read, in one copy; strangers' folders do no harm."""

import json
import os
import random
import re
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file, save_file

from lightconv import files
from lightconv.config import to_dict
from lightconv.config.text import parse_plain
from lightconv.data import Vocabularies, Vocabulary
from lightconv.files import digest
from lightconv.models import (
    AdaptiveConfig,
    AttentionConfig,
    DynamicConvConfig,
    LanguageModel,
    LanguageModelConfig,
    LightConvConfig,
    ModelConfig,
    Seq2Seq,
    Seq2SeqConfig,
)
from lightconv.models import folder as model_folder
from lightconv.models.folder import ModelFolder, build

PAIR = Seq2SeqConfig(
    dim=8,
    ffn_dim=12,
    source_heads=2,
    encoder=(LightConvConfig(kernel=3, heads=2), DynamicConvConfig(kernel=5, heads=2, glu=True)),
    decoder=(AttentionConfig(heads=2), DynamicConvConfig(kernel=3, heads=4, dropconnect=0.1)),
    source_vocab=9,
    target_vocab=7,
    dropout=0.1,
)
TEXT = LanguageModelConfig(dim=8, ffn_dim=12, layers=PAIR.encoder, vocab=9)
BANDS = AdaptiveConfig(cutoffs=(4, 6), factor=2)
CONFIGS: dict[str, ModelConfig] = {
    "pair": PAIR,
    "pre_norm": replace(PAIR, pre_norm=True),
    "decoder": replace(PAIR, share_embeddings="decoder"),
    "all": replace(PAIR, share_embeddings="all", target_vocab=9),
    "lm": TEXT,
    "untied": replace(TEXT, tie_output=False),
    "adaptive": replace(TEXT, adaptive=BANDS),
    "tied_projections": replace(TEXT, adaptive=replace(BANDS, tie_projections=True)),
    "untied_bands": replace(TEXT, adaptive=replace(BANDS, tie_words=False)),
}
OWN_FILES = {"README.md", "config.json", "manifest.json", "model.safetensors"}
every_config = pytest.mark.parametrize("name", CONFIGS)


def make(config: ModelConfig, seed: int = 0) -> Seq2Seq | LanguageModel:
    torch.manual_seed(seed)
    return build(config).eval()


def load(folder: Path, **options: Any) -> Seq2Seq | LanguageModel:
    return ModelFolder(folder).load(**options)


def run(model: Seq2Seq | LanguageModel) -> torch.Tensor:
    tokens = torch.tensor([[2, 4, 5, 6, 3, 2], [2, 5, 4, 1, 1, 1]])
    with torch.inference_mode():
        return model(tokens, tokens) if isinstance(model, Seq2Seq) else model(tokens)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved model."""
    make(PAIR).save(tmp_path / "model")
    return tmp_path / "model"


@every_config
def test_a_model_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    model = make(CONFIGS[name])
    model.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert isinstance(loaded, type(model))
    assert loaded.config == model.config
    assert not loaded.training
    assert torch.equal(run(loaded), run(model))
    ours, theirs = dict(model.named_parameters()), dict(loaded.named_parameters())
    assert ours.keys() == theirs.keys()  # each tied matrix once
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert all(parameter.requires_grad for parameter in theirs.values())
    stored = load_file(tmp_path / "model" / "model.safetensors")
    assert sum(t.numel() for t in stored.values()) == sum(p.numel() for p in model.parameters())
    # The library writes the same bytes.
    save_file(stored, tmp_path / "theirs")
    ours_written = (tmp_path / "model" / "model.safetensors").read_bytes()
    assert (tmp_path / "theirs").read_bytes() == ours_written


def test_a_loaded_model_trains_and_its_ties_hold(tmp_path: Path) -> None:
    make(CONFIGS["all"]).save(tmp_path / "model")
    before = (tmp_path / "model" / "model.safetensors").read_bytes()
    model = load(tmp_path / "model")
    assert isinstance(model, Seq2Seq)
    assert model.output is model.target_embedding is model.source_embedding
    tokens = torch.tensor([[4, 5, 2]])
    model.train()(tokens, tokens).sum().backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    # The mapping is private: the file does not change with the model.
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before
    model.eval().save(tmp_path / "model", overwrite=True)
    assert torch.equal(run(load(tmp_path / "model")), run(model))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_dtypes_are_kept_or_changed(dtype: torch.dtype, tmp_path: Path) -> None:
    model = make(PAIR).to(dtype)
    model.save(tmp_path / "model")
    kept = load(tmp_path / "model")
    assert {p.dtype for p in kept.parameters()} == {dtype}
    assert torch.equal(run(kept), run(model))
    changed = load(tmp_path / "model", dtype=torch.float32)
    assert torch.equal(run(changed), run(model.float()))


def test_the_names_people_look_for(tmp_path: Path) -> None:
    model = make(PAIR)
    model.save_pretrained(tmp_path / "pair")
    assert torch.equal(run(Seq2Seq.from_pretrained(tmp_path / "pair")), run(model))
    with pytest.raises(ValueError, match="holds a Seq2Seq, expected a LanguageModel"):
        LanguageModel.from_pretrained(tmp_path / "pair")


def test_files_of_a_folder(tmp_path: Path) -> None:
    model = make(PAIR)
    words = Vocabularies(Vocabulary.of("abcde"), Vocabulary.of("xyz"))
    codes = tmp_path / "bpe"
    codes.write_bytes(b"#version: 0.2\na b\n")
    tables = {"task": {"kind": "translation", "source_lang": "de"}}
    files = {"codes.txt": codes, "notes.txt": b"hello", "README.md": b"mine"}
    model.save(tmp_path / "model", vocabulary=words, files=files, tables=tables)
    folder = tmp_path / "model"
    assert names(folder) == {*OWN_FILES, *files, "vocab.source.txt", "vocab.target.txt"}
    assert (folder / "codes.txt").read_bytes() == codes.read_bytes()
    assert (folder / "README.md").read_bytes() == b"mine"
    data = json.loads((folder / "config.json").read_text())
    assert (data["format"], data["version"], data["model"]["kind"]) == ("lightconv", 1, "seq2seq")
    assert ModelFolder(folder).config == PAIR
    assert ModelFolder(folder).tables == tables
    assert names(tmp_path) == {"bpe", "model"}


@pytest.mark.parametrize("name", ["pair", "lm"])
def test_the_card_says_what_is_true(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(CONFIGS[name])
    model.save(tmp_path / "small")
    text = (tmp_path / "small" / "README.md").read_text()
    assert f"{sum(p.numel() for p in model.parameters()):,}" in text
    assert "1 lightconv, 1 dynamicconv, kernels 3, 5" in text
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    tokens = torch.tensor([[4, 5, 2]])
    found: dict[str, Any] = {"source": tokens, "target_in": tokens, "tokens": tokens}
    exec("\n".join(code), found)
    assert found["scores"].shape[:2] == (1, 3)


@pytest.mark.parametrize("umask, mode", [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)], ids=oct)
def test_the_umask_decides_who_may_read(umask: int, mode: int, tmp_path: Path) -> None:
    old = os.umask(umask)
    try:
        make(PAIR).save(tmp_path / "model")
    finally:
        os.umask(old)
    for path in (tmp_path / "model").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == mode, path
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == (0o777 & ~umask)


def test_nothing_is_overwritten_unasked(folder: Path) -> None:
    other = make(PAIR, seed=1)
    folder.with_name("empty").mkdir()
    other.save(folder.with_name("empty"), overwrite=True)
    load(folder.with_name("empty"))
    with pytest.raises(ValueError, match=r"model exists.*overwrite"):
        other.save(folder)
    other.save(folder, overwrite=True)
    assert torch.equal(run(load(folder)), run(other))
    assert names(folder.parent) == {"model", "empty"}


def make_run(target: Path) -> None:
    """Training keeps its checkpoints beside the same two names."""
    make(PAIR).save(target)
    (target / "checkpoints").mkdir()


OCCUPIED: dict[str, Any] = {
    "file": lambda target: target.write_text("precious"),
    "link": lambda target: (target.with_name("x").mkdir(), target.symlink_to("x")),
    "other": lambda target: (target.mkdir(), (target / "thesis.tex").write_text("precious")),
    "run": make_run,
}


@pytest.mark.parametrize("what", OCCUPIED)
def test_only_model_folders_are_overwritten(what: str, tmp_path: Path) -> None:
    OCCUPIED[what](tmp_path / "model")
    before = {path: path.lstat()[:7] for path in tmp_path.rglob("*")}
    with pytest.raises(ValueError, match="is not a model folder"):
        make(PAIR).save(tmp_path / "model", overwrite=True)
    assert {path: path.lstat()[:7] for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("place", ["write_file", "write_manifest"])
def test_a_failure_leaves_what_was_there(
    place: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run(load(folder))

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"lightconv.models.folder.{place}", fail)
    with pytest.raises(OSError, match="No space left"):
        make(PAIR, seed=1).save(folder, overwrite=True)
    with pytest.raises(OSError, match="No space left"):
        make(PAIR, seed=1).save(folder.with_name("new"))
    assert torch.equal(run(load(folder)), before)
    assert names(folder.parent) == {"model"}


def test_bad_options_of_save(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"vocabulary": Vocabulary.of("ab")}, r"vocabulary of \(6, 6\).*the model has \(9, 7\)"),
        ({"tables": {"model": {}}}, "must not be called 'model'"),
    ]
    bad = ("config.json", "model.safetensors", "../up", "a/b", "", "..")
    cases += [({"files": {name: b""}}, f"must not be called {name!r}") for name in bad]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            make(PAIR).save(tmp_path / "model", **options)
    assert names(tmp_path) == set()


PEAK = r"""
import re, sys, torch, lightconv
import lightconv.models.folder, lightconv.models.lm

def peak():
    with open("/proc/self/status") as status:  # getrusage would begin with that of the parent
        return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status.read())[1])

torch.ones(8).sum()
before = peak()
model = lightconv.load(sys.argv[1])
with torch.no_grad():
    total = sum(p.sum().item() for p in model.parameters())  # touches every page
weights = sum(p.nbytes for p in model.parameters())
print((peak() - before) / weights, "torch._dynamo" in sys.modules)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux to measure")
def test_loading_holds_one_copy(tmp_path: Path) -> None:
    layer = DynamicConvConfig(kernel=31, heads=16)
    config = LanguageModelConfig(dim=1024, ffn_dim=4096, layers=(layer,) * 4, vocab=5000)
    model = make(config)
    assert sum(p.numel() for p in model.parameters()) > 45e6
    model.save(tmp_path / "model")
    command = [sys.executable, "-c", PEAK, str(tmp_path / "model")]
    copies, loaded_compiler = subprocess.check_output(command, text=True).split()
    assert 0.9 < float(copies) < 1.3
    assert loaded_compiler == "False"  # which some operations on the meta device need


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[2] / "docs" / "model-folder.md"
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    code, *_ = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    exec(code, found)  # tests/test_documents.py runs the other, which needs transformers
    assert found["scores"].shape == (1, 2, 7)
    assert names(tmp_path / "cats") == {*OWN_FILES, "vocab.txt"}


def damage(folder: Path, names: Sequence[str], rng: random.Random) -> str:
    """Changes one file at random and sets its time back; returns its name."""
    name, other = rng.sample(names, 2)
    path = folder / name
    old, data = path.stat(), bytearray(path.read_bytes())
    # The end of the manifest and spaces in it say nothing.
    place, kind = rng.randrange(len(data) - 1), rng.randrange(5 if name != "manifest.json" else 3)
    if kind == 0:
        data[place:] = b""
    elif kind == 1:
        data[place : place + 512] = bytes(len(data[place : place + 512]))
    elif kind == 2:
        data = bytearray((folder / other).read_bytes())
    elif kind == 4:
        data[place : place + 1] = b""
    if data == path.read_bytes():
        data[place] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))
    return name


@pytest.mark.parametrize("cases", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_damage_anywhere_is_found(
    cases: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R16: every byte counts, also numbers of the weights, which no other check sees.

    The folder has been loaded before, and is remembered.
    """
    folder, rng = tmp_path / "model", random.Random(16)
    make(TEXT).save(folder, vocabulary=Vocabulary.of("abcde"))
    intact = {path.name: path.read_bytes() for path in folder.iterdir()}
    names = sorted({*intact} - {"README.md"})
    monkeypatch.setattr(model_folder, "OLD_ENOUGH", 20_000_000)
    for _ in range(cases):
        time.sleep(0.025)
        ModelFolder(folder).load()
        assert folder in model_folder._VERIFIED
        name = damage(folder, names, rng)
        with pytest.raises(ValueError, match=re.escape(str(folder))):
            ModelFolder(folder).load()
        (folder / name).write_bytes(intact[name])


def test_a_folder_is_read_once_until_it_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Path] = []

    def count(path: Path) -> str:
        calls.append(path)
        return digest(path)

    monkeypatch.setattr(files, "digest", count)
    ModelFolder(folder).load()
    first, now = len(calls), time.time_ns()
    ModelFolder(folder).load()
    assert len(calls) == 2 * first, "too young: a change could go unnoticed"
    monkeypatch.setattr(model_folder, "time_ns", lambda: now + 10**12)
    for _ in range(3):
        ModelFolder(folder).load()
    assert len(calls) == 3 * first


def test_a_card_may_be_edited_and_tables_replaced(folder: Path) -> None:
    (folder / "README.md").write_text("mine")
    found = ModelFolder(folder)
    found.set_tables({"decode": {"beam": 2}})
    again = ModelFolder(folder)
    assert again.tables == {"decode": {"beam": 2}}
    again.load()
    (folder / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="damaged"):
        again.set_tables({"decode": {"beam": 3}})
    assert ModelFolder(folder).tables == {"decode": {"beam": 2}}


# --- Folders from strangers: whatever is wrong with one, `load` says it and does no harm


@pytest.fixture
def strange(folder: Path) -> Path:
    """A saved model without a manifest, as of a stranger or of lightconv 0.1."""
    (folder / "manifest.json").unlink()
    return folder


def edit(name: str, change: Callable[[bytes], bytes]) -> Any:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def write(name: str, data: bytes) -> Any:
    return edit(name, lambda _: data)


def config(**changes: Any) -> Any:
    return edit(CONFIG, lambda data: json.dumps(json.loads(data) | changes).encode())


def model(**changes: Any) -> Any:
    return config(model=to_dict(PAIR) | changes)


def weights(change: Callable[[bytes], bytes]) -> Any:
    return edit(WEIGHTS, change)


def tensors(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Any:
    return weights(lambda data: safetensors.torch.save(change(safetensors.torch.load(data))))


def output(convert: Any) -> Any:
    return tensors(lambda found: found | {"output.weight": convert(found["output.weight"])})


def header(length: int) -> Any:
    """Lies about the length of the header."""
    return weights(lambda data: struct.pack("<Q", length) + data[8:])


def entry(change: Any) -> Any:
    """Changes what the header says about one tensor, given all of it."""

    def rewrite(data: bytes) -> bytes:
        length = int.from_bytes(data[:8], "little")
        found = json.loads(data[8 : 8 + length])
        found["output.weight"] |= change(found)
        text = json.dumps(found).encode()
        return struct.pack("<Q", len(text)) + text + data[8 + length :]

    return weights(rewrite)


def instead(name: str, make: Any) -> Any:
    """Removes a file and makes something else of its name."""
    return lambda folder: ((folder / name).unlink(), make(folder / name))


def link_out(name: str) -> Any:
    return lambda folder: (
        (folder / name).rename(folder.parent / name),
        (folder / name).symlink_to(f"../{name}"),
    )


def overlap(found: dict[str, Any]) -> dict[str, Any]:
    return {"data_offsets": found["target_embedding.weight"]["data_offsets"]}


LOST = "encoder.1.mixer.kernel_proj.weight"
WEIGHTS, CONFIG = "model.safetensors", "config.json"
LAYER = {"kind": "attention", "heads": 2}


BROKEN: dict[str, tuple[Any, str]] = {
    "missing tensor": (
        tensors(lambda found: {name: found[name] for name in found if name != LOST}),
        rf"lacks {LOST}, expected by",
    ),
    "extra tensor": (
        tensors(lambda found: found | {"extra": torch.zeros(1)}),
        "has extra, unknown to its config",
    ),
    "wrong shape": (output(lambda t: t.t().contiguous()), r"shape \[8, 7\], expected \[7, 8\]"),
    "int tensor": (output(torch.Tensor.long), r"output.weight has type .*int64, expected"),
    "mixed types": (output(torch.Tensor.half), r"has type .*float(16|32), but"),
    "truncated": (weights(lambda data: data[:-100]), f"{WEIGHTS} is damaged"),
    "longer": (weights(lambda data: data + b"hidden"), f"{WEIGHTS} is damaged"),
    "header too long": (header(2**63), "is damaged: a header of .*, expected a safetensors file"),
    "header beyond file": (
        header(10**6),
        "is damaged: a header of .*, expected a safetensors file",
    ),
    "header cut": (header(100), f"{WEIGHTS} (is damaged|has 1 tensors for 4)"),
    "empty weights": (
        write(WEIGHTS, b""),
        "is damaged: a header of .*, expected a safetensors file",
    ),
    "weights overlap": (entry(overlap), f"{WEIGHTS} is damaged"),
    "header of a giant": (entry(lambda _: {"shape": [10**9, 10**9]}), f"{WEIGHTS} is damaged"),
    "weights link out": (link_out(WEIGHTS), "a link that leaves its folder.*cp -rL"),
    "config link out": (link_out(CONFIG), "a link that leaves its folder"),
    "config is a pipe": (instead(CONFIG, os.mkfifo), f"{CONFIG} is not a regular file"),
    "config links to itself": (
        instead(CONFIG, lambda path: path.symlink_to(path.name)),
        f"{CONFIG} cannot be read",
    ),
    "config of a megabyte": (write(CONFIG, b"1" * 2**20), r"longer than \d+ bytes"),
    "config nested": (write(CONFIG, b"[" * 10**5), "nested too deeply|not JSON"),
    "config of latin1": (write(CONFIG, b'{"a": "\xe4"}'), "is not UTF-8"),
    "config empty": (write(CONFIG, b""), f"{CONFIG}: is empty"),
    "config of others": (write(CONFIG, b'{"model_type": "bert"}'), "not a model of light"),
    "config no table": (write(CONFIG, b"[1]"), "not a model of lightconv"),
    "no config": (instead(CONFIG, str), f"has no {CONFIG}"),
    "no weights": (instead(WEIGHTS, str), f"has no file {WEIGHTS}"),
    "newer version": (config(version=2), "version 2, expected 1.*newer"),
    "version true": (config(version=True), "version True, expected 1"),
    "no model": (config(model=None), "model=null must be a table|model"),
    "table of others": (config(task=3), "'task' must be a table"),
    "unknown kind": (model(kind="gpt"), "unknown model.kind='gpt'"),
    "unknown field": (model(dims=8), "unknown field model.dims"),
    "giant width": (model(dim=10**6), r"expected \[\d+, 1000000\]"),
    "giant beyond numbers": (model(dim=10**9), "dim=1000000000 must be at most"),
    "giant vocabulary": (model(source_vocab=2**60), "source_vocab=1152921504606846976 must be"),
    "many layers": (model(encoder=[LAYER] * 999), "tensors for 1001 layers"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_wrong_is_said(what: str, strange: Path) -> None:
    break_it, message = BROKEN[what]
    break_it(strange)
    with pytest.raises(ValueError, match=message) as raised:
        load(strange)
    assert len(str(raised.value)) < 600
    assert str(strange) in str(raised.value)


def test_what_is_not_a_folder_is_said(tmp_path: Path, strange: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere does not exist"):
        load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"is a file, expected a model folder"):
        load(strange / "model.safetensors")
    # Links inside the folder, and to it, are followed; a manifest is not needed.
    (strange / "model.safetensors").rename(strange / "weights-v1")
    (strange / "model.safetensors").symlink_to("weights-v1")
    strange.with_name("latest").symlink_to("model")
    assert torch.equal(run(load(strange.with_name("latest"))), run(make(PAIR)))


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_pickles_are_refused_with_the_way_to_import_them(legacy: bool, strange: Path) -> None:
    pickled = strange.parent / "checkpoint.pt"
    torch.save({"model": {}}, pickled, _use_new_zipfile_serialization=not legacy)
    message = r"is a pickle, which can run code .* lightconv import fairseq .*checkpoint\.pt"
    with pytest.raises(ValueError, match=message):
        load(pickled)
    # By another name, or in a folder of another toolkit.
    (strange / "model.safetensors").write_bytes(pickled.read_bytes())
    with pytest.raises(ValueError, match=r"model\.safetensors is a pickle"):
        load(strange)
    (strange / "model.safetensors").rename(strange / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin is a pickle"):
        load(strange)


def test_mutated_configs_are_errors_or_models(
    strange: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = (strange / "config.json").read_bytes()
    draw = random.Random(0)
    data = bytearray()
    # Writing takes milliseconds.
    read = "lightconv.models.folder.read_plain"
    monkeypatch.setattr(read, lambda _: parse_plain(bytes(data).decode(), ".json"))
    pieces = [b"0", b"-1", b"1e9", b"null", b"true", b"{}", b"[]", b'"', b",", b"9" * 30, b"\xff"]
    loaded = 0
    for _ in range(2000):
        data[:] = good
        for _ in range(draw.randint(1, 3)):
            place = draw.randrange(len(data))
            piece = draw.choice([draw.randbytes(draw.randint(0, 3)), draw.choice(pieces)])
            data[place : place + draw.randint(0, 3)] = piece
        try:
            load(strange)
            loaded += 1
        except ValueError as error:
            assert len(str(error)) < 600
    assert loaded > 0  # a changed space or dropout is no damage


def test_mutated_weights_are_errors_or_models(strange: Path) -> None:
    path = strange / "model.safetensors"
    good = path.read_bytes()
    header = int.from_bytes(good[:8], "little") + 8
    draw = random.Random(0)
    for _ in range(100):
        data = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(header)] = draw.randrange(256)
        path.write_bytes(data)
        try:
            load(strange)
        except ValueError as error:
            assert str(path) in str(error)
