"""Parts of an update against their formulas: loss, precision, optimiser, average, seeds."""

import math
from contextlib import nullcontext
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightconv.data import PAD, Batch
from lightconv.models import AdaptiveConfig, LanguageModel, Seq2Seq
from lightconv.train import AdamConfig, Group, NesterovConfig, Trainer, batch_loss
from lightconv.train.config import OptimizerConfig, Precision, find_rate
from lightconv.train.optim import (
    EMA,
    FIRST_SCALE,
    LARGEST_SCALE,
    MOST_IN_A_ROW,
    Guard,
    build_optimizer,
    derive,
    set_seed,
)
from tests.harness.examples import DATA, lm_config, model_config, train_config
from tests.train.formula import Overflow, smoothed

STILL = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
CPU = torch.device("cpu")


# --- The loss of a batch


def padded() -> Batch:
    """Sentences of different lengths, the last of which is nothing but padding."""
    batch = DATA.batch(0)
    assert bool((batch.target == PAD).any())
    batch.target[-1] = PAD
    return batch


def assert_same_gradients(model: nn.Module, found: Tensor, expected: Tensor) -> None:
    parameters = list(model.parameters())
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, parameters), torch.autograd.grad(expected, parameters)
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_a_batch_is_that_of_its_logits(smoothing: float) -> None:
    torch.manual_seed(0)
    model = Seq2Seq(model_config(**STILL)).double().eval()
    batch = padded()
    found = batch_loss(model, batch, smoothing)
    logits = model(*batch.inputs)
    expected, count = smoothed(logits, batch.target, smoothing)
    plain = F.cross_entropy(logits.flatten(0, 1), batch.target.flatten(), ignore_index=PAD)
    assert found.tokens == count == batch.tokens
    torch.testing.assert_close(found.nll, plain * count)
    assert not found.nll.requires_grad
    assert_same_gradients(model, found.loss, expected)


@pytest.mark.parametrize("tie_projections", [False, True])
def test_an_adaptive_output_has_the_loss_of_its_scores(tie_projections: bool) -> None:
    torch.manual_seed(0)
    adaptive = AdaptiveConfig(cutoffs=(6, 9), factor=2, tie_projections=tie_projections)
    model = LanguageModel(lm_config(adaptive=adaptive, dropout=0.0)).double()
    assert model.training
    for layer in model.layers:
        layer.eval()  # no DropConnect
    batch = Batch(padded().inputs[1:], padded().target)
    found = batch_loss(model, batch)
    # Its scores are log-probabilities.
    scores, target = model(*batch.inputs).flatten(0, 1), batch.target.flatten()
    expected = F.nll_loss(scores, target, ignore_index=PAD, reduction="sum")
    torch.testing.assert_close(found.nll, expected)
    assert not found.nll.requires_grad
    assert_same_gradients(model, found.loss, expected)


def test_an_adaptive_output_smooths_nothing() -> None:
    model = LanguageModel(lm_config(adaptive=AdaptiveConfig(cutoffs=(6,), factor=2)))
    batch = Batch(padded().inputs[1:], padded().target)
    with pytest.raises(ValueError, match=r"^label_smoothing=0.1 must be 0 with an adaptive output"):
        batch_loss(model, batch, 0.1)


def test_a_band_without_words_has_a_gradient_of_zero() -> None:
    model = LanguageModel(lm_config(adaptive=AdaptiveConfig(cutoffs=(6, 11), factor=2)))
    tokens = torch.full((2, 3), 4)
    batch_loss(model, Batch((tokens,), tokens)).loss.backward()
    assert all(parameter.grad is not None for parameter in model.output.parameters())


def test_no_gradients_are_made_where_none_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation needs one product with the vocabulary, not three."""
    model = LanguageModel(lm_config()).eval()
    batch = Batch(padded().inputs[1:], padded().target)
    with torch.no_grad():
        plain = batch_loss(model, batch)
        monkeypatch.setattr(torch.Tensor, "addmm_", None)  # gradients are made with it
        found = batch_loss(model, batch)
    assert torch.equal(found.loss, plain.loss)
    with pytest.raises(TypeError):
        batch_loss(model, batch)


# --- Optimisers

RATES = [0.1, 0.2, 0.05, 0.4, 0.01]


def gradients() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(7, generator=generator, dtype=torch.float64) for _ in RATES]


def run(config: OptimizerConfig) -> Tensor:
    parameter = nn.Parameter(torch.ones(7, dtype=torch.float64))
    optimizer = build_optimizer([parameter], 1.0, config)
    for rate, gradient in zip(RATES, gradients(), strict=True):
        optimizer.param_groups[0]["lr"] = rate
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_decays_beside_the_gradient(decay: float) -> None:
    x = torch.ones(7, dtype=torch.float64)
    m = v = torch.zeros(7, dtype=torch.float64)
    for t, (rate, g) in enumerate(zip(RATES, gradients(), strict=True), 1):
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g * g
        x = x - rate * decay * x
        x = x - rate * (m / (1 - 0.8**t)) / ((v / (1 - 0.95**t)).sqrt() + 1e-3)
    config = AdamConfig(betas=(0.8, 0.95), eps=1e-3, weight_decay=decay)
    torch.testing.assert_close(run(config), x, rtol=0, atol=1e-14)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_nesterov_looks_ahead(decay: float) -> None:
    x = torch.ones(7, dtype=torch.float64)
    momentum = torch.zeros(7, dtype=torch.float64)
    for rate, gradient in zip(RATES, gradients(), strict=True):
        g = gradient + decay * x
        momentum = 0.9 * momentum + g
        x = x - rate * (g + 0.9 * momentum)
    config = NesterovConfig(momentum=0.9, weight_decay=decay)
    torch.testing.assert_close(run(config), x, rtol=0, atol=1e-14)


# --- Moving average


def test_it_is_applied_for_a_while() -> None:
    model = nn.Linear(2, 1)
    ema = EMA(model, decay=0.9)
    average = {name: tensor.clone() for name, tensor in ema.tensors.items()}
    with torch.no_grad():
        model.weight.fill_(3.0)
    plain = model.weight.detach().clone()
    with ema.applied():
        assert torch.equal(model.weight, average["weight"])
        assert isinstance(model.weight, nn.Parameter)
    assert torch.equal(model.weight, plain)
    assert torch.equal(ema.tensors["weight"], average["weight"])
    with pytest.raises(KeyError), ema.applied():
        raise KeyError
    assert torch.equal(model.weight, plain)


# --- Precision


def build(**changes: object) -> Trainer:
    torch.manual_seed(0)
    return Trainer(Seq2Seq(model_config()), train_config(**changes))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_only_fp16_has_a_scale(precision: Precision) -> None:
    guard = Guard(precision, 8)
    for finite in (False, *[True] * 2048):
        guard.count(finite=finite)
    assert (guard.scale, guard.good) == (1.0, 0)


def test_the_scale_falls_at_once_and_rises_slowly() -> None:
    guard = Guard("fp16", 8)
    for _ in range(2047):
        guard.count(finite=True)
    assert guard.scale == FIRST_SCALE
    guard.count(finite=True)
    assert (guard.scale, guard.good) == (2 * FIRST_SCALE, 0)
    guard.count(finite=True)
    guard.count(finite=False)
    assert (guard.scale, guard.good) == (FIRST_SCALE, 0)
    guard.scale, guard.good = LARGEST_SCALE, 2047
    guard.count(finite=True)
    assert guard.scale == LARGEST_SCALE


@pytest.mark.parametrize(
    "ranks, changes, window",
    [
        (8, {"batches_per_update": 16 * 8}, 128),  # the original's 2^14 / (8 x 16)
        (1, {"batches_per_update": 16 * 8}, 128),
        (32, {"batches_per_update": 32}, 512),
        (1, {"batches_per_update": 1}, 2**14),
        (3, {"batches_per_update": 4}, 2**14 // 6),
        (1, {"batches_per_update": 2**15}, 1),
        (1, {"tokens_per_update": 8000, "max_tokens": 4000}, 2**13),
    ],
)
def test_the_scale_rises_after_as_many_batches_as_the_original(
    ranks: int, changes: dict[str, int], window: int
) -> None:
    group = Group()
    group.size = ranks
    config = train_config(**{"tokens_per_update": 0, **changes})
    assert Trainer(Seq2Seq(model_config()), config, group=group).guard.window == window


def test_only_those_in_a_row_count() -> None:
    guard = Guard("fp32")
    for _ in range(3):
        assert not any(guard.count(finite=False) for _ in range(MOST_IN_A_ROW - 1))
        assert not guard.count(finite=True)
    assert guard.skipped == 3 * (MOST_IN_A_ROW - 1)
    assert [guard.count(finite=False) for _ in range(10)] == [False] * 9 + [True]


def test_an_overflow_changes_the_scale_and_nothing_else() -> None:
    trainer = build(precision="fp16", ema=0.9)
    trainer.group = Overflow(2, 3)
    rates = [find_rate(step, trainer.config.schedule) for step in (1, 1, 1, 2)]
    trainer.update([DATA.batch(0)])
    moments = trainer.optimizer.state[next(trainer.model.parameters())]["exp_avg"]
    state = [*trainer.model.parameters(), *trainer.ema.tensors.values(), moments]
    before = [tensor.clone() for tensor in state]
    record = trainer.update([DATA.batch(1)])
    assert record.skipped and math.isinf(record.norm)
    assert trainer.guard.scale == FIRST_SCALE / 2
    assert all(map(torch.equal, before, state))
    others = [record, *(trainer.update([DATA.batch(i)]) for i in (2, 3, 4))]
    assert [each.skipped for each in others] == [True, True, False, False]
    # The schedule waits for an update that is made.
    assert [each.step for each in others] == [2, 2, 2, 3]
    assert [each.lr for each in others] == rates
    assert trainer.guard.scale == FIRST_SCALE / 4
    assert (trainer.guard.skipped, trainer.guard.in_a_row, trainer.step) == (2, 0, 3)


def test_the_scale_is_not_in_the_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, where a power of two rounds nothing away, both are the same."""
    plain, scaled = build(), build(precision="fp16")
    monkeypatch.setattr("lightconv.train.trainer.autocast", lambda *_: nullcontext())
    for index in range(3):
        a, b = plain.update([DATA.batch(index)]), scaled.update([DATA.batch(index)])
        assert (a.loss, a.nll, a.norm) == (b.loss, b.nll, b.norm)
    assert all(map(torch.equal, plain.model.parameters(), scaled.model.parameters()))


# --- Seeds


def test_seeds_differ_and_fit() -> None:
    seeds = {derive(*numbers) for numbers in product(range(5), range(20), range(9))}
    assert len(seeds) == 900
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive(1, 2) != derive(2, 1)
    assert derive(1) != derive(1, 0)
    # Written into no file, but a resumed run of a later version should repeat it.
    assert derive(1, 2, 3) == 6520558355739401531


def test_seeding_is_that_of_torch() -> None:
    set_seed(5, torch.device("cpu"))
    found = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(found, torch.rand(3))
