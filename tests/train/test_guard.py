"""Gradients that are not finite are skipped, then explained; batches that do not fit are cut."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightconv.data import PAD, Batch
from lightconv.models import DynamicConvConfig, Seq2Seq
from lightconv.train import DivergenceError, Trainer
from lightconv.train.optim import MOST_IN_A_ROW, Guard, halve, is_out_of_memory, positions
from tests.harness.examples import DATA, model_config, train_config
from tests.train.formula import fit


def build(**changes: Any) -> Trainer:
    torch.manual_seed(0)
    return Trainer(Seq2Seq(model_config()), train_config(**changes))


def nearly_given_up() -> Trainer:
    """One more gradient that is not finite ends the run."""
    trainer = build()
    trainer.guard.in_a_row = MOST_IN_A_ROW - 1
    return trainer


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
    trainer = nearly_given_up()
    place = iter([False, True] * 2)
    spoil(trainer.model, "encoder.1.ffn.hidden", math.inf, lambda: next(place))
    with pytest.raises(
        DivergenceError, match=r"from encoder\.1\.ffn\.hidden \(batch 2 of 2, examples 300, "
    ):
        trainer.update([numbered(1), numbered(3)])


def test_a_number_that_is_lost_on_the_way_back_is_found_too() -> None:
    trainer = nearly_given_up()

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
    trainer = nearly_given_up()
    trainer.group.norm = lambda model: torch.tensor(math.inf)  # type: ignore[method-assign]
    with pytest.raises(DivergenceError, match=r"though that of each batch alone is$"):
        trainer.update([DATA.batch(0)])


def test_parameters_that_are_not_finite_end_the_run() -> None:
    trainer = build()
    with torch.no_grad():
        trainer.model.get_parameter("encoder.0.ffn.hidden.weight")[0, 0] = math.nan
    with pytest.raises(DivergenceError, match=r"step 10: .* from encoder\.0\.ffn\.hidden"):
        fit(trainer, map(DATA.batch, range(20)))


def test_only_those_in_a_row_count() -> None:
    guard = Guard()
    for _ in range(3):
        assert not any(guard.count(finite=False) for _ in range(MOST_IN_A_ROW - 1))
        assert not guard.count(finite=True)
    assert guard.skipped == 3 * (MOST_IN_A_ROW - 1)
    assert [guard.count(finite=False) for _ in range(10)] == [False] * 9 + [True]


# --- Memory

STILL = {
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "encoder": (DynamicConvConfig(kernel=3, heads=2),),
    "decoder": (DynamicConvConfig(kernel=3, heads=2),),
}


class SmallDevice:
    """A model's features on a device with room for so many positions."""

    def __init__(self, trainer: Trainer, room: int) -> None:
        self.real = trainer.model.features
        self.room = room
        self.asked: list[int] = []
        trainer.features = self

    def __call__(self, *inputs: Tensor) -> Tensor:
        size = max(part.numel() for part in inputs)
        self.asked.append(size)
        if size > self.room:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't ...")
        return self.real(*inputs)


def still(**changes: Any) -> Trainer:
    torch.manual_seed(0)
    return Trainer(Seq2Seq(model_config(**{**STILL, **changes})).double(), train_config())


def test_what_torch_says_on_a_processor() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert not isinstance(caught.value, torch.OutOfMemoryError)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("size mismatch"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_halves_have_all_rows_and_no_empty_columns() -> None:
    batch = DATA.batch(0)._replace(rows=torch.arange(16))
    first, second = halve(batch)
    assert first.rows.tolist() + second.rows.tolist() == list(range(16))
    for whole, *parts in zip((*batch.inputs, batch.target), *_parts(first, second), strict=True):
        rows = [[t for t in row if t != PAD] for part in parts for row in part.tolist()]
        assert rows == [[t for t in row if t != PAD] for row in whole.tolist()]
        assert all(bool((part[:, -1] != PAD).any()) for part in parts)
    assert first.tokens + second.tokens == batch.tokens
    assert positions(batch) == max(batch.inputs[0].numel(), batch.target.numel())


def _parts(*halves: Batch) -> list[tuple[Tensor, ...]]:
    return [(*half.inputs, half.target) for half in halves]


@pytest.mark.parametrize("share", [2, 3, 5, 9])
def test_the_update_is_the_same_in_parts(share: int) -> None:
    """R9."""
    whole, cut = still(), still()
    batches = [DATA.batch(0), DATA.batch(1)]
    small = SmallDevice(cut, room=positions(batches[0]) // share)
    for _ in range(3):
        a, b = whole.update(batches), cut.update(batches)
        assert (b.tokens, b.skipped) == (a.tokens, False)
        assert b.loss == pytest.approx(a.loss, rel=1e-12)
        assert b.norm == pytest.approx(a.norm, rel=1e-9)
    for x, y in zip(whole.model.parameters(), cut.model.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-9)
    # What does not fit is found out once for each size, and then known.
    refused = [size for size in small.asked if size > small.room]
    assert len(refused) == len(set(refused)) > 0
    assert refused == sorted(refused, reverse=True)
    assert cut.values()["largest"] == refused[-1] - 1


def test_a_backward_pass_that_fails_halfway_leaves_nothing() -> None:
    whole, cut = still(), still()
    batch = DATA.batch(0)
    size = positions(batch)
    # This parameter's gradient comes last of all; some have been added by then.
    last = cut.model.get_parameter("encoder.0.mixer.in_proj.weight")
    current = [0]
    real = cut.model.features
    cut.features = lambda *inputs: current.__setitem__(0, inputs[0].numel()) or real(*inputs)

    def fail(gradient: Tensor) -> Tensor:
        if current[0] >= size:
            assert any(p.grad is not None for p in cut.model.parameters())
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return gradient

    last.register_hook(fail)
    a, b = whole.update([batch]), cut.update([batch])
    assert b.norm == pytest.approx(a.norm, rel=1e-9)
    for x, y in zip(whole.model.parameters(), cut.model.parameters(), strict=True):
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-9, atol=1e-12)


def test_halves_have_randomness_of_their_own_and_it_is_repeated() -> None:
    noise = {"dropout": 0.3}
    losses = []
    for _ in range(2):
        trainer = still(**noise)
        trainer.largest = positions(DATA.batch(0)) - 1
        losses.append(trainer.update([DATA.batch(0)]).loss)
    assert losses[0] == losses[1]
    half, _ = halve(DATA.batch(0))
    trainer = still(**noise)
    trainer.largest = 1
    rows = [Batch(tuple(p[:1] for p in half.inputs), half.target[:1])] * 2
    both = Batch(
        tuple(torch.cat(p) for p in zip(*(row.inputs for row in rows), strict=True)),
        torch.cat([row.target for row in rows]),
    )
    seen: list[float] = []
    real = trainer._run
    trainer._run = lambda part: seen.append(real(part).loss.item()) or real(part)  # type: ignore
    trainer.update([both])
    assert len(seen) == 2 and seen[0] != seen[1]


def test_one_row_that_does_not_fit_is_an_error() -> None:
    trainer = still()
    before = [p.clone() for p in trainer.model.parameters()]
    SmallDevice(trainer, room=1)
    with pytest.raises(
        RuntimeError, match=r"^out of memory at step 1 with one example of \d+ positions alone"
    ):
        trainer.update([DATA.batch(0)])
    assert all(map(torch.equal, before, trainer.model.parameters()))


def test_other_errors_are_not_hidden() -> None:
    trainer = still()

    def fail(*inputs: Tensor) -> Tensor:
        raise RuntimeError("something else")

    trainer.features = fail
    with pytest.raises(RuntimeError, match=r"^something else$"):
        trainer.update([DATA.batch(0)])
