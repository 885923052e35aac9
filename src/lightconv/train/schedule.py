"""The learning rate after a number of updates."""

import math
from collections.abc import Callable
from typing import Any

from lightconv.train.config import CosineConfig, InverseSqrtConfig, ScheduleConfig


def inverse_sqrt(step: int, config: InverseSqrtConfig) -> float:
    """A line from `start` to `peak`, then peak * sqrt(warmup / step)."""
    if step < config.warmup:
        return warm_up(step, config)
    return config.peak * math.sqrt(config.warmup / step)


def cosine(step: int, config: CosineConfig) -> float:
    """A line from `start` to `peak`, then half a cosine down to `floor`, which it keeps."""
    if step < config.warmup:
        return warm_up(step, config)
    share = min(1.0, (step - config.warmup) / config.period)
    return config.floor + (config.peak - config.floor) * 0.5 * (1.0 + math.cos(math.pi * share))


def warm_up(step: int, config: ScheduleConfig) -> float:
    """The line from `start` at step 0 to `peak` at step `warmup`."""
    return config.start + (config.peak - config.start) * step / config.warmup


# Each takes the configuration of its kind.
SCHEDULES: dict[str, Callable[[int, Any], float]] = {
    InverseSqrtConfig.kind: inverse_sqrt,
    CosineConfig.kind: cosine,
}


def find_rate(step: int, config: ScheduleConfig) -> float:
    """The rate after `step` updates, which the next one uses."""
    return SCHEDULES[config.kind](step, config)
