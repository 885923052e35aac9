"""The task is what it says, and the script runs."""

from types import ModuleType

import pytest
import torch


def test_answers_stand_beside_their_keys(example: ModuleType) -> None:
    passage, questions, answers = example.draw(torch.Generator().manual_seed(3), batch=20)
    for row, asked, wanted in zip(
        *map(torch.Tensor.tolist, (passage, questions, answers)), strict=True
    ):
        pairs = dict(zip(row[::2], row[1::2], strict=True))
        assert len(pairs) == len(set(pairs.values())) == example.PAIRS
        assert not set(pairs) & set(pairs.values())
        assert len(set(asked)) == example.QUESTIONS
        assert [pairs[key] for key in asked] == wanted


def test_questions_are_answered_in_their_order(example: ModuleType) -> None:
    """Scores for each, which the questions after it do not change."""
    passage, questions, _ = example.draw(torch.Generator().manual_seed(3), batch=2)
    other = questions.clone()
    other[:, 3:] = example.FIRST
    for name, build in example.MODELS.items():
        torch.manual_seed(0)
        model = build()
        want, got = model(passage, questions), model(passage, other)
        assert want.shape == (2, example.QUESTIONS, example.VOCAB)
        torch.testing.assert_close(got[:, :3], want[:, :3], msg=name)
        assert not torch.allclose(got[:, 3:], want[:, 3:])


def test_it_runs(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    found = example.main(["--steps", "5", "--seeds", "1"])
    assert found.keys() == example.MODELS.keys()
    printed = capsys.readouterr().out
    for name, shares in found.items():
        assert 0 <= min(shares) <= max(shares) <= 1
        assert f"\n{name} " in printed


@pytest.mark.slow
def test_a_kernel_and_attention_find_the_answers(example: ModuleType) -> None:
    found = example.main(["--seeds", "2"])
    assert min(found["translator: dynamicconv"]) > 0.95
    assert min(found["reader: dynamicconv, attention"]) > 0.95
    assert max(found["reader: dynamicconv"]) < 0.4
