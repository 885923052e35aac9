"""What a position must not see changes nothing, NaN included: a bit is a bit.

A NaN is put into one element of x, weight or grad. Every result that the formula makes depend on it
is NaN; every other one (the past, other sequences, batch entries, heads, channels) keeps its bits.
"""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from . import cases
from .cases import OPS, Inputs, Results, Shape, boundaries, is_dynamic, is_softmax, make_inputs, run

pytestmark = pytest.mark.usefixtures("kernels", "poisoned")


class Case(NamedTuple):
    shape: Shape
    lengths: tuple[int, ...] = ()

    def __str__(self) -> str:
        packed = "-packed" + "+".join(map(str, self.lengths)) if self.lengths else ""
        return f"{self.shape}{packed}"

    def reads(self) -> Tensor:
        """[T, K, T]: tap j of position t reads position s."""
        _, T, _, _, K, left = self.shape
        t, j, s = torch.arange(T)[:, None, None], torch.arange(K)[:, None], torch.arange(T)
        sequence = torch.bucketize(s, boundaries(self.lengths)[1:], right=True)
        return (t + j - left == s) & (sequence[:, None, None] == sequence)


CASES = [
    Case(Shape(2, 9, 2, 3, 3, 2)),  # causal
    Case(Shape(2, 9, 2, 3, 4, 2)),  # centred
    Case(Shape(2, 9, 2, 3, 3, 5)),  # only the far past
    Case(Shape(1, 70, 2, 16, 31, 30)),
    Case(Shape(1, 131, 2, 17, 5, 4)),
    Case(Shape(1, 140, 1, 3, 70, 69)),
    Case(Shape(3, 5, 4, 1, 3, 1)),
    Case(Shape(1, 70, 18, 2, 4, 3)),  # vectors across heads
    Case(Shape(1, 9, 17, 4, 5, 7)),
    Case(Shape(1, 12, 2, 3, 3, 2), (4, 0, 1, 7)),
    Case(Shape(1, 12, 2, 3, 5, 2), (5, 6, 1)),
    Case(Shape(1, 140, 1, 16, 9, 4), (66, 74)),
]
every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_dtype = cases.dtypes(cases.f32, cases.f64, cases.bf16)
dynamic_ops = pytest.mark.parametrize("op", OPS[:2])
shared_ops = pytest.mark.parametrize("op", OPS[2:])


def untouched(inputs: Inputs) -> Results:
    """Masks over the results: nothing is reached yet."""
    sizes = (inputs.x, inputs.x, inputs.weight)
    return Results(*(torch.zeros(t.shape, dtype=torch.bool) for t in sizes))


def check_reach(
    op: str,
    case: Case,
    inputs: Inputs,
    which: str,
    at: tuple[int, ...],
    reached: Results,
    possible: Results | None = None,
) -> None:
    """NaN in inputs.which[at] shows where `reached` says and nowhere outside `possible`."""
    options = {"cu_seqlens": boundaries(case.lengths)} if case.lengths else {}
    poisoned = getattr(inputs, which).clone()
    poisoned[at] = torch.nan
    clean = run(op, inputs, case.shape.left, **options)
    found = run(op, inputs._replace(**{which: poisoned}), case.shape.left, **options)
    masks = zip(reached, possible or reached, strict=True)
    for name, a, b, (must, may) in zip(Results._fields, found, clean, masks, strict=True):
        assert cases.same_bits(a[~may], b[~may]), f"NaN in {which}{list(at)} leaks into {name}"
        assert a[must].isnan().all(), f"NaN in {which}{list(at)} is lost on its way to {name}"


def positions(case: Case) -> list[int]:
    """The ends, the middle, and the two sides of a tile's border."""
    T = case.shape.T
    return sorted({0, T // 2, T - 1} | {t for t in (63, 64) if t < T})


@every_case
@every_dtype
@cases.every_op
def test_nan_in_x(op: str, dtype: torch.dtype, case: Case) -> None:
    inputs, reads = make_inputs(op, case.shape, dtype), case.reads()
    b, c = case.shape.B - 1, case.shape.H * case.shape.R - 1
    for s in positions(case):
        reached = untouched(inputs)
        reached.out[b, reads[:, :, s].any(1), c] = True
        taps = reads[:, :, s]  # [T, K]
        if is_dynamic(op):
            reached.grad_weight[b, :, -1] = taps.any(1, keepdim=True) if is_softmax(op) else taps
        else:
            reached.grad_weight[-1] = taps.any() if is_softmax(op) else taps.any(0)
        check_reach(op, case, inputs, "x", (b, s, c), reached)


@every_case
@every_dtype
@cases.every_op
def test_nan_in_the_gradient(op: str, dtype: torch.dtype, case: Case) -> None:
    """A tap outside of the sequence may get 0 or, as the formula has it, 0 times NaN."""
    inputs, reads = make_inputs(op, case.shape, dtype), case.reads()
    b, c = case.shape.B - 1, 0
    for t in positions(case):
        reached, possible = untouched(inputs), untouched(inputs)
        reached.grad_x[b, reads[t].any(0), c] = possible.grad_x[b, reads[t].any(0), c] = True
        place = (b, t, 0) if is_dynamic(op) else (0,)
        reached.grad_weight[place] = reads[t].any() if is_softmax(op) else reads[t].any(1)
        possible.grad_weight[place] = True
        check_reach(op, case, inputs, "grad", (b, t, c), reached, possible)


@every_case
@every_dtype
@dynamic_ops
def test_nan_in_the_weights_of_a_position(op: str, dtype: torch.dtype, case: Case) -> None:
    inputs, reads = make_inputs(op, case.shape, dtype), case.reads()
    B, _, H, R, _, _ = case.shape
    for t in positions(case):
        for j in reads[t].any(1).nonzero().flatten().tolist()[-1:]:
            reached = untouched(inputs)
            reached.out[B - 1, t, (H - 1) * R :] = True
            sources = reads[t].any(0) if is_softmax(op) else reads[t, j]
            reached.grad_x[B - 1, sources, (H - 1) * R :] = True
            reached.grad_weight[B - 1, t, -1] = is_softmax(op)
            check_reach(op, case, inputs, "weight", (B - 1, t, H - 1, j), reached)


@every_case
@every_dtype
@shared_ops
def test_nan_in_the_weights_of_a_head(op: str, dtype: torch.dtype, case: Case) -> None:
    """The other heads keep their bits."""
    inputs, R = make_inputs(op, case.shape, dtype), case.shape.R
    reached, possible = untouched(inputs), untouched(inputs)
    reads = case.reads().any(1)
    reached.out[:, reads.any(1), :R] = True
    possible.out[..., :R] = possible.grad_x[..., :R] = True
    possible.grad_weight[0] = True
    check_reach(op, case, inputs, "weight", (0,), reached, possible)
