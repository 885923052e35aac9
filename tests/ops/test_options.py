"""Options of whole sequences: packing (cu_seqlens) and DropConnect."""

import itertools

import pytest
import torch

from lightconv.ops.reference import drop_scale

from . import cases
from .cases import OPERATORS, Inputs, Shape, boundaries, check, every_op, f32, f64, make_inputs, run

pytestmark = pytest.mark.usefixtures("kernels", "poisoned")
LENGTHS = [(5,), (3, 4), (1, 1, 1), (0, 4, 0, 0, 2, 0), (64, 65, 1), (130, 7), (0,), (0, 0), ()]
SEEDS = (0, 1, -1, 2**31, 2**32, 2**63 - 1, -(2**63), 0x0123456789ABCDEF)


def one_by_one(op: str, inputs: Inputs, lengths: tuple[int, ...], left: int) -> cases.Results:
    """Every sequence on its own, by the formula in float64."""
    x, weight, grad = inputs.to(f64)
    parts = []
    for a, b in itertools.pairwise([0, *boundaries(lengths).tolist()]):  # an empty one first
        own = weight[:, a:b] if cases.is_dynamic(op) else weight
        parts.append(cases.run_exact(op, Inputs(x[:, a:b], own, grad[:, a:b]), left))
    outs, grads_x, grads_weight = zip(*parts, strict=True)
    weights = torch.cat(grads_weight, 1) if cases.is_dynamic(op) else sum(grads_weight)
    return cases.Results(torch.cat(outs, 1), torch.cat(grads_x, 1), weights)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@cases.dtypes(f64, f32)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@every_op
def test_equals_one_sequence_after_another(
    op: str, lengths: tuple[int, ...], dtype: torch.dtype, backend: str
) -> None:
    for K, left in ((1, 0), (4, 3), (5, 2), (3, 7), (70, 69), (3, 0)):
        inputs = make_inputs(op, Shape(1, sum(lengths), 2, 3, K, left), dtype)
        found = run(op, inputs, left, cu_seqlens=boundaries(lengths), backend=backend)
        expected = one_by_one(op, inputs, lengths, left)
        cases.assert_close(found, expected, inputs, f"K={K} left={left}")


@every_op
def test_any_integers_in_any_layout(op: str) -> None:
    inputs = make_inputs(op, Shape(1, 9, 2, 3, 3, 1))
    ends = boundaries((4, 0, 5))
    expected = run(op, inputs, 1, cu_seqlens=ends)
    for other in (ends.int(), ends.repeat_interleave(2)[::2], ends.int().repeat(2, 1).T[:, 1]):
        assert cases.all_same_bits(run(op, inputs, 1, cu_seqlens=other), expected)


@every_op
def test_sliced_inputs(op: str) -> None:
    """A packed slice of a longer tensor."""
    x, weight, grad = make_inputs(op, Shape(1, 20, 2, 3, 4, 3))
    own = weight[:, 3:12] if cases.is_dynamic(op) else weight
    inputs = Inputs(x[:, 3:12], own, grad[:, 3:12])
    found = run(op, inputs, 3, cu_seqlens=boundaries((2, 7)))
    cases.assert_close(found, one_by_one(op, inputs, (2, 7), 3), inputs)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ([1, 9], "from 0 to the packed length 9, got 1 to 9"),
        ([0, 8], "from 0 to the packed length 9, got 0 to 8"),
        ([0, 10], "from 0 to the packed length 9, got 0 to 10"),
        ([0], "from 0 to the packed length 9, got 0 to 0"),
        *((ends, "must not decrease") for ends in ([0, 5, 4, 9], [0, 12, 9], [0, -1, 9])),
    ],
    ids=str,
)
@every_op
def test_bad_boundaries(op: str, ends: list[int], message: str, backend: str) -> None:
    inputs = make_inputs(op, Shape(1, 9, 2, 3, 3, 1))
    with pytest.raises(ValueError, match=message):
        run(op, inputs, 1, cu_seqlens=torch.tensor(ends), backend=backend)


# --- DropConnect ----------------------------------------------------------------------------------


@cases.dtypes(f64, f32, cases.bf16)
@cases.few_shapes
@every_op
def test_same_mask_as_the_formula(op: str, shape: Shape, dtype: torch.dtype) -> None:
    inputs = make_inputs(op, shape, dtype)
    for p, seed in zip((0.1, 0.5, 0.9, 0.3, 0.3, 0.3, 0.6, 0.2), SEEDS, strict=True):
        check(op, inputs, shape.left, f"{p} {seed}", dropconnect=p, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_bit_of_the_mask(seed: int) -> None:
    """With ones everywhere, the gradient of a weight is its own factor."""
    shape = Shape(2, 200, 3, 1, 7, 3)
    inputs = Inputs(*(torch.ones_like(t) for t in make_inputs("dynamicconv", shape)))
    found = run("dynamicconv", inputs, 3, dropconnect=0.3, seed=seed).grad_weight
    factors = drop_scale(torch.tensor(seed), tuple(inputs.weight.shape), 0.3, f64)
    inside = slice(3, -3)  # where every tap reads something
    torch.testing.assert_close(found[:, inside], factors[:, inside], rtol=1e-15, atol=0)
    assert 0.25 < (found[:, inside] == 0).double().mean() < 0.35


@pytest.mark.parametrize("op", [op for op in cases.OPS if not cases.is_dynamic(op)])
def test_shared_weights_are_dropped_position_by_position(op: str) -> None:
    inputs = Inputs(torch.ones(2, 5, 1), torch.ones(1, 1), torch.ones(2, 5, 1))
    found = run(op, inputs, 0, dropconnect=0.5, seed=3).out
    assert torch.equal(found, drop_scale(torch.tensor(3), (2, 5, 1), 0.5))
    assert found.unique().tolist() == [0.0, 2.0]


@every_op
def test_nothing_dropped(op: str) -> None:
    inputs = make_inputs(op, cases.FEW_SHAPES[0], f32)
    expected = run(op, inputs, 4)
    assert cases.all_same_bits(run(op, inputs, 4, dropconnect=0.0, seed=5), expected)
    assert cases.all_same_bits(run(op, inputs, 4, dropconnect=0.0), expected)


@every_op
def test_seeds(op: str) -> None:
    """Equal seeds equal results, a tensor or an integer; neighbours and drawn ones differ."""
    inputs = make_inputs(op, cases.FEW_SHAPES[0])

    def dropped(seed: object) -> torch.Tensor:
        return OPERATORS[op](inputs.x, inputs.weight, 4, dropconnect=0.5, seed=seed)

    assert torch.equal(dropped(7), dropped(torch.tensor(7)))
    assert torch.equal(dropped(7), dropped(torch.tensor([7])))
    results = [dropped(seed) for seed in (7, 8, 7 + 2**32, -7, None, None)]
    for i, a in enumerate(results):
        assert not any(torch.equal(a, b) for b in results[:i])
