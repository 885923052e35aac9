"""One update: its rate, its gradient, its randomness, and its ranks."""

import math
from copy import deepcopy
from itertools import islice

import pytest
import torch
from torch import nn

from lightconv.data import PAD, Batch, Synthetic
from lightconv.models import DynamicConvConfig, Seq2Seq, Seq2SeqConfig
from lightconv.train import (
    CosineConfig,
    Group,
    InverseSqrtConfig,
    TrainConfig,
    Trainer,
)
from tests.harness.examples import DATA as EXAMPLES
from tests.harness.examples import model_config, train_config
from tests.train.formula import fit, smoothed

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


def configure(
    steps: int, *, peak: float = 5e-4, warmup: int = 4000, **changes: object
) -> TrainConfig:
    """By default every batch is an update, with a smoothed loss."""
    fields = {
        "max_steps": steps,
        "tokens_per_update": 1,
        "schedule": InverseSqrtConfig(peak=peak, warmup=warmup),
        "label_smoothing": 0.1,
    }
    return TrainConfig(**{**fields, **changes})


def test_an_update_uses_the_rate_of_the_updates_before_it() -> None:
    schedule = CosineConfig(peak=1e-3, warmup=2, period=2, start=0.0, floor=0.0)
    trainer = Trainer(build(), configure(6, schedule=schedule))
    assert trainer.optimizer.param_groups[0]["lr"] == 0.0
    rates = [record.lr for record in fit(trainer, DATA)]
    assert rates == pytest.approx([0.0, 5e-4, 1e-3, 5e-4, 0.0, 0.0])
    assert trainer.optimizer.param_groups[0]["lr"] == rates[-1]


def count(batch: Batch) -> int:
    return int((batch.target != PAD).sum())


def cut(batch: Batch, rows: slice) -> Batch:
    """Those sentences, without the columns that are padding to all of them."""
    parts = [part[rows] for part in (*batch.inputs, batch.target)]
    *inputs, target = (part[:, : int((part != PAD).sum(1).max())] for part in parts)
    return Batch(tuple(inputs), target)


def test_accumulated_micro_batches_equal_one_batch() -> None:
    config = configure(3, peak=1e-2, warmup=1)
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
    trainer = Trainer(build(), configure(1))
    batch = DATA.batch(0)
    model = build()
    total, count = smoothed(model(*batch.inputs), batch.target)
    (total / count).backward()
    record = trainer.update([batch])
    assert record.loss == pytest.approx((total / count).item())
    for a, b in zip(trainer.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("limit", [0.01, 100.0, 0.0])
def test_the_gradient_is_cut_to_a_norm(limit: float) -> None:
    free, cut_off = Trainer(build(), configure(1)), Trainer(build(), configure(1, clip_norm=limit))
    for trainer in (free, cut_off):
        trainer.update([DATA.batch(0)])
    norm = math.sqrt(sum(float((p.grad**2).sum()) for p in free.model.parameters()))
    assert norm > 0.01
    share = limit / norm if 0.0 < limit < norm else 1.0
    for a, b in zip(free.model.parameters(), cut_off.model.parameters(), strict=True):
        torch.testing.assert_close(a.grad * share, b.grad, rtol=1e-4, atol=1e-12)


def test_an_update_without_tokens_is_refused() -> None:
    trainer = Trainer(build(), configure(1))
    before = [parameter.clone() for parameter in trainer.model.parameters()]
    with pytest.raises(ValueError, match="at least one target token"):
        trainer.update([])
    for a, b in zip(before, trainer.model.parameters(), strict=True):
        assert torch.equal(a, b)


# --- Randomness


def noisy(**changes: object) -> Trainer:
    """A model with every kind of dropout."""
    torch.manual_seed(3)
    return Trainer(Seq2Seq(model_config(**changes)), train_config())


def same(a: Trainer, b: Trainer) -> bool:
    pairs = zip(a.model.parameters(), b.model.parameters(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


def test_randomness_is_that_of_the_step_and_not_of_what_was_drawn_before() -> None:
    one, two, late = noisy(), noisy(), noisy()
    batches = [EXAMPLES.batch(0), EXAMPLES.batch(1)]
    torch.manual_seed(1)
    first = one.update(batches)
    torch.manual_seed(2)
    torch.rand(5)
    assert two.update(batches) == first
    assert same(one, two)
    late.step = 1
    assert late.update(batches).loss != first.loss


def test_every_batch_of_an_update_has_randomness_of_its_own() -> None:
    trainer = noisy()
    batch = EXAMPLES.batch(0)
    once, twice = trainer.update([batch]), noisy().update([batch, batch])
    assert once.loss != twice.loss
    assert twice.tokens == 2 * once.tokens


def test_the_seed_counts() -> None:
    losses = set()
    for seed in (1, 2):
        trainer = noisy()
        trainer.config = train_config(seed=seed)
        losses.add(trainer.update([EXAMPLES.batch(0)]).loss)
    assert len(losses) == 2


# --- Several ranks


class Rank(Group):
    """One of two ranks that are run one after the other: `other` has been before."""

    size = 2

    def __init__(self, rank: int, other: "Rank | None" = None) -> None:
        self.rank = rank
        self.other = other
        self.sums = torch.zeros(0)
        self.gradients: list[torch.Tensor] = []

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        self.sums = values.clone()
        return values if self.other is None else values + self.other.sums

    def sum_gradients(self, model: nn.Module) -> None:
        self.gradients = [p.grad.clone() for p in model.parameters()]
        if self.other is not None:
            for parameter, gradient in zip(model.parameters(), self.other.gradients, strict=True):
                parameter.grad += gradient


@pytest.mark.parametrize("batches, difference", [(2, 0.0), (4, 1e-9)])
def test_two_ranks_equal_one_that_accumulates(batches: int, difference: float) -> None:
    alone, first, second = trainers = noisy(), noisy(), noisy()
    if difference > 0.0:
        # What has no gradient but rounding, as a bias of keys has, is moved by Adam all the same.
        for trainer in trainers:
            trainer.model.double()
    data = [EXAMPLES.batch(i) for i in range(batches)]
    for _ in range(3):
        record = alone.update(data)
        second.group = Rank(1)
        second.update(data[1::2])
        first.group = Rank(0, second.group)
        together = first.update(data[::2])
        assert together.tokens == record.tokens
        assert together.loss == pytest.approx(record.loss, rel=max(difference, 1e-15))
        assert together.norm == pytest.approx(record.norm, rel=max(difference, 1e-15))
        # What `second` did with half a gradient is forgotten.
        second.model.load_state_dict(first.model.state_dict())
        second.optimizer.load_state_dict(deepcopy(first.optimizer.state_dict()))
    for a, b in zip(alone.model.parameters(), first.model.parameters(), strict=True):
        assert (a - b).abs().max().item() <= difference


def rank_before(trainer: Trainer, *, stop: bool, complete: bool) -> Rank:
    """The other rank, which has no gradient."""
    other = Rank(1)
    other.sums = torch.tensor([0.0, 0.0, 0.0, stop, not complete], dtype=torch.float64)
    other.gradients = [torch.zeros_like(p) for p in trainer.model.parameters()]
    return other


def test_who_wants_to_stop_is_heard_by_all() -> None:
    trainer = noisy()
    trainer.group = Rank(0, rank_before(trainer, stop=True, complete=True))
    record = trainer.update([EXAMPLES.batch(0)])
    assert record.stop and record.done and trainer.step == 1
    trainer.group = Group()
    assert not trainer.update([EXAMPLES.batch(0)]).stop
    # A single batch is not given up.
    record = trainer.update([EXAMPLES.batch(0)], stop=lambda: True)
    assert record.stop and record.done and trainer.step == 3


def test_an_update_of_many_batches_is_given_up() -> None:
    trainer, whole = noisy(), noisy()
    asked: list[bool] = []
    batches = [EXAMPLES.batch(i) for i in range(4)]
    record = trainer.update(batches, stop=lambda: asked.append(True) or len(asked) == 2)
    assert record.stop and not record.done
    assert (record.step, trainer.step, trainer.guard.skipped) == (0, 0, 0)
    assert same(trainer, noisy())
    # It can be done again.
    assert trainer.update(batches) == whole.update(batches)
    assert same(trainer, whole)


def test_an_update_that_another_rank_has_given_up() -> None:
    trainer = noisy()
    trainer.group = Rank(0, rank_before(trainer, stop=True, complete=False))
    record = trainer.update([EXAMPLES.batch(0)])
    assert record.stop and not record.done and trainer.step == 0
    assert same(trainer, noisy())


# --- Precision, measuring, averaging


def test_bf16_computes_in_bf16_and_keeps_float32() -> None:
    torch.manual_seed(0)
    model = Seq2Seq(model_config())
    seen = []
    layer = model.encoder[0].ffn.hidden
    layer.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    trainer = Trainer(model, train_config(precision="bf16"))
    records = fit(trainer, map(EXAMPLES.batch, range(12)))
    assert set(seen) == {torch.bfloat16}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert records[-1].loss < records[0].loss
    exact = Trainer(Seq2Seq(model_config()), train_config())
    assert records[0].loss == pytest.approx(exact.update([EXAMPLES.batch(0)]).loss, rel=0.2)


def test_measure_is_the_mean_over_tokens_and_draws_nothing() -> None:
    trainer = noisy()
    batches = [EXAMPLES.batch(7), EXAMPLES.batch(8)]
    found = trainer.measure(batches)
    assert not trainer.model.training
    total = tokens = 0
    for batch in batches:
        logits = trainer.model(*batch.inputs)
        total += smoothed(logits, batch.target, 0.0)[0].item()
        tokens += count(batch)
    assert found.nll == pytest.approx(total / tokens, rel=1e-6)
    assert found.loss != found.nll
    assert found.tokens == tokens
    assert trainer.measure(batches) == found
    with pytest.raises(ValueError, match="at least one target token"):
        trainer.measure([])


def test_measuring_uses_the_averaged_parameters() -> None:
    torch.manual_seed(0)
    trainer = Trainer(Seq2Seq(model_config()), train_config(ema=0.9))
    fit(trainer, map(EXAMPLES.batch, range(9)))
    plain = trainer.model.state_dict()
    plain = {name: tensor.clone() for name, tensor in plain.items()}
    found = trainer.measure([EXAMPLES.batch(0)])
    assert all(torch.equal(plain[n], t) for n, t in trainer.model.state_dict().items())
    with torch.no_grad():
        for name, parameter in trainer.model.named_parameters():
            parameter.copy_(trainer.ema.tensors[name])
    trainer.ema = None
    assert trainer.measure([EXAMPLES.batch(0)]) == found


def test_the_moving_average_follows_every_update() -> None:
    trainer = Trainer(Seq2Seq(model_config()), train_config(ema=0.5))
    average = trainer.model.output.weight.detach().double()
    for step in range(1, 4):
        trainer.update([EXAMPLES.batch(step)])
        decay = (1 + step) / (10 + step)
        average = decay * average + (1 - decay) * trainer.model.output.weight.detach().double()
    (found,) = (t for t in trainer.ema.tensors.values() if t.shape == average.shape)
    torch.testing.assert_close(found.double(), average, rtol=1e-6, atol=1e-7)
    assert not torch.allclose(found, trainer.model.output.weight, rtol=1e-4)


def test_compiling_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def compile_(function: object, **options: object) -> object:
        asked.append((function, options))
        return function

    monkeypatch.setattr(torch, "compile", compile_)
    model = Seq2Seq(model_config())
    Trainer(model, train_config())
    assert asked == []
    trainer = Trainer(model, train_config(compile=True))
    trainer.update([EXAMPLES.batch(0)])
    assert asked == [(model.features, {"dynamic": True})]


def test_values_come_back() -> None:
    trainer = noisy()
    trainer.step, trainer.guard.skipped, trainer.guard.in_a_row, trainer.largest = 7, 3, 2, 99
    other = noisy()
    other.set_values(trainer.values())
    assert other.values() == trainer.values()
    half = Trainer(Seq2Seq(model_config()), train_config(precision="fp16"))
    half.scale.value, half.scale.good = 32.0, 5
    other = Trainer(Seq2Seq(model_config()), train_config(precision="fp16"))
    other.set_values(half.values())
    assert (other.scale.value, other.scale.good) == (32.0, 5)
