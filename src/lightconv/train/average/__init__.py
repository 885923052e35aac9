"""One model made of several checkpoints: the mean of their parameters."""

from typing import TYPE_CHECKING

from lightconv.lazy import lazy

if TYPE_CHECKING:
    from lightconv.train.average.mean import average

__all__ = ["average"]

__getattr__ = lazy(__name__, {"mean": ["average"]})
