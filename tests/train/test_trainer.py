"""The loop: its rate, its gradient, what it calls and what it remembers."""

import math
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import nn

import lightconv.train
from lightconv.data import PAD, Batch, Synthetic
from lightconv.models import DynamicConvConfig, Seq2Seq, Seq2SeqConfig
from lightconv.train import Record, TrainConfig, Trainer, inverse_sqrt, label_smoothed

DATA = Synthetic(task="copy", symbols=6, min_len=2, max_len=5, sentences=8)


def build(dtype: torch.dtype = torch.float64) -> Seq2Seq:
    torch.manual_seed(0)
    layers = (DynamicConvConfig(kernel=3, heads=2),)
    config = Seq2SeqConfig(
        dim=16,
        ffn_dim=32,
        source_heads=2,
        encoder=layers,
        decoder=layers,
        source_vocab=DATA.vocab,
        target_vocab=DATA.vocab,
    )
    return Seq2Seq(config).to(dtype)


def test_inverse_sqrt() -> None:
    def rate(step: int) -> float:
        return inverse_sqrt(step, peak=5e-4, warmup=4000)

    assert rate(0) == 1e-7
    assert rate(2000) == pytest.approx((1e-7 + 5e-4) / 2)
    assert rate(4000) == pytest.approx(5e-4)
    assert rate(16000) == pytest.approx(2.5e-4)
    assert rate(3999) < rate(4000) > rate(4001)


def test_an_update_uses_the_rate_of_the_updates_before_it() -> None:
    trainer = Trainer(build(), TrainConfig(steps=6, lr=1e-3, warmup=3))
    for done, record in enumerate(trainer.fit(DATA)):
        assert record.lr == inverse_sqrt(done, peak=1e-3, warmup=3)
    assert trainer.optimizer.param_groups[0]["lr"] == record.lr


def cut(batch: Batch, rows: slice) -> Batch:
    """Those sentences, without the columns that are padding to all of them."""
    parts = [part[rows] for part in batch]
    return Batch(*(part[:, : int((part != PAD).sum(1).max())] for part in parts))


def test_accumulated_micro_batches_equal_one_batch() -> None:
    config = TrainConfig(steps=3, lr=1e-2, warmup=1)
    whole, parts = Trainer(build(), config), Trainer(build(), config)
    for batch in islice(DATA, 3):
        one = whole.update([batch])
        many = parts.update(
            [cut(batch, slice(1)), cut(batch, slice(1, 3)), cut(batch, slice(3, 8))]
        )
        assert many.tokens == one.tokens == int((batch.target != PAD).sum())
        assert many.loss == pytest.approx(one.loss, abs=1e-12)
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


def test_the_gradient_is_that_of_the_loss_per_token() -> None:
    trainer = Trainer(build(), TrainConfig(steps=1))
    batch = DATA.batch(0)
    model = build()
    total, count = label_smoothed(model(batch.source, batch.target_in), batch.target)
    (total / count).backward()
    record = trainer.update([batch])
    assert record.loss == pytest.approx((total / count).item())
    for a, b in zip(trainer.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_updates_are_adam_with_decoupled_decay() -> None:
    model = build()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    config = TrainConfig(steps=1, lr=1e-3, warmup=1, warmup_from=1e-3, weight_decay=0.1)
    Trainer(model, config).update([DATA.batch(0)])
    for name, parameter in model.named_parameters():
        # The first Adam step has the size of the rate, whatever the size of the gradient.
        gradient = parameter.grad
        assert gradient is not None
        step = gradient / (gradient.abs() + 1e-8)
        expected = before[name] * (1 - 1e-3 * 0.1) - 1e-3 * step
        torch.testing.assert_close(parameter, expected, rtol=0, atol=1e-9)


def test_fit_validates_when_due_and_in_evaluation_mode() -> None:
    modes: list[bool] = []
    seen: list[Record] = []

    def validate(model: nn.Module) -> float:
        modes.append(model.training)
        return float(len(modes))

    trainer = Trainer(build(), TrainConfig(steps=7, validate_every=3, accumulate=2))
    history = trainer.fit(DATA, validate=validate, report=seen.append)
    assert [record.step for record in history] == [1, 2, 3, 4, 5, 6, 7]
    assert [record.validation for record in history] == [None, None, 1.0, None, None, 2.0, 3.0]
    assert modes == [False] * 3
    assert seen == history
    expected = sum(int((DATA.batch(i).target != PAD).sum()) for i in (0, 1))
    assert history[0].tokens == expected


def test_fit_goes_on_where_it_was_and_ends_with_the_data() -> None:
    trainer = Trainer(build(), TrainConfig(steps=5))
    first = trainer.fit([DATA.batch(0), DATA.batch(1)])
    second = trainer.fit(DATA)
    assert [record.step for record in first + second] == [1, 2, 3, 4, 5]


def test_two_runs_are_identical() -> None:
    config = TrainConfig(steps=5, lr=1e-3, warmup=2)
    runs = [Trainer(build(torch.float32), config).fit(DATA) for _ in range(2)]
    assert runs[0] == runs[1]


def test_training_lowers_the_loss() -> None:
    trainer = Trainer(build(torch.float32), TrainConfig(steps=60, lr=5e-3, warmup=20))
    history = trainer.fit(DATA)
    assert history[0].loss > 0.9 * math.log(DATA.vocab)
    assert history[-1].loss < 0.6 * history[0].loss


def test_an_update_without_tokens_is_refused() -> None:
    trainer = Trainer(build(), TrainConfig(steps=1))
    before = [parameter.clone() for parameter in trainer.model.parameters()]
    with pytest.raises(ValueError, match="at least one target token"):
        trainer.update([])
    for a, b in zip(before, trainer.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("changes", [{"steps": 0}, {"accumulate": 0}, {"label_smoothing": 1.0}])
def test_nonsense_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        TrainConfig(**{"steps": 1, **changes})


def test_training_never_imports_decoding() -> None:
    folder = Path(lightconv.train.__file__).parent
    assert not [path for path in folder.glob("*.py") if "lightconv.decode" in path.read_text()]
