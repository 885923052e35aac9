"""Rates by hand, for the set-ups of the paper."""

import typing

import pytest

from lightconv.train import SCHEDULES, CosineConfig, InverseSqrtConfig, find_rate
from lightconv.train.config import ScheduleConfig

IWSLT = InverseSqrtConfig(peak=5e-4, warmup=4000)
WMT = CosineConfig(peak=1e-3, warmup=10_000, period=20_000)


def test_every_kind_has_a_function() -> None:
    assert set(SCHEDULES) == {config.kind for config in typing.get_args(ScheduleConfig)}


@pytest.mark.parametrize(
    "step, rate",
    [
        (0, 1e-7),
        (1, 1e-7 + 4.999e-4 / 4000),
        (1000, 1.25075e-4),
        (2000, 2.5005e-4),
        (4000, 5e-4),
        (9000, 5e-4 * 2 / 3),
        (16_000, 2.5e-4),
        (50_000, 1.4142135623730951e-4),
    ],
)
def test_inverse_sqrt(step: int, rate: float) -> None:
    assert find_rate(step, IWSLT) == pytest.approx(rate, rel=1e-12)


@pytest.mark.parametrize(
    "step, rate",
    [
        (0, 1e-7),
        (5000, 5.0005e-4),
        (10_000, 1e-3),
        (15_000, 1e-7 + 9.999e-4 * 0.8535533905932737),  # (1 + cos 45) / 2
        (20_000, 5.0005e-4),  # cos 90 = 0
        (30_000, 1e-7),
        (30_001, 1e-7),
        (10_000_000, 1e-7),
    ],
)
def test_cosine(step: int, rate: float) -> None:
    assert find_rate(step, WMT) == pytest.approx(rate, rel=1e-12)


def test_cosine_of_thirds() -> None:
    config = CosineConfig(peak=1e-3, warmup=10_000, period=30_000, floor=2e-4)
    assert find_rate(20_000, config) == pytest.approx(8e-4)  # cos 60 = 1/2
    assert find_rate(30_000, config) == pytest.approx(4e-4)  # cos 120 = -1/2
    assert find_rate(40_000, config) == pytest.approx(2e-4)


def test_the_peak_is_where_the_warm_up_ends() -> None:
    for config in (IWSLT, WMT):
        rates = [find_rate(config.warmup + n, config) for n in (-1, 0, 1)]
        assert rates[0] < rates[1] > rates[2]


def test_cosine_without_warm_up_begins_at_the_peak() -> None:
    config = CosineConfig(peak=1.0, warmup=0, period=4, floor=0.0)
    rates = [find_rate(step, config) for step in range(6)]
    half = 0.5**0.5
    expected = [1.0, (1 + half) / 2, 0.5, (1 - half) / 2, 0.0, 0.0]
    assert rates == pytest.approx(expected, abs=1e-15)
