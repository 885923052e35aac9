"""The loss as a sum, beside the number of tokens it was summed over."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv.data import EOS, PAD, Batch
from lightconv.models import LanguageModel, Seq2Seq
from lightconv.ops.check import accumulate_dtype

Model = Seq2Seq | LanguageModel


class Loss(NamedTuple):
    """Sums over the target tokens of a batch: smoothed [], plain [] without gradient; how many."""

    loss: Tensor
    nll: Tensor
    tokens: int


def batch_loss(
    model: Model,
    batch: Batch,
    smoothing: float = 0.0,
    *,
    device: torch.device | str | None = None,
    features: Callable[..., Tensor] | None = None,
) -> Loss:
    """The loss of a batch; padding is left out before the vocabulary is looked at.

    device    where the model is, if the batch is elsewhere: it waits for nothing to be counted
    features  called in the place of `model.features`: inputs to [B, T, D]
    """
    target = batch.target.flatten()
    rows = (target != PAD).nonzero()[:, 0]
    tokens = len(rows)
    if device is not None:
        batch = batch.to(device, non_blocking=True)
        rows = rows.to(device, non_blocking=True)
        target = batch.target.flatten()
    x = (features or model.features)(*batch.inputs).flatten(0, 1)
    if tokens < len(target):
        x, target = x.index_select(0, rows), target.index_select(0, rows)
    return Loss(*model.output.loss(x, target, smoothing), tokens)


def empty_batch(model: Model) -> Batch:
    """A batch without target tokens, whose loss and gradients are zero."""
    token = torch.full((1, 1), EOS)
    inputs = (token, token) if isinstance(model, Seq2Seq) else (token,)
    return Batch(inputs, torch.full((1, 1), PAD))


def label_smoothed(
    logits: Tensor, target: Tensor, *, smoothing: float = 0.1, pad: int = PAD
) -> tuple[Tensor, Tensor]:
    """sum over tokens of (1 - smoothing) * nll(target) + smoothing / V * sum_v nll(v).

    The formula on logits that are there as a whole.

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
