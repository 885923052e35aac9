"""The smoothed loss against its formula."""

import pytest
import torch

from lightconv.train import label_smoothed

PAD = 1


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
