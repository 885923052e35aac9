"""A recipe: everything that makes one row of a table, as one value."""

from dataclasses import dataclass, field

from lightconv.data.config import TaskConfig
from lightconv.decode import DecodeConfig
from lightconv.models.config import ModelConfig
from lightconv.train.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Task, model, training and decoding.

    `sources` says where a value comes from that the paper does not print: dotted path to source.
    """

    about: str
    task: TaskConfig
    model: ModelConfig
    train: TrainConfig
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    sources: dict[str, str] = field(default_factory=dict)
