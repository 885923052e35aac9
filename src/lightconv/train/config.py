"""Configuration of training and learning rate schedules; needs no torch."""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from lightconv.config import check_counts, check_from_zero, check_positive, check_shares

Precision = Literal["fp32", "bf16", "fp16", "auto"]
Products = Literal["auto", "default", "onednn"]


@dataclass(frozen=True, kw_only=True)
class AdamConfig:
    """Adam with decoupled weight decay."""

    kind: ClassVar[str] = "adam"
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise ValueError(f"betas={list(self.betas)} must both be in [0, 1)")
        check_positive(self, "eps")
        check_from_zero(self, "weight_decay")


@dataclass(frozen=True, kw_only=True)
class NesterovConfig:
    """Stochastic gradient descent with Nesterov's momentum; weight decay is an L2 penalty."""

    kind: ClassVar[str] = "nesterov"
    momentum: float = 0.99
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 < self.momentum < 1.0:
            raise ValueError(f"momentum={self.momentum} must be in (0, 1)")
        check_from_zero(self, "weight_decay")


@dataclass(frozen=True, kw_only=True)
class InverseSqrtConfig:
    """A line from `start` to `peak` in `warmup` updates, then peak * sqrt(warmup / step)."""

    kind: ClassVar[str] = "inverse_sqrt"
    peak: float
    warmup: int
    start: float = 1e-7

    def __post_init__(self) -> None:
        check_positive(self, "peak")
        check_counts(self, "warmup")
        _check_below_peak(self, "start")


@dataclass(frozen=True, kw_only=True)
class CosineConfig:
    """A line from `start` to `peak` in `warmup` updates, then half a cosine to `floor`.

    The cosine takes `period` updates; after them the rate stays at `floor`.
    """

    kind: ClassVar[str] = "cosine"
    peak: float
    warmup: int
    period: int
    start: float = 1e-7
    floor: float = 1e-7

    def __post_init__(self) -> None:
        check_positive(self, "peak")
        check_from_zero(self, "warmup")
        check_counts(self, "period")
        _check_below_peak(self, "start", "floor")


OptimizerConfig = AdamConfig | NesterovConfig
ScheduleConfig = InverseSqrtConfig | CosineConfig


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run; a batch on a device holds at most `max_tokens`."""

    max_steps: int
    # Batches of one update over all devices, or target tokens to reach; accumulated if need be.
    batches_per_update: int = 0
    tokens_per_update: int = 0
    max_tokens: int = 4096
    optimizer: OptimizerConfig = field(default_factory=AdamConfig)
    schedule: ScheduleConfig
    # Largest norm of the gradient; 0 does not clip it.
    clip_norm: float = 0.0
    label_smoothing: float = 0.0
    # auto: bf16 where the device multiplies it faster, else fp32.
    precision: Precision = "fp32"
    # Library of fp32 products on a processor; auto takes the faster exact one.
    products: Products = "auto"
    # Use torch.compile, which takes minutes at the start.
    compile: bool = False
    validate_every: int = 1000
    # Validations in a row without a better one that end training; 0 never ends it.
    patience: int = 0
    save_every: int = 1000
    log_every: int = 100
    keep_last: int = 10
    # Number of the best checkpoints that are kept besides.
    keep_best: int = 1
    # Number of the last checkpoints that are averaged; 0 exports the last one.
    average_last: int = 0
    # Decay of a moving average of the parameters over updates; 0 keeps none.
    ema: float = 0.0
    seed: int = 1

    def __post_init__(self) -> None:
        check_counts(self, "max_steps", "max_tokens")
        check_counts(self, "validate_every", "save_every", "log_every")
        check_from_zero(self, "batches_per_update", "tokens_per_update", "clip_norm")
        check_from_zero(self, "patience", "keep_best", "average_last")
        check_from_zero(self, "seed", most=(1 << 63) - 1)
        check_shares(self, "label_smoothing", "ema")
        batches, tokens = self.batches_per_update, self.tokens_per_update
        if (batches > 0) == (tokens > 0):
            raise ValueError(
                f"batches_per_update={batches} and tokens_per_update={tokens}: exactly one of them "
                "must be above 0"
            )
        if self.keep_last < 2:
            # A damaged checkpoint falls back to the one before.
            raise ValueError(f"keep_last={self.keep_last} must be at least 2")
        if self.average_last > self.keep_last:
            raise ValueError(
                f"average_last={self.average_last} must not be above keep_last={self.keep_last}"
            )
        if self.ema > 0.0 and self.average_last > 0:
            raise ValueError(
                f"ema={self.ema} and average_last={self.average_last} are two averages. Set one of "
                "them to 0"
            )

    def is_regular(self, step: int) -> bool:
        """True if an uninterrupted run has a checkpoint of this step."""
        return step > 0 and (step % self.save_every == 0 or step == self.max_steps)


def _check_below_peak(config: ScheduleConfig, *names: str) -> None:
    check_from_zero(config, *names)
    for name in names:
        if getattr(config, name) > config.peak:
            raise ValueError(f"{name}={getattr(config, name)} must not be above peak={config.peak}")


def find_rate(step: int, config: ScheduleConfig) -> float:
    """The learning rate after `step` updates, which the next one uses."""
    if step < config.warmup:
        return config.start + (config.peak - config.start) * step / config.warmup
    if isinstance(config, InverseSqrtConfig):
        return config.peak * math.sqrt(config.warmup / step)
    share = min(1.0, (step - config.warmup) / config.period)
    return config.floor + (config.peak - config.floor) * 0.5 * (1.0 + math.cos(math.pi * share))
