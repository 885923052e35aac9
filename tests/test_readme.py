"""README.md is true: every command and every Python block in it runs, small where it must be.

What cannot run here is in ELSEWHERE, with the test that stands for it. A command that no table
knows is a failure.
"""

import io
import re
import shlex
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import lightconv
from lightconv import cli
from tests.interop.writer import PAIR, make, write

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
PROSE = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
LINES = re.findall(r"^    (\S.*)$", PROSE, re.MULTILINE)
MENTIONS = [" ".join(name.split()) for name in re.findall(r"`([^`]+)`", PROSE)]
COMMANDS = [
    line.split("  #")[0].strip()
    for line in [*LINES, *MENTIONS]
    if re.match(r"(echo|lightconv|python|pip|make) \S", line)
]

# In the order of the page, in one folder, each with what makes it small.
STORY = {
    "lightconv prepare synthetic-reverse ": "",
    "lightconv train examples/first.toml ": "--set model.dim=16 --set model.ffn_dim=16 "
    "--set train.max_steps=6 --set train.save_every=2 --set train.validate_every=6 "
    "--set train.schedule.warmup=2 --set train.schedule.period=4",
    "lightconv plot runs/first": "",
    "lightconv tune runs/first ": "--limit 3 --alphas 0,1 --counts 1,2",
    "lightconv evaluate runs/first ": "--limit 3",
    "echo 'w1 w2 w3' | lightconv translate runs/first": "",
}
# Each for itself.
ALONE = {
    **dict.fromkeys(("lightconv doctor", "lightconv prepare --list"), ""),
    **dict.fromkeys(("lightconv list", "lightconv show "), ""),
    **dict.fromkeys(("lightconv table ablation", "lightconv table ablation "), ""),
    "lightconv import fairseq ": "",
    "lightconv selftest": "--list",
    "lightconv train debian-en-de-": "--dry-run",
}
# Needs a mirror of packages, minutes, or a fresh machine; the test that stands for it.
ELSEWHERE = {
    "lightconv prepare debian-en-de ": "tests/corpora/test_debian.py",
    "lightconv table ablation --scale cpu ": "tests/commands/test_table.py",
    "python examples/swap_attention.py": "tests/examples/test_swap_attention.py",
    "lightconv fit ": "tests/fitting/test_run.py",
    "lightconv serve ": "tests/serve/test_server.py",
    "pip install ": "tests/test_readme.py",
    "make ": "tests/test_documents.py",
}


def find(command: str, table: dict[str, str]) -> str | None:
    """The entry that is meant: the whole command, else its longest beginning."""
    if command in table:
        return command
    begins = [key for key in table if key.endswith((" ", "-")) and command.startswith(key)]
    return max(begins, key=len, default=None)


def home(command: str) -> dict[str, str] | None:
    """The table that knows a command best."""
    found = [(len(find(command, table) or ""), table) for table in (STORY, ALONE, ELSEWHERE)]
    length, table = max(found, key=lambda pair: pair[0])
    return table if length else None


def ask(command: str, table: dict[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    """Runs a command: it prints something and warns of nothing."""
    text, _, words = command.rpartition(" | ")
    echoed = " ".join(shlex.split(text)[1:])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{echoed}\n".encode())))
        more = table[find(command, table) or ""]
        code = cli.main([*shlex.split(words)[1:], *shlex.split(more)])
    out, err = capfd.readouterr()
    assert code == 0, (command, err)
    assert out and "Warning" not in err, (command, err)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all that the page takes for granted."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "in.txt").write_text("w1 w2 w3\nw4 w5\n")
    write(make(PAIR), "2019", tmp_path / "checkpoint_best.pt")
    for side, symbols in (("de", 7), ("en", 5)):
        lines = "".join(f"{side}{i} {100 - i}\n" for i in range(symbols))
        (tmp_path / f"dict.{side}.txt").write_text(lines)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_is_known_to_a_test() -> None:
    assert len(COMMANDS) > 20
    assert not [command for command in COMMANDS if home(command) is None]
    for table in (STORY, ALONE, ELSEWHERE):
        assert not [key for key in table if not any(find(c, {key: ""}) for c in COMMANDS)]
    assert all((ROOT / path).exists() for path in ELSEWHERE.values())


def test_the_story_runs(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """From text to a model, and the same in Python."""
    for command in [command for command in COMMANDS if home(command) is STORY]:
        ask(command, STORY, capfd)
    (block,) = (block for block in BLOCKS if ".translate(" in block)
    exec(block, {})
    assert (folder / "runs" / "first" / "plot.png").exists()


@pytest.mark.parametrize("command", [c for c in COMMANDS if home(c) is ALONE])
def test_a_command_runs(command: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ask(command, ALONE, capfd)


def test_what_is_installed_is_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra in re.findall(r"'\.\[(\w+)\]'", README):
        assert extra in project["optional-dependencies"]
    assert project["scripts"]["lightconv"] == "lightconv.__main__:main"
    assert f"Python {project['requires-python'].removeprefix('>=')} or later" in README
    oldest = next(name for name in project["dependencies"] if name.startswith("torch"))
    assert f"every torch from {oldest.removeprefix('torch>=')} on" in README


# --- Python


def test_layers_and_a_stream_run() -> None:
    names: dict[str, Any] = {"x": torch.randn(2, 9, 512)}
    names["padding"] = torch.zeros(2, 9, dtype=torch.bool)
    exec(BLOCKS[0], names)
    assert names["y"].shape == (2, 9, 512)
    layers, packed, _ = BLOCKS[2].partition("layer(x, cu_seqlens")
    assert packed
    exec(layers, names)
    names |= {"x": torch.randn(1, 9, 512), "cu_seqlens": torch.tensor([0, 4, 9])}
    exec("layer(x, cu_seqlens=cu_seqlens)", names)
    names["layer"] = lightconv.DynamicConv(512, kernel=31, heads=8, causal=True)
    names["x_next"] = torch.randn(4, 3, 512)
    exec(BLOCKS[3], names)
    assert names["y"].shape == (4, 3, 512)


def test_the_expression_it_equals() -> None:
    """The second block: the operator and the slow expression beneath it."""
    lines = [line for line in BLOCKS[1].splitlines() if line and not line.startswith("#")]
    B, T, D, H, K = 2, 9, 8, 2, 5
    names: dict[str, object] = {"lightconv": lightconv, "F": F, "D": D, "H": H, "K": K, "left": 3}
    names |= {"x": torch.randn(B, T, D), "logits": torch.randn(B, T, H, K)}
    fast = eval(lines[0].split("#")[0], names)
    exec(lines[1], names)
    torch.testing.assert_close(fast, eval(lines[2], names))


def test_a_model_is_saved_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = (block for block in BLOCKS if ".save(" in block)
    exec(block, {})
    assert (tmp_path / "my-model" / "model.safetensors").exists()


def test_no_block_is_left_out() -> None:
    """Two of the layer, two of layers, one in the story, one of models."""
    assert len(BLOCKS) == 6
    assert "lightconv.explain(" in README
    assert "C++" in str(lightconv.explain("dynamicconv"))


def test_benchmark_sides_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `make bench` does before it times anything."""
    monkeypatch.syspath_prepend(ROOT)
    import_module("benchmarks.ops").verify()


def test_results_are_those_of_their_page() -> None:
    table = README.partition("### Results")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (?:Multi|IWSLT|Wiki).*?\| (.*) \|$", table, re.MULTILINE)
    page = (ROOT / "docs" / "results" / "README.md").read_text()
    figures = [figure for row in rows for figure in row.split(" | ") if figure != "-"]
    assert len(figures) == 8
    assert all(f"| {figure} |" in page for figure in figures)


def test_a_new_reader_finds_each_answer_on_one_screen() -> None:
    """Installing, running and limits, each in a section of its own, before the details."""
    sections = re.split(r"^## ", README, flags=re.MULTILINE)[1:]
    heads = [section.splitlines()[0] for section in sections]
    assert heads[:3] == ["Three commands", "Install", "Limits"]
    assert all(len(section.splitlines()) <= 30 for section in sections[:3])
    assert "`lightconv fit " in sections[0] and "`lightconv serve " in sections[0]


def test_the_first_screen() -> None:
    """What it computes, three lines of use, the measured table and the two commands come first."""
    screen = "\n".join(README.splitlines()[:60])
    for part in (BLOCKS[0], BLOCKS[1], "benchmarks.ops: end", "    make demo", "    make test"):
        assert part in screen
