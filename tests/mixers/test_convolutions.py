"""Convolutions: definitions, DropConnect, packed sequences, initial values, normalisations."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv.mixers import NORMALIZATIONS, Conv, DynamicConv, LightConv

from .examples import DIM, Example, both_directions, noise

either = pytest.mark.parametrize("name", ["lightconv", "dynamicconv"])


def definition(mixer: Any, x: Tensor, padding: Tensor) -> Tensor:
    """The paper's formula, position by position and channel by channel."""
    x = F.linear(x, mixer.in_proj.weight, mixer.in_proj.bias)
    if mixer.glu:
        x = x[..., :DIM] * torch.sigmoid(x[..., DIM:])
    x = x * ~padding.unsqueeze(-1)
    B, T, _ = x.shape
    H, K = mixer.heads, mixer.kernel
    left = K - 1 if mixer.causal else K // 2
    out = torch.zeros_like(x)
    for b in range(B):
        for t in range(T):
            if isinstance(mixer, DynamicConv):
                kernels = (mixer.kernel_proj.weight @ x[b, t]).reshape(H, K)
            else:
                kernels = mixer.weight
            kernels = NORMALIZATIONS[mixer.normalize](kernels)
            for c in range(DIM):
                for j in range(K):
                    s = t + j - left
                    if 0 <= s < T:
                        out[b, t, c] += kernels[c // (DIM // H), j] * x[b, s, c]
    return F.linear(out, mixer.out_proj.weight, mixer.out_proj.bias)


@either
@both_directions
@pytest.mark.parametrize(
    "options",
    [
        {"kernel": 3, "heads": 2},
        {"kernel": 4, "heads": 4, "glu": True},
        {"kernel": 1, "heads": 1},
        {"kernel": 9, "heads": 2, "normalize": "tanh"},
        {"kernel": 3, "heads": DIM, "normalize": "none"},
    ],
    ids=str,
)
@torch.no_grad()
def test_equals_definition(name: str, causal: bool, options: dict[str, Any]) -> None:
    mixer = Example(name, options).build(causal)
    x = noise(2, 6, DIM)
    padding = torch.zeros(2, 6, dtype=torch.bool)
    padding[1, 4:] = True
    expected = definition(mixer, x, padding)
    torch.testing.assert_close(mixer(x, padding), expected, atol=1e-12, rtol=1e-12)


@either
@both_directions
@pytest.mark.parametrize("normalize", ["softmax", "l2"])
def test_packed_sequences_equal_separate_ones(name: str, causal: bool, normalize: str) -> None:
    options = {"kernel": 4, "heads": 2, "glu": True, "normalize": normalize}
    mixer = Example(name, options).build(causal)
    parts = [noise(1, length, DIM, seed=length) for length in (5, 1, 9, 3)]
    packed = torch.cat(parts, dim=1)
    expected = torch.cat([mixer(part) for part in parts], dim=1)
    for dtype in (torch.int32, torch.int64):
        cu_seqlens = torch.tensor([0, 5, 6, 15, 18], dtype=dtype)
        out = mixer(packed, cu_seqlens=cu_seqlens)
        torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)
    with pytest.raises(ValueError, match="batch must be 1"):
        mixer(torch.cat([packed, packed]), cu_seqlens=cu_seqlens)


@either
@pytest.mark.parametrize("normalize", ["softmax", "none"])
def test_dropconnect(name: str, normalize: str) -> None:
    options = {"kernel": 3, "heads": 2, "normalize": normalize, "dropconnect": 0.5}
    mixer = Example(name, options).build(causal=True, dtype=torch.float32)
    x = noise(2, 8, DIM, dtype=torch.float32)
    with torch.no_grad():
        plain = mixer(x)
        assert torch.equal(mixer(x), plain)
        mixer.train()
        torch.manual_seed(5)
        first, second = mixer(x), mixer(x)
        assert not torch.equal(first, second)
        torch.manual_seed(5)
        assert torch.equal(mixer(x), first)
        # Scaled by 1 / (1 - p), the mean over many draws is the plain output.
        torch.manual_seed(6)
        many = mixer(x.repeat(4000, 1, 1)).view(4000, 2, 8, DIM)
        deviation = many.std(0) / 4000**0.5
        assert ((many.mean(0) - plain).abs() <= 5 * deviation + 1e-6).all()


# --- the plain convolution, against torch's own ---------------------------------------------------


@both_directions
@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 9])
def test_equals_conv1d(kernel: int, causal: bool) -> None:
    mixer = Conv(DIM, kernel=kernel, causal=causal).double()
    left = kernel - 1 if causal else kernel // 2
    weight = mixer.weight.permute(1, 2, 0)  # [K, out, in] -> [out, in, K]
    for length in (1, 3, 12):
        x = noise(2, length, DIM)
        padded = F.pad(x.transpose(1, 2), (left, kernel - 1 - left))
        expected = F.conv1d(padded, weight).transpose(1, 2)
        torch.testing.assert_close(mixer(x), expected, atol=1e-12, rtol=1e-12)


def test_first_values() -> None:
    """Uniform in +- bound: xavier's of the same shape in torch, 1 / sqrt(D) of a linear layer."""
    torch.manual_seed(0)
    dynamic = DynamicConv(64, kernel=31, heads=16).kernel_proj
    assert dynamic.bias is None
    weights = {
        (6 / (31 + 16 * 31)) ** 0.5: LightConv(64, kernel=31, heads=16).weight,
        64**-0.5: dynamic.weight,
        (6 / (2 * 64 * 5)) ** 0.5: Conv(64, kernel=5).weight,
    }
    for bound, weight in weights.items():
        near, rtol = (0.99, 0.02) if weight.numel() > 10_000 else (0.95, 0.1)
        assert near * bound < weight.abs().max() <= bound
        torch.testing.assert_close(weight.std(), torch.tensor(bound / 3**0.5), rtol=rtol, atol=0.0)


# --- the ten normalisations, written out by hand --------------------------------------------------

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

every_normalization = pytest.mark.parametrize("name", NORMALIZATIONS)


@every_normalization
def test_normalization_equals_formula(name: str) -> None:
    """The paper's appendix; small numbers show epsilon."""
    assert list(NORMALIZATIONS) == list(BY_HAND)
    small = torch.tensor([[1e-6, -2e-6, 0.0, 3e-7, 0.0]], dtype=torch.float64)
    for rows, atol, rtol in ((2 * noise(6, 5), 1e-14, 1e-14), (small, 0.0, 1e-12)):
        expected = torch.tensor([BY_HAND[name](row) for row in rows.tolist()], dtype=torch.float64)
        torch.testing.assert_close(NORMALIZATIONS[name](rows), expected, atol=atol, rtol=rtol)
        batched = NORMALIZATIONS[name](rows.view(len(rows), 1, 5))
        assert torch.equal(batched[:, 0], NORMALIZATIONS[name](rows))


@every_normalization
def test_half_becomes_float32_and_float64_stays(name: str) -> None:
    normalize = NORMALIZATIONS[name]
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        weight = noise(4, 5, dtype=dtype)
        out = normalize(weight)
        assert out.dtype == torch.float32
        assert torch.equal(out, normalize(weight.float()))
    assert normalize(noise(4, 5)).dtype == torch.float64


@every_normalization
def test_gradient_of_zero_is_finite(name: str) -> None:
    # DynamicConv predicts exactly zero at padding.
    weight = torch.zeros(2, 3, requires_grad=True)
    NORMALIZATIONS[name](weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.isfinite().all()
