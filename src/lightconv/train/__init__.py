"""Training: one update, a whole run, and the run folder."""

from typing import TYPE_CHECKING

from lightconv.lazy import lazy
from lightconv.train.config import (
    AdamConfig,
    CosineConfig,
    InverseSqrtConfig,
    NesterovConfig,
    TrainConfig,
    find_rate,
)

# Not lazy: the function would otherwise be hidden by the module of its name.
from lightconv.train.run import Outcome, Run, run

if TYPE_CHECKING:
    from lightconv.train.data import PreparedData, TrainingData
    from lightconv.train.distributed import Group
    from lightconv.train.loop import RunMetric
    from lightconv.train.optim import DivergenceError, Loss, batch_loss
    from lightconv.train.trainer import MeanLoss, Record, Trainer

__all__ = [
    "AdamConfig",
    "CosineConfig",
    "DivergenceError",
    "Group",
    "InverseSqrtConfig",
    "Loss",
    "MeanLoss",
    "NesterovConfig",
    "Outcome",
    "PreparedData",
    "Record",
    "Run",
    "RunMetric",
    "TrainConfig",
    "Trainer",
    "TrainingData",
    "batch_loss",
    "find_rate",
    "run",
]

__getattr__ = lazy(
    __name__,
    {
        "data": ["PreparedData", "TrainingData"],
        "distributed": ["Group"],
        "loop": ["RunMetric"],
        "optim": ["DivergenceError", "Loss", "batch_loss"],
        "trainer": ["MeanLoss", "Record", "Trainer"],
    },
)
