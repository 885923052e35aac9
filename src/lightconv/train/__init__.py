"""Training: one update, a whole run, and the run folder."""

from typing import TYPE_CHECKING

from lightconv.lazy import lazy
from lightconv.train.config import (
    SCHEDULES,
    AdamConfig,
    CosineConfig,
    InverseSqrtConfig,
    NesterovConfig,
    TrainConfig,
    cosine,
    find_rate,
    inverse_sqrt,
)

# Not lazy: the function would otherwise be hidden by the module of its name.
from lightconv.train.run import Outcome, Run, run

if TYPE_CHECKING:
    from lightconv.train.data import PreparedData, TrainingData
    from lightconv.train.group import Group
    from lightconv.train.guard import DivergenceError
    from lightconv.train.loop import Metric
    from lightconv.train.optim import OPTIMIZERS, Loss, batch_loss, build_optimizer
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
    "Run",
    "TrainConfig",
    "Trainer",
    "TrainingData",
    "batch_loss",
    "build_optimizer",
    "cosine",
    "find_rate",
    "inverse_sqrt",
    "run",
]

__getattr__ = lazy(
    __name__,
    {
        "data": ["PreparedData", "TrainingData"],
        "group": ["Group"],
        "guard": ["DivergenceError"],
        "loop": ["Metric"],
        "optim": ["OPTIMIZERS", "Loss", "batch_loss", "build_optimizer"],
        "trainer": ["Measured", "Record", "Trainer"],
    },
)
