"""The task is what it says, nothing sees an answer, and the script runs."""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch


@pytest.fixture(scope="module")
def example(load_example: Callable[[str], ModuleType]) -> ModuleType:
    return load_example("question")


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


@pytest.mark.parametrize("mixer", ["attention", "dynamicconv"])
@pytest.mark.parametrize("kind", ["reader", "translator"])
def test_no_answer_is_seen_before_it_is_given(example: ModuleType, kind: str, mixer: str) -> None:
    torch.manual_seed(0)
    model = example.MODELS[kind](example.MIXERS[mixer])
    passage, questions, answers = example.draw(torch.Generator().manual_seed(3), batch=2)
    other = answers.clone()
    other[:, 2] = example.FIRST
    want, got = model(passage, questions, answers), model(passage, questions, other)
    assert want.shape == (2, example.QUESTIONS, example.VOCAB)
    torch.testing.assert_close(got[:, :3], want[:, :3])


def test_it_runs(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    found = example.main(["--steps", "5"])
    assert len(found) == 4
    printed = capsys.readouterr().out
    for name, share in found.items():
        assert 0 <= share <= 1
        assert f"\n{name} " in printed


@pytest.mark.slow
def test_source_attention_finds_the_answers(example: ModuleType) -> None:
    found = example.main([])
    assert found["translator, dynamicconv"] > 0.9
    assert found["reader, dynamicconv"] < 0.5
