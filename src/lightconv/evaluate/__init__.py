"""Measures of outputs, each with a signature of what influenced it."""

from typing import TYPE_CHECKING

from lightconv.evaluate.signature import Score, Signature
from lightconv.lazy import lazy

if TYPE_CHECKING:
    from lightconv.evaluate.bootstrap import Comparison, Interval, confidence, paired_bootstrap
    from lightconv.evaluate.metrics import METRICS, Metric, find_metric
    from lightconv.evaluate.perplexity import compute_perplexity

__all__ = [
    "METRICS",
    "Comparison",
    "Interval",
    "Metric",
    "Score",
    "Signature",
    "compute_perplexity",
    "confidence",
    "find_metric",
    "paired_bootstrap",
]

__getattr__ = lazy(
    __name__,
    {
        "bootstrap": ["Comparison", "Interval", "confidence", "paired_bootstrap"],
        "metrics": ["METRICS", "Metric", "find_metric"],
        "perplexity": ["compute_perplexity"],
    },
)
