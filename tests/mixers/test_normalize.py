"""The ten normalisations against the formulas of the paper's appendix, written out by hand."""

import math
from collections.abc import Callable

import pytest
import torch

from lightconv.mixers import NORMALIZATIONS

from .examples import noise

EPS = 1e-6


def l1(w: list[float]) -> float:
    return sum(abs(v) for v in w) + EPS


def l2(w: list[float]) -> float:
    return math.sqrt(sum(v * v for v in w)) + EPS


BY_HAND: dict[str, Callable[[list[float]], list[float]]] = {
    "none": lambda w: w,
    "softmax": lambda w: [math.exp(v) / sum(math.exp(u) for u in w) for v in w],
    "sigmoid": lambda w: [1 / (1 + math.exp(-v)) for v in w],
    "tanh": lambda w: [math.tanh(v) for v in w],
    "l1": lambda w: [v / l1(w) for v in w],
    "l2": lambda w: [v / l2(w) for v in w],
    "square": lambda w: [v**2 for v in w],
    "abs": lambda w: [abs(v) for v in w],
    "abs_l1": lambda w: [abs(v) / l1(w) for v in w],
    "abs_l2": lambda w: [abs(v) / l2(w) for v in w],
}

every_name = pytest.mark.parametrize("name", BY_HAND)


def test_these_are_all() -> None:
    assert list(NORMALIZATIONS) == list(BY_HAND)


@every_name
def test_equals_formula(name: str) -> None:
    weight = 2 * noise(2, 3, 5)
    expected = torch.tensor(
        [[BY_HAND[name](row) for row in rows] for rows in weight.tolist()], dtype=torch.float64
    )
    torch.testing.assert_close(NORMALIZATIONS[name](weight), expected, atol=1e-14, rtol=1e-14)
    # Small numbers show epsilon.
    weight = torch.tensor([1e-6, -2e-6, 0.0], dtype=torch.float64)
    expected = torch.tensor(BY_HAND[name](weight.tolist()), dtype=torch.float64)
    torch.testing.assert_close(NORMALIZATIONS[name](weight), expected, atol=0.0, rtol=1e-12)


@every_name
def test_half_becomes_float32_and_float64_stays(name: str) -> None:
    normalize = NORMALIZATIONS[name]
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        weight = noise(4, 5, dtype=dtype)
        out = normalize(weight)
        assert out.dtype == torch.float32
        assert torch.equal(out, normalize(weight.float()))
    assert normalize(noise(4, 5)).dtype == torch.float64


@every_name
def test_gradient_of_zero_is_finite(name: str) -> None:
    # DynamicConv predicts exactly zero at padding.
    weight = torch.zeros(2, 3, requires_grad=True)
    NORMALIZATIONS[name](weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.isfinite().all()
