"""Sequences of different lengths laid end to end (cu_seqlens)."""

import itertools

import pytest
import torch

from .cases import (
    OPS,
    Inputs,
    Results,
    Shape,
    assert_close,
    boundaries,
    f32,
    f64,
    is_dynamic,
    make_inputs,
    name_of,
    run,
    run_exact,
    same_bits,
)

pytestmark = pytest.mark.usefixtures("kernels", "poisoned")
every_op = pytest.mark.parametrize("op", OPS)
LENGTHS = [(5,), (3, 4), (1, 1, 1), (0, 4, 0, 0, 2, 0), (64, 65, 1), (130, 7), (0,), (0, 0), ()]


def one_by_one(op: str, inputs: Inputs, lengths: tuple[int, ...], left: int) -> Results:
    """Every sequence on its own, by the formula in float64."""
    x, weight, grad = inputs.to(f64)
    parts = []
    for a, b in itertools.pairwise(boundaries(lengths).tolist()):
        own = weight[:, a:b] if is_dynamic(op) else weight
        parts.append(run_exact(op, Inputs(x[:, a:b], own, grad[:, a:b]), left))
    outs, grads_x, grads_weight = zip(*parts, strict=True)
    together = torch.cat(grads_weight, 1) if is_dynamic(op) else torch.stack(grads_weight).sum(0)
    return Results(torch.cat(outs, 1), torch.cat(grads_x, 1), together)


@pytest.mark.parametrize("dtype", [f64, f32], ids=name_of)
@pytest.mark.parametrize("lengths", LENGTHS[:-1], ids=str)
@every_op
def test_equals_one_sequence_after_another(
    op: str, lengths: tuple[int, ...], dtype: torch.dtype
) -> None:
    for K, left in ((1, 0), (4, 3), (5, 2), (3, 7), (70, 69), (3, 0)):
        inputs = make_inputs(op, Shape(1, sum(lengths), 2, 3, K, left), dtype)
        found = run(op, inputs, left, cu_seqlens=boundaries(lengths))
        assert_close(found, one_by_one(op, inputs, lengths, left), inputs, f"K={K} left={left}")


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@every_op
def test_backends_agree_on_empty_sequences(op: str, lengths: tuple[int, ...], backend: str) -> None:
    inputs = make_inputs(op, Shape(1, sum(lengths), 2, 3, 3, 2))
    options = {"cu_seqlens": boundaries(lengths)}
    found = run(op, inputs, 2, backend=backend, **options)
    assert_close(found, run_exact(op, inputs, 2, **options), inputs)


@every_op
def test_any_integers_in_any_layout(op: str) -> None:
    inputs = make_inputs(op, Shape(1, 9, 2, 3, 3, 1))
    ends = boundaries((4, 0, 5))
    expected = run(op, inputs, 1, cu_seqlens=ends)
    for other in (ends.int(), ends.repeat_interleave(2)[::2], ends.int().repeat(2, 1).T[:, 1]):
        found = run(op, inputs, 1, cu_seqlens=other)
        assert all(same_bits(*pair) for pair in zip(found, expected, strict=True))


@every_op
def test_sliced_inputs(op: str) -> None:
    """A packed slice of a longer tensor."""
    shape = Shape(1, 20, 2, 3, 4, 3)
    x, weight, grad = make_inputs(op, shape)
    own = weight[:, 3:12] if is_dynamic(op) else weight
    inputs = Inputs(x[:, 3:12], own, grad[:, 3:12])
    found = run(op, inputs, 3, cu_seqlens=boundaries((2, 7)))
    assert_close(found, one_by_one(op, inputs, (2, 7), 3), inputs)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ([1, 9], "cu_seqlens must run from 0 to the packed length 9, got 1 to 9"),
        ([0, 8], "cu_seqlens must run from 0 to the packed length 9, got 0 to 8"),
        ([0, 10], "cu_seqlens must run from 0 to the packed length 9, got 0 to 10"),
        ([0], "cu_seqlens must run from 0 to the packed length 9, got 0 to 0"),
        ([0, 5, 4, 9], "cu_seqlens must not decrease"),
        ([0, 12, 9], "cu_seqlens must not decrease"),
        ([0, -1, 9], "cu_seqlens must not decrease"),
    ],
    ids=str,
)
@every_op
def test_bad_boundaries(op: str, ends: list[int], message: str, backend: str) -> None:
    inputs = make_inputs(op, Shape(1, 9, 2, 3, 3, 1))
    with pytest.raises(ValueError, match=message):
        run(op, inputs, 1, cu_seqlens=torch.tensor(ends), backend=backend)
