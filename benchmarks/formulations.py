"""Other formulations of the operators in plain PyTorch, for benchmarks/ops.py and shapes.py.

Each returns [B, T, D]. The convolutions are causal (left = K - 1) and take x [B, T, D] and
normalised weights [B, T, H, K] or, for all positions, [H, K]; `of_logits` puts the softmax before.
"""

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv.mixers.attention import attend, attend_band
from lightconv.ops import band as band_matrix

Formulation = Callable[[Tensor, Tensor], Tensor]


def of_logits(formulation: Formulation) -> Formulation:
    """The formulation of softmax(logits)."""
    return lambda x, logits: formulation(x, logits.softmax(-1))


def unfold(x: Tensor, weight: Tensor) -> Tensor:
    """K copies of every input row, then one product."""
    H, K = weight.shape[-2:]
    windows = F.pad(x, (0, 0, K - 1, 0)).unfold(1, K, 1)  # [B, T, D, K]
    windows = windows.unflatten(2, (H, x.shape[2] // H))
    return (windows * weight.unsqueeze(-2)).sum(-1).flatten(2)


def band(x: Tensor, weight: Tensor) -> Tensor:
    """The paper's band matrix."""
    return band_matrix.convolve(x, weight, weight.shape[-1] - 1)


def shifted(x: Tensor, weight: Tensor) -> Tensor:
    """A loop over the taps: products of shifted rows, added up."""
    (H, K), T = weight.shape[-2:], x.shape[1]
    rows = F.pad(x, (0, 0, K - 1, 0)).unflatten(2, (H, x.shape[2] // H))
    out = weight[..., :1] * rows[:, :T]
    for j in range(1, K):
        out = out + weight[..., j : j + 1] * rows[:, j : j + T]
    return out.flatten(2)


@functools.cache
def compiled() -> Formulation:
    """`shifted`, compiled for any B, T and H."""
    torch._dynamo.config.recompile_limit = 1000
    return torch.compile(shifted, dynamic=True)


def _per_channel(weight: Tensor, D: int) -> Tensor:
    return weight.repeat_interleave(D // weight.shape[0], 0).unsqueeze(1)


def conv1d(x: Tensor, weight: Tensor) -> Tensor:
    """Grouped F.conv1d with one group per channel, weight [H, K]."""
    K, D = weight.shape[1], x.shape[2]
    padded = F.pad(x.transpose(1, 2), (K - 1, 0))
    return F.conv1d(padded, _per_channel(weight, D), groups=D).transpose(1, 2)


def conv2d(x: Tensor, weight: Tensor) -> Tensor:
    """Grouped F.conv2d over a channels-last image of height 1, weight [H, K]."""
    K, D = weight.shape[1], x.shape[2]
    image = F.pad(x, (0, 0, K - 1, 0)).transpose(1, 2).unsqueeze(2)
    image = image.contiguous(memory_format=torch.channels_last)
    return (
        F.conv2d(image, _per_channel(weight, D).unsqueeze(1), groups=D).squeeze(2).transpose(1, 2)
    )


def causal_attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """scaled_dot_product_attention alone, no projections: q, k, v [B, T, D]."""
    return attend(q, k, v, heads, causal=True)


def windowed_attention(q: Tensor, k: Tensor, v: Tensor, heads: int, window: int) -> Tensor:
    """Causal attention to the last `window` positions, block by block: q, k, v [B, T, D]."""
    k, v = (F.pad(t, (0, 0, window - 1, 0)) for t in (k, v))
    real = (torch.arange(k.shape[1]) >= window - 1).unsqueeze(0)
    return attend_band(q, k, v, real, heads, left=window - 1)
