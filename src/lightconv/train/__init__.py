"""Training: one update, a whole run, and the folder it leaves."""

from typing import TYPE_CHECKING

from lightconv.lazy import lazy
from lightconv.train.config import (
    AdamConfig,
    CosineConfig,
    InverseSqrtConfig,
    NesterovConfig,
    TrainConfig,
)
from lightconv.train.schedule import SCHEDULES, cosine, find_rate, inverse_sqrt

if TYPE_CHECKING:
    from lightconv.train.data import PreparedData, TrainingData
    from lightconv.train.group import Group
    from lightconv.train.guard import DivergenceError
    from lightconv.train.loop import Metric
    from lightconv.train.loss import Loss, batch_loss, label_smoothed
    from lightconv.train.optim import OPTIMIZERS, build_optimizer
    from lightconv.train.runner import Outcome, run
    from lightconv.train.trainer import Measured, Record, Trainer

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "AdamConfig",
    "CosineConfig",
    "DivergenceError",
    "Group",
    "InverseSqrtConfig",
    "Loss",
    "Measured",
    "Metric",
    "NesterovConfig",
    "Outcome",
    "PreparedData",
    "Record",
    "TrainConfig",
    "Trainer",
    "TrainingData",
    "batch_loss",
    "build_optimizer",
    "cosine",
    "find_rate",
    "inverse_sqrt",
    "label_smoothed",
    "run",
]

__getattr__ = lazy(
    __name__,
    {
        "data": ["PreparedData", "TrainingData"],
        "group": ["Group"],
        "guard": ["DivergenceError"],
        "loop": ["Metric"],
        "loss": ["Loss", "batch_loss", "label_smoothed"],
        "optim": ["OPTIMIZERS", "build_optimizer"],
        "runner": ["Outcome", "run"],
        "trainer": ["Measured", "Record", "Trainer"],
    },
)
