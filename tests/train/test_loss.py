"""The loss of logits against its formula, and that of a batch against the loss of its logits."""

import pytest
import torch
import torch.nn.functional as F

from lightconv.data import PAD, Batch
from lightconv.models import AdaptiveConfig, LanguageModel, Seq2Seq
from lightconv.train import batch_loss, label_smoothed
from tests.harness.examples import DATA, lm_config, model_config

STILL = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_label_smoothed_is_its_formula(smoothing: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 5, 7, dtype=torch.float64, requires_grad=True)
    target = torch.randint(2, 7, (3, 5))
    target[0, 2:] = PAD
    total, count = label_smoothed(logits, target, smoothing=smoothing, pad=PAD)
    expected = torch.zeros((), dtype=torch.float64)
    for b in range(3):
        for t in range(5):
            if target[b, t] != PAD:
                nll = -logits[b, t].log_softmax(-1)
                expected = expected + (1 - smoothing) * nll[target[b, t]]
                expected = expected + smoothing / 7 * nll.sum()
    torch.testing.assert_close(total, expected)
    assert count.item() == 12
    (gradient,) = torch.autograd.grad(total, logits)
    (expected_gradient,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(gradient, expected_gradient)
    assert torch.all(gradient[0, 2:] == 0.0)


def test_a_batch_of_padding_is_nothing() -> None:
    logits = torch.randn(2, 3, 7, requires_grad=True)
    total, count = label_smoothed(logits, torch.full((2, 3), PAD), pad=PAD)
    total.backward()
    assert total.item() == 0.0
    assert count.item() == 0
    assert torch.all(logits.grad == 0.0)


def test_half_precision_logits_are_summed_in_float32() -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 100, 50).bfloat16()
    target = torch.randint(2, 50, (4, 100))
    total, _ = label_smoothed(logits, target)
    exact, _ = label_smoothed(logits.double(), target)
    assert total.dtype == torch.float32
    assert total.item() == pytest.approx(exact.item(), rel=1e-6)


# --- Of a batch


def padded() -> Batch:
    """Sentences of different lengths, the last of which is nothing but padding."""
    batch = DATA.batch(0)
    assert bool((batch.target == PAD).any())
    batch.target[-1] = PAD
    return batch


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_a_batch_is_that_of_its_logits(smoothing: float) -> None:
    torch.manual_seed(0)
    model = Seq2Seq(model_config(**STILL)).double().eval()
    batch = padded()
    found = batch_loss(model, batch, smoothing)
    logits = model(*batch.inputs)
    expected, count = label_smoothed(logits, batch.target, smoothing=smoothing)
    plain = F.cross_entropy(logits.flatten(0, 1), batch.target.flatten(), ignore_index=PAD)
    assert found.tokens == count == batch.tokens
    torch.testing.assert_close(found.loss, expected)
    torch.testing.assert_close(found.nll, plain * count)
    assert not found.nll.requires_grad
    gradients = torch.autograd.grad(found.loss, list(model.parameters()))
    wanted = torch.autograd.grad(expected, list(model.parameters()))
    for a, b in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(a, b)


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
    torch.testing.assert_close(found.loss, expected)
    torch.testing.assert_close(found.nll, expected)
    assert not found.nll.requires_grad
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(found.loss, parameters)
    for a, b in zip(gradients, torch.autograd.grad(expected, parameters), strict=True):
        torch.testing.assert_close(a, b)


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


@pytest.mark.parametrize("adaptive", [None, AdaptiveConfig(cutoffs=(6,), factor=2)])
def test_no_tokens_no_loss_but_gradients(adaptive: AdaptiveConfig | None) -> None:
    model = LanguageModel(lm_config(adaptive=adaptive))
    batch = Batch((torch.full((2, 3), 5),), torch.full((2, 3), PAD))
    found = batch_loss(model, batch)
    assert (found.loss.item(), found.nll.item(), found.tokens) == (0.0, 0.0, 0)
    found.loss.backward()
    assert all(bool((p.grad == 0.0).all()) for p in model.parameters())


def test_no_gradients_are_made_where_none_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation needs one product with the vocabulary, not three."""
    model = LanguageModel(lm_config()).eval()
    batch = Batch(padded().inputs[1:], padded().target)
    with torch.no_grad():
        plain = batch_loss(model, batch)
        monkeypatch.setattr(torch, "mm", None)  # the gradient of x is made with it
        found = batch_loss(model, batch)
    assert torch.equal(found.loss, plain.loss)
    with pytest.raises(TypeError):
        batch_loss(model, batch)
