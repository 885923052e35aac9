"""Gradients as numbers (gradcheck) and as torch's graph sees them."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from .cases import OPERATORS, OPS, Shape, boundaries, f32, make_inputs, same_bits

pytestmark = pytest.mark.usefixtures("kernels")
every_op = pytest.mark.parametrize("op", OPS)
subsets = pytest.mark.parametrize(
    ("need_x", "need_weight"),
    [(True, True), (True, False), (False, True), (False, False)],
    ids=["both", "x", "weight", "none"],
)
SHAPE = Shape(1, 5, 2, 2, 3, 1)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dropconnect": {"dropconnect": 0.3, "seed": 2},
    "packed": {"cu_seqlens": boundaries((2, 0, 3))},
}


def leaves(op: str, need_x: bool, need_weight: bool, shape: Shape = SHAPE) -> tuple[Tensor, Tensor]:
    x, weight, _ = make_inputs(op, shape)
    return x.requires_grad_(need_x), weight.requires_grad_(need_weight)


@subsets
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@every_op
def test_gradcheck(op: str, options: dict[str, Any], need_x: bool, need_weight: bool) -> None:
    """As numbers; create_graph=True gives the same first gradients."""
    inputs = leaves(op, need_x, need_weight)
    out = OPERATORS[op](*inputs, SHAPE.left, **options)
    if not (need_x or need_weight):
        assert not out.requires_grad
        return
    for left in (0, 2, 4):
        assert gradcheck(lambda x, w, to=left: OPERATORS[op](x, w, to, **options), inputs)
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    expected = torch.autograd.grad(out.square().sum(), wanted, retain_graph=True)
    found = torch.autograd.grad(out.square().sum(), wanted, create_graph=True)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "shape", [Shape(2, 70, 2, 16, 31, 30), Shape(1, 80, 1, 3, 66, 70)], ids=str
)
@every_op
def test_one_gradient_alone_equals_both(op: str, shape: Shape) -> None:
    x, weight, grad = make_inputs(op, shape, f32)
    found = {}
    for need_x, need_weight in ((True, True), (True, False), (False, True)):
        x.requires_grad_(need_x)
        weight.requires_grad_(need_weight)
        x.grad = weight.grad = None
        OPERATORS[op](x, weight, shape.left).backward(grad)
        found[need_x, need_weight] = (x.grad, weight.grad)
    both, only_x, only_weight = found.values()
    assert only_x[1] is None
    assert only_weight[0] is None
    assert same_bits(only_x[0], both[0])
    assert same_bits(only_weight[1], both[1])


@every_op
def test_twice_in_one_graph(op: str) -> None:
    """The result is the input of a second call with the same weights."""
    inputs = leaves(op, True, True)
    assert gradcheck(lambda x, w: OPERATORS[op](OPERATORS[op](x, w, 2), w, 0), inputs)


@every_op
def test_backward_twice(op: str) -> None:
    """The same bits again; `backward` adds them up."""
    x, weight = leaves(op, True, True)
    out = OPERATORS[op](x, weight, 1).square().sum()
    first = torch.autograd.grad(out, (x, weight), retain_graph=True)
    second = torch.autograd.grad(out, (x, weight), retain_graph=True)
    assert all(same_bits(*pair) for pair in zip(first, second, strict=True))
    out.backward(retain_graph=True)
    out.backward()
    torch.testing.assert_close((x.grad, weight.grad), (2 * first[0], 2 * first[1]))


@every_op
def test_inputs_changed_before_backward(op: str) -> None:
    """An in-place change between forward and backward is noticed."""
    x, weight = leaves(op, True, True)
    hidden = x * 1.0
    out = OPERATORS[op](hidden, weight, 1).sum()
    hidden.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


@pytest.mark.parametrize("backend", ["auto", "reference", "band"])
@every_op
def test_gradients_of_gradients(op: str, backend: str) -> None:
    inputs = leaves(op, True, True, Shape(1, 3, 1, 2, 2, 1))
    assert gradgradcheck(lambda x, w: OPERATORS[op](x, w, 1, backend=backend), inputs)


@pytest.mark.parametrize("op", ["dynamicconv", "dynamicconv_softmax"])
def test_weights_made_from_x(op: str) -> None:
    """As in the paper's layer: x reaches the result on two ways, once each."""
    x, _ = leaves(op, True, False)
    project = torch.randn(SHAPE.H * SHAPE.R, SHAPE.H * SHAPE.K, dtype=x.dtype)

    def layer(x: Tensor) -> Tensor:
        weight = (x @ project).unflatten(-1, (SHAPE.H, SHAPE.K))
        return OPERATORS[op](x, weight, 1)

    assert gradcheck(layer, x)
    assert gradgradcheck(layer, x)
