"""What README.md and docs/ say about text runs, on a model that was trained here."""

import io
import re
import shutil
import sys
from pathlib import Path

import pytest

import lightconv
from lightconv import cli
from tests.trained import Trained

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "docs" / "translate.md", ROOT / "docs" / "evaluation.md"]
KINDS = ("translate", "summarize", "generate", "score", "interactive", "evaluate", "tune")
COMMANDS = sorted(
    {
        command
        for page in PAGES
        for command in re.findall(r"^    (lightconv .*?)(?:  +#.*)?$", page.read_text(), re.M)
        if command.split()[1] in KINDS
    }
)


@pytest.fixture
def folder(
    copies: Trained, texts: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder with all that the pages name."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "data").mkdir()
    shutil.copytree(copies.run, tmp_path / "runs" / "first")
    for name in ("first", "mine"):
        (tmp_path / "data" / name).symlink_to(copies.data)
    (tmp_path / "text-model").symlink_to(texts.model)
    for name in ("in.txt", "out.txt", "ref.txt", "articles.txt", "baseline.txt"):
        (tmp_path / name).write_text("w1 w2 .\nw3 w4 .\n")
    for name in ("out.tok", "ref.tok"):
        (tmp_path / name).write_text("w1 w2 .\nw3 w4 .\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"w1 w2\n")))
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(command: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = "text-model" if " generate " in command else "runs/first"
    words = command.replace("MODEL", model).replace("'the king'", "the").split()
    if ">" in words:
        words = words[: words.index(">")]
    code = cli.main(words[1:])
    out, err = capfd.readouterr()
    assert code == 0, err
    assert out


def test_blocks_run(folder: Path) -> None:
    for page in PAGES[:2]:
        blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
        (block,) = (block for block in blocks if ".translate(" in block)
        exec(block, {"lightconv": lightconv})
