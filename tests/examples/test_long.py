"""The task is what it says, the layers reach as far as it says, and the script runs."""

import subprocess
from collections.abc import Sequence
from types import ModuleType

import pytest
import torch


def test_every_position_asks_for_the_last_mark(example: ModuleType) -> None:
    tokens, target, ago = example.draw(3000, torch.Generator().manual_seed(3))
    last = when = -1
    for t, (token, wanted, distance) in enumerate(
        zip(tokens[0].tolist(), target[0].tolist(), ago[0].tolist(), strict=True)
    ):
        if token >= example.NOISE:
            last, when = token - example.NOISE, t
        assert (wanted, distance) == (last, t - when)
    beyond = (ago >= max(example.KERNELS)).float().mean().item()
    assert 0.5 < beyond < 0.7  # "three positions in five"


def test_reach(example: ModuleType) -> None:
    """A changed token changes the answers up to REACH later, and none after that."""
    torch.manual_seed(0)
    model = example.build("dynamicconv").double()
    tokens = torch.randint(example.NOISE, (1, 400))
    other = tokens.clone()
    other[0, 100] = (tokens[0, 100] + 1) % example.NOISE
    changed = (model(tokens) != model(other)).any(-1)[0].nonzero().flatten()
    assert changed.min() == 100
    assert changed.max() == 100 + example.REACH


def test_what_takes_too_long_is_not_run_again(
    example: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
        _, _, _, mixer, length = command
        seconds = int(length) / 100 if mixer == "attention" else 1.0
        return subprocess.CompletedProcess(command, 0, stdout=f"{seconds} 5e6\n")

    monkeypatch.setattr(subprocess, "run", run)
    example.print_costs([100, 2000, 4000])
    _, _, first, second, third, *_ = capsys.readouterr().out.splitlines()
    assert first.split() == ["100", *["1.00", "5"] * 3]
    assert second.split() == ["2,000", *["1.00", "5"] * 2, "20.00", "5"]
    assert third.split() == ["4,000", *["1.00", "5"] * 2, "not", "run"]


def test_it_runs(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    found = example.main(["--quick"])
    assert all(0 <= share <= 1 for share in found.values())
    printed = capsys.readouterr().out.splitlines()
    length, *costs = printed[2].split()
    assert length == "1,024"
    assert len(costs) == 6 and min(map(float, costs[::2])) > 0
    assert min(map(int, costs[1::2])) >= 0
    assert any(line.startswith("  step   10  loss ") for line in printed)


@pytest.mark.slow
def test_layers_hand_marks_on(example: ModuleType) -> None:
    model = example.build("dynamicconv")
    example.train(model, 150, 16_384)
    near, between, beyond = example.accuracy(model, 16_384).values()
    assert near > 0.95
    assert between > 0.9
    assert beyond < 0.4  # chance: 0.25
