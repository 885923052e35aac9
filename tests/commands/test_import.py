"""`lightconv import fairseq`: a folder, a summary, or one line that says what is wrong."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import lightconv
from lightconv.data import load_vocabularies
from lightconv.models.config import ModelConfig
from lightconv.models.folder import ModelFolder
from tests.commands.conftest import Run
from tests.interop.writer import PAIR, TEXT, make, write

IMPORT = ("import", "fairseq", "x.pt", "--out", "model")
DICTS = ("--dict", "dict.de.txt", "--dict", "dict.en.txt")


def checkpoint(config: ModelConfig, version: str = "2019") -> None:
    write(make(config), version, Path("x.pt"))


def dictionary(name: str, symbols: int, letter: str) -> None:
    Path(name).write_text("".join(f"{letter}{i} {100 - i}\n" for i in range(symbols)))


@pytest.fixture(autouse=True)
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint with 11 and 9 rows, dictionaries of 7 and 5 symbols, codes."""
    monkeypatch.chdir(tmp_path)
    checkpoint(PAIR)
    dictionary("dict.de.txt", 7, "s")
    dictionary("dict.en.txt", 5, "t")
    Path("code").write_text("#version: 0.2\na b\n")


def test_a_folder_and_a_summary(run: Run) -> None:
    done = run(*IMPORT, *DICTS, "--codes", "code")
    files = "README.md, codes.txt, config.json, manifest.json, model.safetensors, "
    assert [line.split(maxsplit=1) for line in done.out.splitlines()] == [
        ["layout", "2019 (v0.6)"],
        ["encoder", "2 lightconv, kernels 3, 7"],
        ["decoder", "2 lightconv, kernels 3, 7"],
        ["parameters", f"{sum(p.numel() for p in make(PAIR).parameters()):,}"],
        ["vocabulary", "11 and 9"],
        ["folder", "model"],
        ["files", f"{files}vocab.source.txt, vocab.target.txt"],
    ]
    assert done.code == 0 and done.err.splitlines() == ["reading x.pt", "writing model"]
    model = lightconv.load("model")
    assert model.config == PAIR
    for ours, theirs in zip(make(PAIR).parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    languages = {"source_lang": "de", "target_lang": "en"}
    assert ModelFolder("model").tables == {"task": {"kind": "translation", **languages}}
    assert load_vocabularies("model").source.encode(["s0"]) == [4]
    assert Path("model/codes.txt").read_text() == Path("code").read_text()
    assert run(*IMPORT, *DICTS).refused("model exists")
    assert run(*IMPORT, *DICTS, "--overwrite").code == 0


def test_a_language_model_with_one_dictionary(run: Run) -> None:
    checkpoint(TEXT, "v0.12")
    assert run(*IMPORT, *DICTS[:2]).code == 0
    assert Path("model/vocab.txt").exists()
    assert lightconv.load("model").config == TEXT


def test_equal_dictionaries_are_one(run: Run) -> None:
    checkpoint(replace(PAIR, target_vocab=11))
    dictionary("dict.en.txt", 7, "s")
    assert run(*IMPORT, *DICTS, "--codes", "code", "--codes", "code").code == 0
    names = {path.name for path in Path("model").iterdir()}
    assert {"vocab.txt", "codes.source.txt", "codes.target.txt"} <= names
    assert "vocab.source.txt" not in names


def test_a_shared_vocabulary_needs_one_dictionary(run: Run) -> None:
    checkpoint(replace(PAIR, share_embeddings="all", target_vocab=11), "newest")
    dictionary("dict.en.txt", 7, "t")
    differ = "differ, but the model has one vocabulary for all"
    assert run(*IMPORT, *DICTS).refused(differ, after="reading ")
    assert run(*IMPORT, *DICTS[:2]).code == 0


BOTH = "x.pt --dict dict.de.txt --dict dict.en.txt"
FULL = f"{BOTH} --out model"


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("x.pt --out model", "--dict"),
        (BOTH, "--out"),
        (f"{FULL} --dicts x", "did you mean '--dict'?"),
        ("x.pt --dict dict.de.txt --out model", "Give --dict twice"),
        (f"{FULL} --dict dict.de.txt", "--dict is given 3 times"),
        (f"{FULL} --codes code --codes code --codes code", "--codes is given 3 times"),
        (FULL.replace("dict.de", "longer"), "longer.txt has 8 symbols, but the checkpoint has 7"),
        (FULL.replace("dict.en", "longer"), "longer.txt has 8 symbols, but the checkpoint has 5"),
        ("x --dict none --out model", "none does not exist"),
        (FULL.replace("x.pt", "none.pt"), "there is no file"),
        (FULL.replace("x.pt", "longer.txt"), "is not a checkpoint: it begins with"),
        (f"{FULL} --codes latin1", "latin1, line 2: byte 0xe4 is not UTF-8"),
        (f"{FULL} --codes empty", "empty is empty"),
        (f"{FULL} --codes none", "none does not exist"),
        (f"{FULL} --codes three", "three, line 2: 'a b c', expected two symbols of BPE codes"),
        (f"{BOTH} --overwrite --out other", "is not a model folder, so it is not overwritten"),
        (f"{BOTH} --out other", "other exists"),
    ],
)
def test_mistakes_are_one_line(run: Run, arguments: str, message: str) -> None:
    dictionary("longer.txt", 8, "w")
    for name, data in {"latin1": b"a b\n\xe4 c\n", "empty": b"", "three": b"a b\na b c\n"}.items():
        Path(name).write_bytes(data)
    Path("other").mkdir()
    Path("other/thesis.tex").touch()
    before = sorted(Path().rglob("*"))
    assert run("import", "fairseq", *arguments.split()).refused(message, after="reading ")
    assert sorted(Path().rglob("*")) == before, "nothing is written"


FULL_DISK = """
import resource, sys
from lightconv.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))  # bytes
sys.exit(main(sys.argv[1:]))
"""


def test_a_full_disk() -> None:
    script = [sys.executable, "-c", FULL_DISK, *IMPORT, *DICTS]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "cannot be written" in last and "File too large" in last
    assert not [path for path in Path().iterdir() if "model" in path.name]


def test_a_windows_dictionary_is_read_with_a_warning(run: Run) -> None:
    source = Path("dict.de.txt")
    source.write_bytes(source.read_bytes().replace(b"\n", b"\r\n"))
    done = run(*IMPORT, *DICTS)
    assert done.code == 0
    assert done.err.splitlines()[0] == "warning: dict.de.txt: dropped the CR of 7 lines"
