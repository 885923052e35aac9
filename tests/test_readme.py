"""README.md runs: its Python blocks here, its commands as far as a test may."""

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import lightconv
from lightconv import cli

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_layers_block_runs() -> None:
    names: dict[str, object] = {"x": torch.randn(2, 9, 512)}
    names["padding"] = torch.zeros(2, 9, dtype=torch.bool)
    exec(BLOCKS[0], names)
    assert names["y"].shape == (2, 9, 512)  # type: ignore[attr-defined]
    layers = BLOCKS[2].split("layer(x, cu_seqlens")[0]
    exec(layers, names)
    names |= {"x": torch.randn(1, 9, 512), "cu_seqlens": torch.tensor([0, 4, 9])}
    exec("layer(x, cu_seqlens=cu_seqlens)", names)


def test_stream_block_runs() -> None:
    layer = lightconv.DynamicConv(512, kernel=31, heads=8, causal=True)
    names: dict[str, object] = {"layer": layer, "x_next": torch.randn(4, 3, 512)}
    exec(BLOCKS[3], names)
    assert names["y"].shape == (4, 3, 512)  # type: ignore[attr-defined]


def test_the_expression_it_equals() -> None:
    """The second block: the operator and the slow expression beneath it."""
    lines = [line for line in BLOCKS[1].splitlines() if line and not line.startswith("#")]
    B, T, D, H, K, left = 2, 9, 8, 2, 5, 3
    names: dict[str, object] = {
        "lightconv": lightconv,
        "F": F,
        "D": D,
        "H": H,
        "K": K,
        "left": left,
    }
    names |= {"x": torch.randn(B, T, D), "logits": torch.randn(B, T, H, K)}
    fast = eval(lines[0].split("#")[0], names)
    exec(lines[1], names)
    torch.testing.assert_close(fast, eval(lines[2], names))


@pytest.mark.parametrize("target", ["demo", "test"])
def test_make_targets_exist(target: str) -> None:
    assert f"make {target}" in README
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0


def test_doctor_is_what_the_readme_calls() -> None:
    assert "lightconv doctor" in README
    done = subprocess.run(
        [sys.executable, "-m", "lightconv", "doctor"], capture_output=True, check=False
    )
    assert done.returncode == 0


def test_model_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"lightconv": lightconv}
    exec(BLOCKS[4], names)
    assert (tmp_path / "my-model" / "model.safetensors").exists()


COMMANDS = re.findall(r"^    (lightconv .*?)(?:  +#.*)?$", README, re.MULTILINE)


# They need files, or minutes: their own tests run them, here their arguments are read.
PARSED = (
    *("prepare", "train", "plot", "average", "import"),
    *("translate", "score", "interactive", "tune", "evaluate"),
)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.split()[1] in PARSED])
def test_commands_are_understood(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = cli.Parser.parse

    def parse(self: cli.Parser, argv: Sequence[str]) -> argparse.Namespace:
        real(self, argv)
        raise SystemExit(0)

    monkeypatch.setattr(cli.Parser, "parse", parse)
    assert cli.main(command.split()[1:]) == 0


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.split()[1] not in PARSED])
def test_commands_run(command: str) -> None:
    _, *arguments = command.split()
    done = subprocess.run(
        [sys.executable, "-m", "lightconv", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_benchmark_sides_agree() -> None:
    """What `make demo` and `make bench` do before they time anything."""
    sys.path.insert(0, str(ROOT))
    try:
        from benchmarks.ops import verify
    finally:
        sys.path.remove(str(ROOT))
    verify()


def test_links_lead_somewhere() -> None:
    for name in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in name:
            assert (ROOT / name).exists(), name
