"""The training loop and its loss."""

from lightconv.train.loss import label_smoothed
from lightconv.train.trainer import Record, TrainConfig, Trainer, inverse_sqrt

__all__ = ["Record", "TrainConfig", "Trainer", "inverse_sqrt", "label_smoothed"]
