"""The example learns its task, from op to search."""

from types import ModuleType

import pytest

from lightconv.mixers import MIXERS


def test_every_mixer_can_be_chosen(example: ModuleType) -> None:
    assert set(example.MIXERS) == set(MIXERS)


def test_nothing_held_out_was_trained_on(example: ModuleType) -> None:
    trained = {
        tuple(row)
        for seed in range(1, 401)
        for row in example.make_batch(32, seed).inputs[0].tolist()
    }
    assert not trained & {tuple(row) for row in example.make_batch(200, 0).inputs[0].tolist()}


def test_dynamicconv_and_conv_learn_to_reverse(
    example: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert example.main(["--steps", "220"]) >= 0.9
    printed = capsys.readouterr().out
    assert "step  200  loss" in printed
    assert "of held-out sequences reversed exactly" in printed
    assert example.main(["--steps", "220", "--mixer", "conv"]) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("mixer", sorted(MIXERS))
def test_every_mixer_learns_to_reverse(example: ModuleType, mixer: str) -> None:
    assert example.main(["--mixer", mixer]) >= 0.9
