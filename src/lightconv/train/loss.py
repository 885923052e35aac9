"""The loss as a sum, beside the number of tokens it was summed over."""

import torch.nn.functional as F
from torch import Tensor

from lightconv.ops.check import accumulate_dtype


def label_smoothed(
    logits: Tensor, target: Tensor, *, smoothing: float = 0.1, pad: int = 1
) -> tuple[Tensor, Tensor]:
    """sum over tokens of (1 - smoothing) * nll(target) + smoothing / V * sum_v nll(v).

    logits  [B, T, V]
    target  [B, T] int64; pad counts for nothing
    returns the sum [] and the number of tokens [] int64
    """
    total = F.cross_entropy(
        logits.flatten(0, 1).to(accumulate_dtype(logits.dtype)),
        target.flatten(),
        ignore_index=pad,
        reduction="sum",
        label_smoothing=smoothing,
    )
    return total, (target != pad).sum()
