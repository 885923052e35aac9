"""The C++ kernels and the band matrix against the formulas in float64, with all gradients."""

import ctypes
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv.ops.band import band_matrix

from . import cases
from .cases import FEW_SHAPES, Inputs, Shape, check, dtypes, every_op, f32, f64, make_inputs, run

pytestmark = pytest.mark.usefixtures("kernels", "poisoned")


@pytest.mark.parametrize("backend", ["auto", "band"])
@dtypes(f64, f32)
@pytest.mark.parametrize("shape", cases.SHAPES, ids=str)
@every_op
def test_formula(op: str, shape: Shape, dtype: torch.dtype, backend: str) -> None:
    check(op, make_inputs(op, shape, dtype), shape.left, backend=backend)


@every_op
def test_random_shapes(op: str, kernels: ctypes.CDLL, instruction_sets: list[str]) -> None:
    """Any shape, dtype, packing and DropConnect, on every instruction set of this machine."""
    for number, case in enumerate(cases.random_cases(200, seed=cases.OPS.index(op))):
        left = case.shape.left
        inputs = make_inputs(op, case.shape, case.dtype, case.weight_dtype, number)
        expected = cases.run_exact(op, inputs, left, **case.options)
        for isa in instruction_sets:
            kernels.lightconv_choose(isa.encode())
            found = run(op, inputs, left, **case.options)
            cases.assert_close(found, expected, inputs, f"{isa} {case}")


@dtypes(f64, f32)
@every_op
def test_results_larger_than_the_cache(op: str, dtype: torch.dtype) -> None:
    shape = Shape(1, 2200, 15, 64, 3, 2)
    inputs = make_inputs(op, shape, dtype)
    assert inputs.x.numel() * inputs.x.element_size() > 8 << 20
    check(op, inputs, shape.left)


@cases.every_backend
@pytest.mark.parametrize("left", [75, 2**40, 2**63 - 1])
@every_op
def test_out_of_everyones_reach(op: str, left: int, backend: str) -> None:
    """Zeros, and no memory for the way there."""
    inputs = make_inputs(op, Shape(2, 70, 2, 3, 5, left), f32)
    assert not any(result.any() for result in run(op, inputs, left, backend=backend))


# --- half precision -------------------------------------------------------------------------------


def plain(op: str, inputs: Inputs, left: int) -> cases.Results:
    """What one would write in PyTorch, run in the dtype of x."""
    x, weight = (tensor.detach().requires_grad_() for tensor in inputs[:2])
    taps = (weight.softmax(-1) if cases.is_softmax(op) else weight).to(x.dtype)
    H, K = taps.shape[-2:]
    padded = F.pad(x, (0, 0, left, max(0, K - 1 - left)))
    windows = padded.unfold(1, K, 1)[:, : x.shape[1]].unflatten(2, (H, -1))
    equation = "bthrk,bthk->bthr" if cases.is_dynamic(op) else "bthrk,hk->bthr"
    out = torch.einsum(equation, windows, taps).flatten(-2)
    return cases.Results(out.detach(), *torch.autograd.grad(out, (x, weight), inputs.grad))


@pytest.mark.parametrize("weight_dtype", [None, f32], ids=["like-x", "weight-f32"])
@dtypes(cases.bf16, cases.f16)
@cases.few_shapes
@every_op
def test_half_precision(
    op: str, shape: Shape, dtype: torch.dtype, weight_dtype: torch.dtype | None
) -> None:
    """At most twice the error of the plain expression, and only one rounding.

    The band matrix rounds the weights and the product, relative to the largest.
    """
    inputs = make_inputs(op, shape, dtype, weight_dtype)
    found, exact = run(op, inputs, shape.left), cases.run_exact(op, inputs, shape.left)
    band = run(op, inputs, shape.left, backend="band")
    for a, b, c, d in zip(found, plain(op, inputs, shape.left), exact, band, strict=True):
        assert (a.double() - c).abs().max() <= 2 * (b.double() - c).abs().max()
        assert (d.double() - c).abs().max() <= 4 * torch.finfo(dtype).eps * c.abs().max()
    cases.assert_close(found, exact, inputs)


@dtypes(cases.bf16, cases.f16)
@every_op
def test_every_half_number_survives(op: str, dtype: torch.dtype) -> None:
    """Subnormal, huge and infinite numbers pass through a kernel of one tap unchanged."""
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    x = numbers[~numbers.isnan()].reshape(1, -1, 2)
    weight = torch.full((1, 1), 0.0 if cases.is_softmax(op) else 1.0, dtype=dtype)
    weight = weight.expand(1, x.shape[1], 1, 1) if cases.is_dynamic(op) else weight
    assert torch.equal(run(op, Inputs(x, weight, torch.ones_like(x)), 0).out, x)


# --- softmax --------------------------------------------------------------------------------------


@dtypes(f64, f32, cases.bf16)
@pytest.mark.parametrize("op", ["dynamicconv_softmax", "lightconv_softmax"])
@cases.few_shapes
def test_extreme_logits(op: str, shape: Shape, dtype: torch.dtype) -> None:
    """Large, equal and minus infinite logits; one tap is always left."""
    for change in (
        lambda w: w * 1000.0,
        lambda w: w + 30000.0,
        torch.zeros_like,
        lambda w: w.masked_fill(w < w.amax(-1, keepdim=True), -torch.inf),
    ):
        x, logits, grad = make_inputs(op, shape, dtype)
        check(op, Inputs(x, change(logits), grad), shape.left, floor=1.0)


# --- layouts --------------------------------------------------------------------------------------


def shifted(tensor: Tensor) -> Tensor:
    """A slice of the last dimension, not aligned to anything."""
    wide = tensor.new_full((*tensor.shape[:-1], tensor.shape[-1] + 4), torch.nan)
    wide[..., 1:-3] = tensor
    return wide[..., 1:-3]


def every_second(tensor: Tensor) -> Tensor:
    """Every second position (or head)."""
    wide = tensor.new_full((*tensor.shape, 2), torch.nan).movedim(-1, 2).flatten(1, 2)
    wide[:, ::2] = tensor
    return wide[:, ::2]


def last_first(tensor: Tensor) -> Tensor:
    """The last dimension is the slowest in memory."""
    return tensor.movedim(-1, 0).contiguous().movedim(0, -1)


def swapped(tensor: Tensor) -> Tensor:
    """[T, B, ...] in memory."""
    return tensor.transpose(0, 1).contiguous().transpose(0, 1)


def one_row(tensor: Tensor) -> Tensor:
    """The same for every batch entry and position, without memory for it."""
    return tensor[:1, :1].expand_as(tensor)


def one_number(tensor: Tensor) -> Tensor:
    """As the backward pass of .sum() gives it."""
    return tensor.flatten()[0].expand_as(tensor)


@pytest.mark.parametrize(
    "layout", [shifted, every_second, last_first, swapped, one_row, one_number]
)
@pytest.mark.parametrize("which", [*Inputs._fields, "all"])
@every_op
def test_layouts(op: str, which: str, layout: Callable[[Tensor], Tensor]) -> None:
    for shape in FEW_SHAPES if which == "all" else FEW_SHAPES[:3]:
        for dtype in (f64, f32, cases.bf16):
            inputs = make_inputs(op, shape, dtype)
            for name in Inputs._fields if which == "all" else [which]:
                inputs = inputs._replace(**{name: layout(getattr(inputs, name))})
            before = Inputs(*(tensor.clone() for tensor in inputs))
            for backend in ("auto", "band") if dtype != cases.bf16 else ("auto",):
                check(op, inputs, shape.left, f"{shape} {dtype} {backend}", backend=backend)
            assert all(cases.same_bits(*pair) for pair in zip(inputs, before, strict=True))


@every_op
def test_one_channel_with_a_stride(op: str) -> None:
    """D = 1: a channel stride that means nothing."""
    inputs = make_inputs(op, Shape(2, 9, 1, 1, 3, 1))
    check(op, inputs._replace(x=inputs.x.repeat(1, 1, 7)[..., ::7]), 1)


# --- the band matrix ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("T", "K", "left"),
    [(T, K, left) for T in (0, 1, 4, 7) for K in (1, 2, 5, 9) for left in (0, 1, 4, 5, 8, 12, 40)],
)
def test_every_entry_of_the_band(T: int, K: int, left: int) -> None:
    weight = torch.randn(2, 3, T, K)
    band = band_matrix(weight, left)
    assert band.shape == (2, 3, T, T)
    for t in range(T):
        for s in range(T):
            j = s - t + left
            expected = weight[..., t, j] if 0 <= j < K else torch.zeros(2, 3)
            assert torch.equal(band[..., t, s], expected), f"row {t}, column {s}"
