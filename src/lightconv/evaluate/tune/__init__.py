"""Values of the search, and how many checkpoints to average, chosen on validation data."""

from typing import TYPE_CHECKING

from lightconv.lazy import lazy

if TYPE_CHECKING:
    from lightconv.evaluate.tune.grid import Trial, tune_search

__all__ = ["Trial", "tune_search"]

__getattr__ = lazy(__name__, {"grid": ["Trial", "tune_search"]})
