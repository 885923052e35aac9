"""The loss scale: its rule, and what an overflow does and does not change."""

import math
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from lightconv.models import Seq2Seq
from lightconv.train import Group, Trainer
from lightconv.train.optim import FIRST_SCALE, GROW_EVERY, LARGEST_SCALE, LossScale, autocast
from tests.train.examples import DATA, model_config, train_config

CPU = torch.device("cpu")


class Overflow(Group):
    """The gradient has an infinity at these updates, as fp16 would give."""

    def __init__(self, *steps: int) -> None:
        self.steps = steps
        self.seen = 0

    def norm(self, model: nn.Module) -> Tensor:
        self.seen += 1
        if self.seen in self.steps:
            next(model.parameters()).grad[0, 0] = math.inf
        return super().norm(model)


def build(**changes: object) -> Trainer:
    torch.manual_seed(0)
    return Trainer(Seq2Seq(model_config()), train_config(**changes))


def test_only_fp16_has_a_scale() -> None:
    for precision in ("fp32", "bf16"):
        scale = LossScale(precision)
        for finite in (False, True):
            scale.adjust(finite=finite)
        assert (scale.value, scale.good) == (1.0, 0)
    assert LossScale("fp16").value == FIRST_SCALE


def test_the_scale_falls_at_once_and_rises_slowly() -> None:
    scale = LossScale("fp16")
    for _ in range(GROW_EVERY - 1):
        scale.adjust(finite=True)
    assert scale.value == FIRST_SCALE
    scale.adjust(finite=True)
    assert (scale.value, scale.good) == (2 * FIRST_SCALE, 0)
    scale.adjust(finite=True)
    scale.adjust(finite=False)
    assert (scale.value, scale.good) == (FIRST_SCALE, 0)
    scale.value, scale.good = LARGEST_SCALE, GROW_EVERY - 1
    scale.adjust(finite=True)
    assert scale.value == LARGEST_SCALE


def test_an_overflow_changes_the_scale_and_nothing_else() -> None:
    trainer = build(precision="fp16", ema=0.9)
    trainer.group = Overflow(2, 3)
    trainer.update([DATA.batch(0)])
    before = [p.clone() for p in (*trainer.model.parameters(), *trainer.ema.tensors.values())]
    moments = trainer.optimizer.state[next(trainer.model.parameters())]["exp_avg"].clone()
    record = trainer.update([DATA.batch(1)])
    assert record.skipped and math.isinf(record.norm)
    assert trainer.scale.value == FIRST_SCALE / 2
    after = [*trainer.model.parameters(), *trainer.ema.tensors.values()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert torch.equal(
        moments, trainer.optimizer.state[next(trainer.model.parameters())]["exp_avg"]
    )
    assert trainer.update([DATA.batch(2)]).skipped
    assert not trainer.update([DATA.batch(3)]).skipped
    assert trainer.scale.value == FIRST_SCALE / 4
    assert (trainer.guard.skipped, trainer.guard.in_a_row, trainer.step) == (2, 0, 4)


def test_the_scale_is_not_in_the_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, where a power of two rounds nothing away, both are the same."""
    plain, scaled = build(), build(precision="fp16")
    monkeypatch.setattr("lightconv.train.trainer.autocast", lambda *_: nullcontext())
    for index in range(3):
        a, b = plain.update([DATA.batch(index)]), scaled.update([DATA.batch(index)])
        assert (a.loss, a.nll, a.norm) == (b.loss, b.nll, b.norm)
    for a, b in zip(plain.model.parameters(), scaled.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_fp16_learns_on_a_processor_too() -> None:
    trainer = build(precision="fp16", max_steps=10)
    records = trainer.fit([DATA.batch(i) for i in range(20)])
    assert records[-1].loss < records[0].loss
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    "precision, dtype", [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_products_have_the_precision(precision: str, dtype: torch.dtype) -> None:
    with autocast(precision, CPU):  # type: ignore[arg-type]
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype
