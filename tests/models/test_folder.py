"""Model folders: what is written is what is read, in one copy; strangers' folders do no harm."""

import json
import os
import random
import re
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lightconv.data import Vocabularies, Vocabulary
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
from lightconv.models.folder import ModelFolder, build, load, save

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
every_config = pytest.mark.parametrize("name", CONFIGS)


def make(config: ModelConfig, seed: int = 0) -> Seq2Seq | LanguageModel:
    torch.manual_seed(seed)
    return build(config).eval()


def run(model: Seq2Seq | LanguageModel) -> torch.Tensor:
    tokens = torch.tensor([[2, 4, 5, 6, 3, 2], [2, 5, 4, 1, 1, 1]])
    with torch.inference_mode():
        return model(tokens, tokens) if isinstance(model, Seq2Seq) else model(tokens)


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


@every_config
def test_every_parameter_is_stored_once(name: str, tmp_path: Path) -> None:
    model = make(CONFIGS[name])
    model.save(tmp_path / "model")
    stored = load_file(tmp_path / "model" / "model.safetensors")
    assert sum(t.numel() for t in stored.values()) == sum(p.numel() for p in model.parameters())


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
    files = {"codes.txt": codes, "notes.txt": b"hello"}
    save(model, tmp_path / "model", vocabulary=words, files=files, tables=tables)
    folder = tmp_path / "model"
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "codes.txt",
        "config.json",
        "manifest.json",
        "model.safetensors",
        "notes.txt",
        "vocab.source.txt",
        "vocab.target.txt",
    ]
    assert (folder / "codes.txt").read_bytes() == codes.read_bytes()
    data = json.loads((folder / "config.json").read_text())
    assert (data["format"], data["version"], data["model"]["kind"]) == ("lightconv", 1, "seq2seq")
    assert ModelFolder(folder).config == PAIR
    assert ModelFolder(folder).tables == tables
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


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
    names: dict[str, Any] = {"source": tokens, "target_in": tokens, "tokens": tokens}
    exec("\n".join(code), names)
    assert names["scores"].shape[:2] == (1, 3)


def test_a_card_of_ones_own_is_kept(tmp_path: Path) -> None:
    save(make(PAIR), tmp_path / "model", files={"README.md": b"mine"})
    assert (tmp_path / "model" / "README.md").read_bytes() == b"mine"


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
    with pytest.raises(ValueError, match=r"model exists.*overwrite"):
        other.save(folder)
    other.save(folder, overwrite=True)
    assert torch.equal(run(load(folder)), run(other))
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("what", ["file", "link", "other", "run"])
def test_only_model_folders_are_overwritten(what: str, tmp_path: Path) -> None:
    target = tmp_path / "model"
    kept = target
    if what == "file":
        target.write_text("precious")
    elif what == "link":
        (tmp_path / "elsewhere").mkdir()
        target.symlink_to("elsewhere")
    elif what == "other":
        target.mkdir()
        kept = target / "thesis.tex"
        kept.write_text("precious")
    else:  # training keeps its checkpoints beside the same two names
        make(PAIR).save(target)
        kept = target / "checkpoints"
        kept.mkdir()
    with pytest.raises(ValueError, match="is not a model folder"):
        make(PAIR).save(target, overwrite=True)
    assert kept.exists()


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    make(PAIR).save(tmp_path / "model", overwrite=True)
    load(tmp_path / "model")


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
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_a_vocabulary_of_another_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"vocabulary of \(6, 6\).*the model has \(9, 7\)"):
        make(PAIR).save(tmp_path / "model", vocabulary=Vocabulary.of("ab"))
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "../up", "a/b", "", ".."])
def test_names_of_further_files_are_plain(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must not be called"):
        save(make(PAIR), tmp_path / "model", files={name: b""})
    assert not (tmp_path / "model").exists()


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
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path / "model")],
        capture_output=True,
        text=True,
        check=True,
    )
    copies, loaded_compiler = done.stdout.split()
    assert 0.9 < float(copies) < 1.3
    assert loaded_compiler == "False"  # which some operations on the meta device need


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[2] / "docs" / "model-folder.md"
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(code, names)
    assert names["scores"].shape == (1, 2, 7)
    assert {path.name for path in (tmp_path / "cats").iterdir()} == {
        "README.md",
        "config.json",
        "manifest.json",
        "model.safetensors",
        "vocab.txt",
    }


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocab.txt"])
def test_damage_anywhere_is_found(name: str, tmp_path: Path) -> None:
    """Every byte counts: also numbers of the weights, which no other check sees."""
    model = make(TEXT)
    words = Vocabulary.of("abcde")
    rng = random.Random(name)
    for case in range(20):
        folder = tmp_path / str(case)
        save(model, folder, vocabulary=words)
        data = bytearray((folder / name).read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        (folder / name).write_bytes(data)
        with pytest.raises(ValueError, match=re.escape(str(folder))):
            ModelFolder(folder).load()


def test_a_folder_without_a_manifest_opens(folder: Path) -> None:
    before = run(load(folder))
    (folder / "manifest.json").unlink()
    assert torch.equal(run(load(folder)), before)


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


def test_the_writer_and_the_library_write_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    save_file(load_file(folder / "model.safetensors"), tmp_path / "theirs.safetensors")
    assert (tmp_path / "theirs.safetensors").read_bytes() == (
        folder / "model.safetensors"
    ).read_bytes()
