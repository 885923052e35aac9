"""Attention leaves somebody's model in three lines, and the model still learns."""

import inspect
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from lightconv import DynamicConv


def test_the_swap_is_three_lines(example: ModuleType) -> None:
    lines = [line.strip() for line in inspect.getsource(example.swap).splitlines()]
    assert [line.split()[0] for line in lines if line][2:] == [
        *("from", "for", "block.attention", "return")
    ]


def test_nothing_but_attention_is_replaced(example: ModuleType) -> None:
    model = example.CharacterModel(16)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    example.swap(model)
    for block in model.blocks:
        assert isinstance(block.attention, DynamicConv)
    kept = {name: value for name, value in model.state_dict().items() if "attention" not in name}
    assert kept.keys() == {name for name in before if "attention" not in name}
    assert all(torch.equal(value, before[name]) for name, value in kept.items())


@pytest.mark.parametrize("swapped", [False, True], ids=["attention", "dynamicconv"])
def test_no_position_sees_the_future(example: ModuleType, swapped: bool) -> None:
    torch.manual_seed(0)
    model = example.CharacterModel(12)
    if swapped:
        example.swap(model)
    text = torch.randint(128, (1, 12))
    other = text.clone()
    other[:, 7] = (text[:, 7] + 1) % 128
    same, changed = model(text), model(other)
    torch.testing.assert_close(same[:, :7], changed[:, :7])
    assert not torch.allclose(same[:, 7:], changed[:, 7:])


def test_held_out_modules_are_held_out(example: ModuleType) -> None:
    train, held_out = (bytes(text.tolist()) for text in example.read_library())
    source = Path(sys.modules["textwrap"].__file__ or "").read_bytes()
    assert source in held_out
    assert source not in train
    assert len(train) > 10 * len(held_out)


def test_both_learn(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    losses = example.main(["--steps", "50", "--length", "32"])
    assert set(losses) == {"attention", "dynamicconv"}
    assert max(losses.values()) < 0.75 * math.log(128)
    printed = capsys.readouterr().out
    D, H, K, layers, T = 128, 4, 31, 4, 32
    shared = 128 * D + T * D + layers * (8 * D * D + 5 * D + 4 * D) + 2 * D + 128 * D + 128
    assert f"{shared + layers * (4 * D * D + 4 * D):,}" in printed
    assert f"{shared + layers * (2 * D * D + 2 * D + H * K * D):,}" in printed
