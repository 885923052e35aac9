"""The ranges of a training run's configuration."""

import math

import pytest

from lightconv.train import (
    AdamConfig,
    CosineConfig,
    InverseSqrtConfig,
    NesterovConfig,
    TrainConfig,
)


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
        (TrainConfig, {"tokens_per_update": 0}, "^tokens_per_update=0 must be at least 1$"),
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
