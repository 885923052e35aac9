"""Ranges of a run's configuration, and rates by hand for the set-ups of the paper."""

import math

import pytest

from lightconv.train import (
    AdamConfig,
    CosineConfig,
    InverseSqrtConfig,
    NesterovConfig,
    TrainConfig,
    find_rate,
)
from lightconv.train.config import ScheduleConfig


@pytest.mark.parametrize(
    "config, changes, message",
    [
        (AdamConfig, {"betas": (0.9, 1.0)}, r"^betas=\[0.9, 1.0\] must both be in \[0, 1\)$"),
        (AdamConfig, {"betas": (-0.1, 0.9)}, r"^betas=\[-0.1, 0.9\] must both"),
        (AdamConfig, {"eps": 0.0}, "^eps=0.0 must be above 0$"),
        (AdamConfig, {"weight_decay": -1.0}, "^weight_decay=-1.0 must be at least 0$"),
        (NesterovConfig, {"momentum": 0.0}, r"^momentum=0.0 must be in \(0, 1\)$"),
        (NesterovConfig, {"momentum": 1.0}, r"^momentum=1.0 must be in \(0, 1\)$"),
        (NesterovConfig, {"weight_decay": math.nan}, "^weight_decay=nan must be at least 0$"),
        (InverseSqrtConfig, {"peak": 0.0}, "^peak=0.0 must be above 0$"),
        (InverseSqrtConfig, {"peak": math.inf}, "^peak=inf must be above 0$"),
        (InverseSqrtConfig, {"warmup": 0}, "^warmup=0 must be at least 1$"),
        (InverseSqrtConfig, {"start": -1e-7}, "^start=-1e-07 must be at least 0$"),
        (InverseSqrtConfig, {"start": 0.2}, "^start=0.2 must not be above peak=0.1$"),
        (CosineConfig, {"peak": -1.0}, "^peak=-1.0 must be above 0$"),
        (CosineConfig, {"warmup": -1}, "^warmup=-1 must be at least 0$"),
        (CosineConfig, {"period": 0}, "^period=0 must be at least 1$"),
        (CosineConfig, {"floor": 0.2}, "^floor=0.2 must not be above peak=0.1$"),
        (CosineConfig, {"floor": -0.2}, "^floor=-0.2 must be at least 0$"),
        (TrainConfig, {"max_steps": 0}, "^max_steps=0 must be at least 1$"),
        (TrainConfig, {"tokens_per_update": -1}, "^tokens_per_update=-1 must "),
        (TrainConfig, {"tokens_per_update": 0}, "batches_per_update=0 and tokens_per_update=0: ex"),
        (
            TrainConfig,
            {"batches_per_update": 2},
            "batches_per_update=2 and tokens_per_update=3: ex",
        ),
        (TrainConfig, {"max_tokens": 0}, "^max_tokens=0 must be at least 1$"),
        (TrainConfig, {"validate_every": 0}, "^validate_every=0 must be at least 1$"),
        (TrainConfig, {"save_every": 0}, "^save_every=0 must be at least 1$"),
        (TrainConfig, {"clip_norm": -0.1}, "^clip_norm=-0.1 must be at least 0$"),
        (TrainConfig, {"label_smoothing": 1.0}, r"^label_smoothing=1.0 must be in \[0, 1\)$"),
        (TrainConfig, {"seed": -1}, "^seed=-1 must be at least 0$"),
        (TrainConfig, {"average_last": -1}, "^average_last=-1 must be at least 0$"),
        (TrainConfig, {"keep_last": 1}, "^keep_last=1 must be at least 2$"),
        (TrainConfig, {"average_last": 11}, "^average_last=11 must not be above keep_last=10$"),
    ],
)
def test_nonsense_is_refused(config: type, changes: dict[str, object], message: str) -> None:
    needed = {
        InverseSqrtConfig: {"peak": 0.1, "warmup": 4},
        CosineConfig: {"peak": 0.1, "warmup": 4, "period": 5},
        TrainConfig: {
            "max_steps": 3,
            "tokens_per_update": 3,
            "schedule": InverseSqrtConfig(peak=0.1, warmup=4),
        },
    }
    config(**needed.get(config, {}))
    with pytest.raises(ValueError, match=message):
        config(**{**needed.get(config, {}), **changes})


def test_borders_are_allowed() -> None:
    AdamConfig(betas=(0.0, 0.0))
    CosineConfig(peak=0.1, warmup=0, period=1, start=0.1, floor=0.1)
    schedule = InverseSqrtConfig(peak=0.1, warmup=1, start=0.0)
    TrainConfig(
        max_steps=1, tokens_per_update=1, schedule=schedule, keep_last=2, average_last=2, seed=0
    )


def test_regular_steps() -> None:
    schedule = InverseSqrtConfig(peak=0.1, warmup=1)
    config = TrainConfig(max_steps=13, tokens_per_update=1, schedule=schedule, save_every=5)
    assert [step for step in range(14) if config.is_regular(step)] == [5, 10, 13]


# --- Schedules

IWSLT = InverseSqrtConfig(peak=5e-4, warmup=4000)
WMT = CosineConfig(peak=1e-3, warmup=10_000, period=20_000)


THIRDS = CosineConfig(peak=1e-3, warmup=10_000, period=30_000, floor=2e-4)


@pytest.mark.parametrize(
    "config, step, rate",
    [
        (IWSLT, 0, 1e-7),
        (IWSLT, 1, 1e-7 + 4.999e-4 / 4000),
        (IWSLT, 1000, 1.25075e-4),
        (IWSLT, 2000, 2.5005e-4),
        (IWSLT, 4000, 5e-4),
        (IWSLT, 9000, 5e-4 * 2 / 3),
        (IWSLT, 16_000, 2.5e-4),
        (IWSLT, 50_000, 1.4142135623730951e-4),
        (WMT, 0, 1e-7),
        (WMT, 5000, 5.0005e-4),
        (WMT, 10_000, 1e-3),
        (WMT, 15_000, 1e-7 + 9.999e-4 * 0.8535533905932737),  # (1 + cos 45) / 2
        (WMT, 20_000, 5.0005e-4),  # cos 90 = 0
        (WMT, 30_000, 1e-7),
        (WMT, 30_001, 1e-7),
        (WMT, 10_000_000, 1e-7),
        (THIRDS, 20_000, 8e-4),  # cos 60 = 1/2
        (THIRDS, 30_000, 4e-4),  # cos 120 = -1/2
        (THIRDS, 40_000, 2e-4),
    ],
)
def test_rates_by_hand(config: ScheduleConfig, step: int, rate: float) -> None:
    assert find_rate(step, config) == pytest.approx(rate, rel=1e-12)


def test_cosine_without_warm_up_begins_at_the_peak() -> None:
    config = CosineConfig(peak=1.0, warmup=0, period=4, floor=0.0)
    rates = [find_rate(step, config) for step in range(6)]
    half = 0.5**0.5
    expected = [1.0, (1 + half) / 2, 0.5, (1 - half) / 2, 0.0, 0.0]
    assert rates == pytest.approx(expected, abs=1e-15)
