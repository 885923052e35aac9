"""The largest of a row: against sorting in Python, equal values included."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightconv import ops
from lightconv.ops.vocabulary import topk


def by_sorting(row: list[float], k: int) -> list[int]:
    return sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 9).flatmap(
        lambda V: st.lists(
            st.lists(st.sampled_from([-math.inf, -1.0, 0.0, 0.5, 3.0]), min_size=V, max_size=V),
            max_size=4,
        ).map(lambda rows: torch.tensor(rows).view(-1, V))
    ),
    st.integers(0, 9),
)
def test_equal_values_come_in_order(x: torch.Tensor, k: int) -> None:
    k = min(k, x.shape[1])
    values, indices = topk(x, k)
    assert values.shape == indices.shape == (len(x), k)
    assert indices.tolist() == [by_sorting(row, k) for row in x.tolist()]
    assert torch.equal(values, x.gather(1, indices))


# Shorter than the strands that the kernel cuts a row into, as long, and longer with a rest.
@pytest.mark.parametrize("V, k", [(40, 1), (40, 4), (40, 40), (64, 9), (1003, 9), (1003, 100)])
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
def test_logprobs(dtype: torch.dtype, V: int, k: int) -> None:
    generator = torch.Generator().manual_seed(k)
    # So coarse that narrow numbers are often equal.
    logits = (8 * torch.randn(7, V, generator=generator)).round().div(4).to(dtype)
    values, words = ops.topk_logprobs(logits, k)
    assert values.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert words.dtype == torch.int64
    for row, found, chosen in zip(logits.tolist(), values.tolist(), words.tolist(), strict=True):
        norm = math.log(sum(math.exp(x) for x in row))
        assert chosen == by_sorting(row, k)
        assert found == pytest.approx([row[i] - norm for i in chosen], abs=1e-5)


def test_large_logits_do_not_overflow() -> None:
    values, words = ops.topk_logprobs(torch.tensor([[1e4, 1e4, -1e4, -math.inf]]), 3)
    assert words.tolist() == [[0, 1, 2]]
    assert values[0].tolist() == pytest.approx([-math.log(2), -math.log(2), -2e4], rel=1e-4)


@pytest.mark.parametrize("few", [0, 3])
def test_rows_of_almost_nothing(few: int) -> None:
    logits = torch.full((1, 500), -math.inf)
    logits[0, 400 : 401 + few] = 1.0
    values, words = ops.topk_logprobs(logits, 6)
    assert words[0, : 1 + few].tolist() == list(range(400, 401 + few))
    assert words[0, 1 + few :].tolist() == list(range(5 - few))
    assert values[0].tolist() == pytest.approx(
        [-math.log(1 + few)] * (1 + few) + [-math.inf] * (5 - few)
    )


@pytest.mark.parametrize("place", [0, 70, 499])
def test_what_is_no_number_is_seen(place: int) -> None:
    logits = torch.zeros(1, 500)
    logits[0, place] = math.nan
    values, words = ops.topk_logprobs(logits, 9)
    assert values.isnan().all()
    assert ((words >= 0) & (words < 500)).all()


def test_the_input_is_left_alone() -> None:
    x = torch.zeros(3, 6)
    topk(x, 2)[0].add_(1.0)
    assert torch.equal(x, torch.zeros(3, 6))


@pytest.mark.parametrize("k", [-1, 7])
def test_more_than_there_are_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match=rf"k={k} must be in \[0, 6\]"):
        topk(torch.zeros(3, 6), k)


@pytest.mark.parametrize("shape, k", [((0, 6), 2), ((3, 6), 0)])
def test_nothing(shape: tuple[int, int], k: int) -> None:
    values, words = ops.topk_logprobs(torch.zeros(shape), k)
    assert values.shape == words.shape == (shape[0], k)
