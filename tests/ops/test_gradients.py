"""Gradients as numbers (gradcheck) and as torch's graph sees them."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from . import cases
from .cases import OPERATORS, Shape, every_op, make_inputs, same_bits

pytestmark = pytest.mark.usefixtures("kernels")
SHAPE = Shape(1, 5, 2, 2, 3, 1)


def leaves(op: str, need: tuple[bool, bool] = (True, True), shape: Shape = SHAPE) -> list[Tensor]:
    given = zip(make_inputs(op, shape)[:2], need, strict=True)
    return [tensor.requires_grad_(needed) for tensor, needed in given]


@cases.need_gradients
@cases.every_option(2, 0, 3)
@every_op
def test_gradcheck(op: str, options: dict[str, Any], need: tuple[bool, bool]) -> None:
    """As numbers; create_graph=True gives the same first gradients."""
    inputs = leaves(op, need)
    out = OPERATORS[op](*inputs, SHAPE.left, **options)
    if not any(need):
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
    *inputs, grad = make_inputs(op, shape, cases.f32)
    found = []
    for need in ((True, True), (True, False), (False, True)):
        x, weight = (t.clone().requires_grad_(n) for t, n in zip(inputs, need, strict=True))
        OPERATORS[op](x, weight, shape.left).backward(grad)
        found.append((x.grad, weight.grad))
    both, (only_x, no_weight), (no_x, only_weight) = found
    assert no_weight is no_x is None
    assert same_bits(only_x, both[0])
    assert same_bits(only_weight, both[1])


@every_op
def test_backward_twice(op: str) -> None:
    """The same bits again; `backward` adds them up."""
    x, weight = leaves(op)
    out = OPERATORS[op](x, weight, 1).square().sum()
    first, second = (torch.autograd.grad(out, (x, weight), retain_graph=True) for _ in range(2))
    assert all(same_bits(*pair) for pair in zip(first, second, strict=True))
    out.backward(retain_graph=True)
    out.backward()
    torch.testing.assert_close((x.grad, weight.grad), (2 * first[0], 2 * first[1]))


@every_op
def test_inputs_changed_before_backward(op: str) -> None:
    """An in-place change between forward and backward is noticed."""
    x, weight = leaves(op)
    hidden = x * 1.0
    out = OPERATORS[op](hidden, weight, 1).sum()
    hidden.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


@cases.every_backend
@every_op
def test_gradients_of_gradients(op: str, backend: str) -> None:
    inputs = leaves(op, shape=Shape(1, 3, 1, 2, 2, 1))
    assert gradgradcheck(lambda x, w: OPERATORS[op](x, w, 1, backend=backend), inputs)
