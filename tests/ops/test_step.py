"""The step forms: a stream in chunks of any size equals the whole sequence at once."""

import random
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from . import cases
from .cases import OPERATORS, Shape, bf16, dtypes, f16, f32, f64, make_inputs, same_bits

pytestmark = pytest.mark.usefixtures("kernels", "poisoned")
DYNAMIC, SOFTMAX, SHARED = "dynamicconv", "dynamicconv_softmax", "lightconv"
every_op = pytest.mark.parametrize("op", [DYNAMIC, SOFTMAX, SHARED])


def step(op: str, x: Tensor, window: Tensor, position: int, weight: Tensor) -> Any:
    options = {"softmax": True} if op == SOFTMAX else {}
    name = "lightconv_step" if op == SHARED else "dynamicconv_step"
    return OPERATORS[name](x, window, position, weight, **options)


def start(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_zeros(x.shape[0], weight.shape[-1] - 1, x.shape[2])


def stream(op: str, x: Tensor, weight: Tensor, sizes: list[int]) -> Tensor:
    """The outputs of consecutive chunks."""
    window, t, outs = start(x, weight), 0, []
    for n in sizes:
        own = weight if op == SHARED else weight[:, t : t + n]
        out, window = step(op, x[:, t : t + n], window, t, own)
        outs.append(out)
        t += n
    assert t == x.shape[1]
    return torch.cat(outs, 1)


def cuts(T: int, K: int) -> list[list[int]]:
    """One by one, all at once, and chunks of 0 to 2 K positions."""
    draw, random_sizes = random.Random(T * 1000 + K), []
    while sum(random_sizes) < T:
        random_sizes.append(min(draw.choice((0, 1, 2, K, 2 * K)), T - sum(random_sizes)))
    return [[1] * T, [T], [0, T, 0], random_sizes]


SHAPES = [
    *(Shape(2, T, 2, 3, K, K - 1) for K in (1, 2, 3, 4, 7) for T in (1, 2, 3, 4, 6, 7, 8, 20)),
    *(
        Shape(1, 40, H, R, 31, 30)
        for H, R in ((1, 64), (2, 16), (4, 17), (3, 130), (5, 1), (19, 8))
    ),
    *(Shape(2, 6, H, R, 4, 3) for H in (16, 35) for R in (1, 2, 4, 8)),
    *(Shape(3, T, 2, 8, 70, 69) for T in (5, 69, 70, 71, 150)),
    Shape(0, 4, 2, 3, 3, 2),
]


def check(op: str, x: Tensor, weight: Tensor, about: str = "") -> None:
    """A stream in every kind of chunks against the formula in float64."""
    T, K = x.shape[1], weight.shape[-1]
    expected = OPERATORS[op](x.double(), weight.double(), K - 1, backend="reference")
    for sizes in cuts(T, K):
        found = stream(op, x, weight, sizes)
        assert found.dtype == x.dtype
        assert found.shape == expected.shape
        if found.numel():
            error = (found.double() - expected).abs()
            allowed = cases.errors_allowed(x.dtype, expected, 0.0)
            assert (error <= allowed).all(), f"chunks {sizes} {about}"


@dtypes(f64, f32, bf16, f16)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@every_op
def test_stream_equals_forward(op: str, shape: Shape, dtype: torch.dtype) -> None:
    check(op, *make_inputs(op, shape, dtype)[:2])


@every_op
def test_every_instruction_set(op: str, kernels: Any, instruction_sets: list[str]) -> None:
    for isa in instruction_sets:
        kernels.lightconv_choose(isa.encode())
        for shape in SHAPES[::3]:
            check(op, *make_inputs(op, shape, f32)[:2], f"{isa} {shape}")


@dtypes(bf16, f16)
@every_op
def test_float32_weights_beside_half(op: str, dtype: torch.dtype) -> None:
    check(op, *make_inputs(op, Shape(2, 9, 2, 3, 4, 3), dtype, f32)[:2])


# --- the window -----------------------------------------------------------------------------------


@pytest.mark.parametrize("K", [2, 3, 5])
@every_op
def test_the_window_is_a_ring(op: str, K: int) -> None:
    """Time t in slot t % (K - 1), at any time, after chunks of any size."""
    for position in (0, 1, 7, 10**12):
        for n in (0, 1, 2, K - 1, K, 3 * K):
            x, weight, _ = make_inputs(op, Shape(2, n, 2, 3, K, K - 1))
            window = torch.randn(2, K - 1, 6, dtype=f64)
            before = window.clone()
            _, ring = step(op, x, window, position, weight)
            for t in range(position + n - (K - 1), position + n):
                expected = x[:, t - position] if t >= position else before[:, t % (K - 1)]
                assert torch.equal(ring[:, t % (K - 1)], expected), f"time {t}"


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, nullcontext])
@every_op
def test_updated_in_place(op: str, mode: Any) -> None:
    """Without gradients, and with plain tensors anywhere."""
    x, weight, _ = make_inputs(op, Shape(2, 2, 2, 3, 4, 3))
    x.requires_grad_(mode is not nullcontext)
    with mode():
        window = start(x, weight)
        out, ring = step(op, x, window, 0, weight)
        assert ring is window
        assert torch.equal(window[:, :2], x)
        assert not window[:, 2].any()
        assert not out.requires_grad


@pytest.mark.parametrize("which", ["x", "weight", "window"])
@every_op
def test_recorded_gradients_leave_the_window_alone(op: str, which: str) -> None:
    x, weight, _ = make_inputs(op, Shape(2, 2, 2, 3, 4, 3))
    tensors = {"x": x, "weight": weight, "window": torch.randn(2, 3, 6, dtype=f64)}
    tensors[which].requires_grad_()
    before = tensors["window"].detach().clone()
    out, ring = step(op, tensors["x"], tensors["window"], 5, tensors["weight"])
    assert ring is not tensors["window"]
    assert torch.equal(tensors["window"], before)
    assert torch.equal(ring[:, 5 % 3], x[:, 0])
    assert torch.autograd.grad(out.sum(), tensors[which])[0].any()


@pytest.mark.parametrize("K", [1, 2, 5])
@every_op
def test_gradients_flow_through_the_stream(op: str, K: int) -> None:
    x, weight, grad = make_inputs(op, Shape(2, 9, 2, 3, K, K - 1))
    x.requires_grad_()
    weight.requires_grad_()
    expected = torch.autograd.grad(OPERATORS[op](x, weight, K - 1), (x, weight), grad)
    for sizes in cuts(9, K):
        found = torch.autograd.grad(stream(op, x, weight, sizes), (x, weight), grad)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@every_op
def test_any_layout(op: str) -> None:
    x, weight, _ = make_inputs(op, Shape(2, 3, 2, 3, 5, 4), f32)
    window = torch.randn(2, 4, 6)
    expected, ring = step(op, x, window.clone(), 2, weight)
    sliced = torch.zeros(2, 9, 8)[:, ::2][:, :4, 1:7].copy_(window)
    turned = window.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    x_turned, weight_turned = (t.movedim(-1, 0).contiguous().movedim(0, -1) for t in (x, weight))
    for given in ((x, sliced, weight), (x, turned, weight), (x_turned, window, weight_turned)):
        assert not all(tensor.is_contiguous() for tensor in given)
        out, same = step(op, *given[:2], 2, given[2])
        assert same is given[1]
        assert same_bits(out, expected)
        assert same_bits(same, ring)


@every_op
def test_rows_are_independent(op: str) -> None:
    """A row alone gives the same bits, and NaN in one row stays there."""
    B = 4
    x, weight, _ = make_inputs(op, Shape(B, 3, 2, 17, 5, 4), f32)
    window = torch.randn(B, 4, 34)
    expected, ring = step(op, x, window.clone(), 6, weight)
    for b in range(B):
        own = weight if op == SHARED else weight[b : b + 1]
        out, alone = step(op, x[b : b + 1], window[b : b + 1].clone(), 6, own)
        assert same_bits(out[0], expected[b])
        assert same_bits(alone[0], ring[b])
    x[1], window[1] = torch.nan, torch.nan
    out, _ = step(op, x, window.clone(), 6, weight)
    others = [0, 2, 3]
    assert same_bits(out[others], expected[others])
    assert out[1].isnan().all()


@every_op
def test_what_is_too_old_is_not_seen(op: str) -> None:
    """A window full of NaN is forgotten after K - 1 positions."""
    K = 4
    x, weight, _ = make_inputs(op, Shape(1, 6, 1, 3, K, K - 1))
    window = torch.full((1, K - 1, 3), torch.nan, dtype=f64)
    own = weight if op == SHARED else weight[:, :3]
    out, window = step(op, x[:, :3], window, 0, own)
    assert out.isnan().all()
    assert torch.equal(window, x[:, :3])
