"""The same models in plain PyTorch: the cost of a training step without this project's operators.

Inside `plain_pytorch`, dropout, residual sum and layer normalisation are torch's three calls,
DynamicConv is the band matrix or the unfolded windows, and the logits are computed as one tensor.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from unittest.mock import patch

import torch.nn.functional as F
from torch import Tensor

from lightconv.models.embedding import TokenEmbedding
from lightconv.ops.band import band_matrix

Convolution = Callable[[Tensor, Tensor, int], Tensor]


def band(x: Tensor, weight: Tensor, left: int) -> Tensor:
    """The paper's band matrix: x [B, T, D], weight [B, T, H, K]."""
    heads = x.unflatten(-1, (weight.shape[2], -1)).transpose(1, 2)
    return (band_matrix(weight.transpose(1, 2), left) @ heads).transpose(1, 2).flatten(-2)


def unfold(x: Tensor, weight: Tensor, left: int) -> Tensor:
    """K copies of every row, then one product: x [B, T, D], weight [B, T, H, K]."""
    H, K = weight.shape[2:]
    windows = F.pad(x, (0, 0, left, K - 1 - left)).unfold(1, K, 1)  # [B, T, D, K]
    return (windows.unflatten(2, (H, -1)) @ weight.unsqueeze(-1)).flatten(2)


FORMULATIONS: dict[str, Convolution] = {"band": band, "unfold": unfold}


@contextmanager
def plain_pytorch(formulation: str) -> Iterator[None]:
    """Models of DynamicConv layers use only torch's operators inside this context."""
    convolve = partial(_dynamicconv, convolution=FORMULATIONS[formulation])
    with ExitStack() as stack:
        for name, function in {
            "lightconv.ops.dropout": _dropout,
            "lightconv.ops.dropout_add": _dropout_add,
            "lightconv.ops.dropout_add_norm": _dropout_add_norm,
            "lightconv.mixers.dynamicconv.dynamicconv_softmax": convolve,
        }.items():
            stack.enter_context(patch(name, function))
        stack.enter_context(patch.object(TokenEmbedding, "loss", _loss))
        yield


def _dropout(inner: Tensor, p: float) -> Tensor:
    return F.dropout(inner, p)


def _dropout_add(x: Tensor, inner: Tensor, p: float) -> Tensor:
    return x + F.dropout(inner, p)


def _dropout_add_norm(
    x: Tensor, inner: Tensor, weight: Tensor, bias: Tensor, p: float, *, eps: float
) -> Tensor:
    return F.layer_norm(x + F.dropout(inner, p), weight.shape, weight, bias, eps)


def _dynamicconv(
    x: Tensor,
    logits: Tensor,
    left: int,
    *,
    cu_seqlens: Tensor | None,
    dropconnect: float,
    convolution: Convolution,
) -> Tensor:
    assert cu_seqlens is None
    return convolution(x, F.dropout(logits.softmax(-1), dropconnect), left)


def _loss(
    self: TokenEmbedding, x: Tensor, target: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    logits = F.linear(x, self.weight)
    smooth = F.cross_entropy(logits, target, reduction="sum", label_smoothing=smoothing)
    return smooth, smooth.detach()
