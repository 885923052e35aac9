"""The paper's band matrix against an explicit loop and against the formulas."""

import pytest
import torch

from lightconv.ops.band import band_matrix

from .cases import (
    FEW_SHAPES,
    OPS,
    SHAPES,
    Shape,
    assert_close,
    bf16,
    f16,
    f32,
    f64,
    make_inputs,
    name_of,
    run,
    run_exact,
)

pytestmark = pytest.mark.usefixtures("poisoned")
every_op = pytest.mark.parametrize("op", OPS)


@pytest.mark.parametrize(
    ("T", "K", "left"),
    [(T, K, left) for T in (0, 1, 4, 7) for K in (1, 2, 5, 9) for left in (0, 1, 4, 5, 8, 12, 40)],
)
def test_every_entry(T: int, K: int, left: int) -> None:
    weight = torch.randn(2, 3, T, K)
    band = band_matrix(weight, left)
    assert band.shape == (2, 3, T, T)
    for t in range(T):
        for s in range(T):
            j = s - t + left
            expected = weight[..., t, j] if 0 <= j < K else torch.zeros(2, 3)
            assert torch.equal(band[..., t, s], expected), f"row {t}, column {s}"


@pytest.mark.parametrize("dtype", [f64, f32], ids=name_of)
@pytest.mark.parametrize("shape", SHAPES, ids=name_of)
@every_op
def test_formula(op: str, shape: Shape, dtype: torch.dtype) -> None:
    inputs = make_inputs(op, shape, dtype)
    found = run(op, inputs, shape.left, backend="band")
    assert_close(found, run_exact(op, inputs, shape.left), inputs)


@pytest.mark.parametrize("weight_dtype", [None, f32], ids=["like-x", "weight-f32"])
@pytest.mark.parametrize("dtype", [bf16, f16], ids=name_of)
@pytest.mark.parametrize("shape", FEW_SHAPES, ids=name_of)
@every_op
def test_half_precision(
    op: str, shape: Shape, dtype: torch.dtype, weight_dtype: torch.dtype | None
) -> None:
    """Roundings of the weights to half precision and of the product, relative to the largest."""
    inputs = make_inputs(op, shape, dtype, weight_dtype)
    found = run(op, inputs, shape.left, backend="band")
    for a, b in zip(found, run_exact(op, inputs, shape.left), strict=True):
        assert (a.double() - b).abs().max() <= 4 * torch.finfo(dtype).eps * b.abs().max()


@every_op
def test_sliced_inputs(op: str) -> None:
    inputs = make_inputs(op, Shape(2, 7, 2, 3, 4, 2))
    wide = torch.randn(2, 7, 11, dtype=f64)[..., 2:8]
    inputs = inputs._replace(x=wide, grad=wide.sum(-1, keepdim=True).expand_as(wide))
    assert_close(run(op, inputs, 2, backend="band"), run_exact(op, inputs, 2), inputs)


@pytest.mark.parametrize("options", [{"dropconnect": 0.1}, {"cu_seqlens": torch.tensor([0, 7])}])
@every_op
def test_what_it_cannot_do(op: str, options: dict[str, object]) -> None:
    inputs = make_inputs(op, Shape(1, 7, 2, 3, 4, 2))
    with pytest.raises(ValueError, match="'band' supports neither cu_seqlens nor dropconnect"):
        run(op, inputs, 2, backend="band", **options)
