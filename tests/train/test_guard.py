"""A gradient that is not finite: left out, counted, and in the end explained."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightconv.data import Batch
from lightconv.models import Seq2Seq
from lightconv.train import DivergenceError, Trainer
from lightconv.train.guard import MOST_IN_A_ROW, Guard
from tests.harness.examples import DATA, model_config, train_config


def build(**changes: Any) -> Trainer:
    torch.manual_seed(0)
    return Trainer(Seq2Seq(model_config()), train_config(**changes))


def numbered(index: int) -> Batch:
    """A batch whose examples have numbers."""
    batch = DATA.batch(index)
    return batch._replace(rows=torch.arange(len(batch.target)) + 100 * index)


def spoil(model: nn.Module, name: str, value: float, when: Callable[[], bool]) -> None:
    """What a module returns has one such number in it."""

    def hook(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        if not when():
            return output
        wrong = torch.zeros_like(output)
        wrong[0, 0, 0] = value
        return output + wrong

    model.get_submodule(name).register_forward_hook(hook)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "name", [f"{side}.{i}.ffn" for side in ("encoder", "decoder") for i in (0, 1)]
)
def test_it_never_reaches_the_parameters(name: str, value: float) -> None:
    """R8."""
    trainer = build()
    calls = iter([False, True, False])
    spoil(trainer.model, name, value, lambda: next(calls))
    assert not trainer.update([DATA.batch(0)]).skipped
    before = [p.clone() for p in trainer.model.parameters()]
    record = trainer.update([DATA.batch(1)])
    assert record.skipped and not math.isfinite(record.norm)
    assert all(map(torch.equal, before, trainer.model.parameters()))
    assert not trainer.update([DATA.batch(1)]).skipped
    assert not any(map(torch.equal, before, trainer.model.parameters()))
    assert all(bool(p.isfinite().all()) for p in trainer.model.parameters())
    assert (trainer.guard.skipped, trainer.guard.in_a_row) == (1, 0)


def test_ten_in_a_row_end_the_run_and_say_where() -> None:
    trainer = build()
    bad = numbered(3)
    spoil(trainer.model, "decoder.0.mixer", math.nan, lambda: trainer.step >= 2)
    for _ in range(2 + MOST_IN_A_ROW - 1):
        trainer.update([numbered(1), bad])
    assert trainer.guard.in_a_row == MOST_IN_A_ROW - 1
    with pytest.raises(DivergenceError) as caught:
        trainer.update([numbered(1), bad])
    message = str(caught.value)
    assert re.match(rf"diverged at step {2 + MOST_IN_A_ROW}: 10 gradients in a row", message)
    assert "from decoder.0.mixer (batch 1 of 2, examples 100, 101, 102, " in message
    assert message.count("\n") == 0


def test_the_batch_is_the_one_that_did_it() -> None:
    trainer = build()
    trainer.guard.in_a_row = MOST_IN_A_ROW - 1
    place = iter([False, True] * 2)
    spoil(trainer.model, "encoder.1.ffn.hidden", math.inf, lambda: next(place))
    with pytest.raises(
        DivergenceError, match=r"from encoder\.1\.ffn\.hidden \(batch 2 of 2, examples 300, "
    ):
        trainer.update([numbered(1), numbered(3)])


def test_a_number_that_is_lost_on_the_way_back_is_found_too() -> None:
    trainer = build()
    trainer.guard.in_a_row = MOST_IN_A_ROW - 1

    # Its value is right; its gradient is not.
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * math.inf

    layer = trainer.model.get_submodule("decoder.0.ffn.output")
    layer.register_forward_hook(lambda module, inputs, output: Wrong.apply(output))
    with pytest.raises(DivergenceError, match=r"from decoder\.0\.ffn\.output \(batch 1 of 1\)"):
        trainer.update([DATA.batch(0)])


def test_a_sum_may_overflow_where_no_part_does() -> None:
    trainer = build()
    trainer.guard.in_a_row = MOST_IN_A_ROW - 1
    trainer.group.norm = lambda model: torch.tensor(math.inf)  # type: ignore[method-assign]
    with pytest.raises(DivergenceError, match=r"though that of each batch alone is$"):
        trainer.update([DATA.batch(0)])


def test_parameters_that_are_not_finite_end_the_run() -> None:
    trainer = build()
    with torch.no_grad():
        trainer.model.get_parameter("encoder.0.ffn.hidden.weight")[0, 0] = math.nan
    with pytest.raises(DivergenceError, match=r"step 10: .* from encoder\.0\.ffn\.hidden"):
        trainer.fit([DATA.batch(i) for i in range(20)])


def test_only_those_in_a_row_count() -> None:
    guard = Guard()
    for _ in range(3):
        assert not any(guard.count(finite=False) for _ in range(MOST_IN_A_ROW - 1))
        assert not guard.count(finite=True)
    assert guard.skipped == 3 * (MOST_IN_A_ROW - 1)
    assert [guard.count(finite=False) for _ in range(10)] == [False] * 9 + [True]
