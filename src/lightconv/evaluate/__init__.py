"""Measures of outputs, each with a signature of everything that influenced it."""

from lightconv.evaluate.bootstrap import Comparison, Interval, confidence, paired_bootstrap
from lightconv.evaluate.metrics import (
    METRICS,
    Metric,
    Score,
    Signature,
    compute_perplexity,
    find_metric,
)

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
