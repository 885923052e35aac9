"""`lightconv import fairseq`: a folder, a summary, or one line that says what is wrong."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import lightconv
from lightconv.cli import main
from lightconv.data import load_vocabularies
from lightconv.models.folder import ModelFolder
from tests.interop.writer import PAIR, TEXT, make, write


def dictionary(path: Path, symbols: int, letter: str = "w") -> Path:
    path.write_text("".join(f"{letter}{i} {100 - i}\n" for i in range(symbols)))
    return path


@pytest.fixture
def given(tmp_path: Path) -> dict[str, str]:
    """A checkpoint with 11 and 9 rows, and dictionaries of 7 and 5 symbols."""
    write(make(PAIR), "2019", tmp_path / "checkpoint.pt")
    return {
        "checkpoint": str(tmp_path / "checkpoint.pt"),
        "source": str(dictionary(tmp_path / "dict.de.txt", 7, "s")),
        "target": str(dictionary(tmp_path / "dict.en.txt", 5, "t")),
        "out": str(tmp_path / "model"),
    }


def command(given: dict[str, str], *more: str) -> list[str]:
    dicts = ["--dict", given["source"], "--dict", given["target"]]
    return ["import", "fairseq", given["checkpoint"], *dicts, "--out", given["out"], *more]


def test_a_folder_and_a_summary(given: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    codes = Path(given["out"]).with_name("code")
    codes.write_text("#version: 0.2\na b\n")
    assert main(command(given, "--codes", str(codes))) == 0
    printed = capsys.readouterr()
    assert [line.split(maxsplit=1) for line in printed.out.splitlines()] == [
        ["layout", "2019 (v0.6)"],
        ["encoder", "2 lightconv, kernels 3, 7"],
        ["decoder", "2 lightconv, kernels 3, 7"],
        ["parameters", f"{sum(p.numel() for p in make(PAIR).parameters()):,}"],
        ["vocabulary", "11 and 9"],
        ["folder", given["out"]],
        [
            "files",
            "README.md, codes.txt, config.json, manifest.json, model.safetensors, "
            "vocab.source.txt, vocab.target.txt",
        ],
    ]
    assert printed.err.splitlines() == [f"reading {given['checkpoint']}", f"writing {given['out']}"]
    model = lightconv.load(given["out"])
    assert model.config == PAIR
    for ours, theirs in zip(make(PAIR).parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    languages = {"source_lang": "de", "target_lang": "en"}
    assert ModelFolder(given["out"]).tables == {"task": {"kind": "translation", **languages}}
    assert load_vocabularies(given["out"]).source.encode(["s0"]) == [4]
    assert (Path(given["out"]) / "codes.txt").read_text() == codes.read_text()


def run(folder: Path, letters: str, *more: str) -> int:
    """Imports folder/x.pt into folder/model, with a dictionary of 7 symbols for each letter."""
    options = [f"{folder}/x.pt", "--out", f"{folder}/model", *more]
    for i, letter in enumerate(letters):
        options += ["--dict", str(dictionary(folder / f"{i}.txt", 7, letter))]
    return main(["import", "fairseq", *options])


def test_a_language_model_with_one_dictionary(tmp_path: Path) -> None:
    write(make(TEXT), "v0.12", tmp_path / "x.pt")
    assert run(tmp_path, "w") == 0
    assert (tmp_path / "model" / "vocab.txt").exists()
    assert lightconv.load(tmp_path / "model").config == TEXT


def test_equal_dictionaries_are_one(tmp_path: Path) -> None:
    write(make(replace(PAIR, target_vocab=11)), "2019", tmp_path / "x.pt")
    codes = tmp_path / "code"
    codes.write_text("a b\n")
    assert run(tmp_path, "ww", "--codes", str(codes), "--codes", str(codes)) == 0
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert {"vocab.txt", "codes.source.txt", "codes.target.txt"} <= names
    assert "vocab.source.txt" not in names


def mistakes(given: dict[str, str]) -> dict[str, tuple[list[str], str]]:
    folder = Path(given["out"]).parent
    full = [given["checkpoint"], "--dict", given["source"], "--dict", given["target"]]
    longer = str(dictionary(folder / "longer.txt", 8))
    latin1 = folder / "latin1"
    latin1.write_bytes(b"a b\n\xe4 c\n")
    (folder / "empty").touch()
    other = folder / "other"
    other.mkdir(exist_ok=True)
    (other / "thesis.tex").touch()
    out = ["--out", given["out"]]
    return {
        "no dictionary": ([given["checkpoint"], *out], "--dict"),
        "no folder": (full, "--out"),
        "unknown option": ([*full, *out, "--dicts", "x"], "did you mean '--dict'?"),
        "one of two": ([given["checkpoint"], "--dict", given["source"], *out], "Give --dict twice"),
        "three": ([*full, "--dict", given["source"], *out], "--dict is given 3 times"),
        "wrong size": (
            [given["checkpoint"], "--dict", longer, "--dict", given["target"], *out],
            f"{longer} has 8 symbols, but the checkpoint has 7",
        ),
        "no such dictionary": (["x", "--dict", f"{folder}/none", *out], "none does not exist"),
        "no such checkpoint": ([f"{folder}/none.pt", *full[1:], *out], "there is no file"),
        "no checkpoint": ([longer, *full[1:], *out], "is not a checkpoint: it begins with"),
        "codes of latin1": ([*full, "--codes", str(latin1), *out], "latin1, line 2: not UTF-8"),
        "codes empty": ([*full, "--codes", f"{folder}/empty", *out], "empty is empty"),
        "no such codes": ([*full, "--codes", f"{folder}/none", *out], "there is no file"),
        "folder of others": (
            [*full, "--overwrite", "--out", str(other)],
            "is not a model folder, so it is not overwritten",
        ),
        "folder exists": ([*full, "--out", str(other)], "other exists"),
    }


def test_mistakes_are_one_line(given: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in mistakes(given).values():
        assert main(["import", "fairseq", *arguments]) == 2
        *progress, error = capsys.readouterr().err.splitlines()
        assert error.startswith("error: ")
        assert message in error
        assert all(line.startswith("reading ") for line in progress)
        assert not Path(given["out"]).exists()
    hidden = [path for path in Path(given["out"]).parent.iterdir() if path.name.startswith(".")]
    assert hidden == []
    assert (Path(given["out"]).parent / "other" / "thesis.tex").exists()


def test_a_shared_vocabulary_needs_one_dictionary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = replace(PAIR, share_embeddings="all", target_vocab=11)
    write(make(shared), "newest", tmp_path / "x.pt")
    assert run(tmp_path, "st") == 2
    assert "differ, but the model has one vocabulary for all" in capsys.readouterr().err
    assert run(tmp_path, "s") == 0


def test_overwriting(given: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(given)) == 0
    assert main(command(given)) == 2
    assert "exists" in capsys.readouterr().err
    assert main(command(given, "--overwrite")) == 0


FULL_DISK = """
import resource, sys
from lightconv.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))  # bytes
sys.exit(main(sys.argv[1:]))
"""


def test_a_full_disk(given: dict[str, str]) -> None:
    script = [sys.executable, "-c", FULL_DISK, *command(given)]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "cannot be written" in done.stderr.splitlines()[-1]
    assert "File too large" in done.stderr.splitlines()[-1]
    assert not [path for path in Path(given["out"]).parent.iterdir() if "model" in path.name]


def test_a_windows_dictionary_is_read_with_a_warning(
    given: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    source = Path(given["source"])
    source.write_bytes(source.read_bytes().replace(b"\n", b"\r\n"))
    assert main(command(given)) == 0
    warning = capsys.readouterr().err.splitlines()[0]
    assert warning == f"warning: {source}: dropped the CR of 7 lines"


def test_mistakes_need_no_torch() -> None:
    code = (
        "import sys; from lightconv.cli import main;"
        "main(['import', 'fairseq', 'x.pt', '--dict', 'nowhere', '--out', 'y']);"
        "main(['import', '--help']); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
