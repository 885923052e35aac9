"""The sides of the comparison compute what they say, and what is measured is plausible."""

import pytest
import torch

from lightconv.demo import growth
from lightconv.demo.growth import CONV, FUSED, PLAIN, measure_growth, peak_bytes


def test_both_attentions_are_the_same() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 9, growth.D) for _ in range(3))
    fused, plain = growth.fused_attention(q, k, v), growth.textbook_attention(q, k, v)
    torch.testing.assert_close(fused, plain, atol=1e-5, rtol=1e-4)
    # The first position sees itself alone.
    torch.testing.assert_close(plain[:, 0], v[:, 0])


def test_a_row_for_each_length() -> None:
    told: list[int] = []
    rows = measure_growth([16, 64], told.append, tokens=32)
    assert told == [16, 64]
    assert [(row.length, row.tokens) for row in rows] == [(16, 32), (64, 64)]
    for row in rows:
        assert set(row.microseconds) == {CONV, FUSED, PLAIN}
        assert all(value > 0 for value in row.microseconds.values())


def test_a_matrix_that_is_too_large_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "MOST_BYTES", 1e5)
    (row,) = measure_growth([64], lambda length: None, tokens=64)
    assert set(row.microseconds) == {CONV, FUSED}


def test_memory_of_a_call() -> None:
    found = peak_bytes(lambda: torch.ones(4_000_000))
    if found is None:
        pytest.skip("this system does not tell")
    assert 15e6 < found < 40e6
