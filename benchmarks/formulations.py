"""Other formulations of the operators in plain PyTorch, compared by benchmarks/ops.py.

Each returns [B, T, D]. The convolutions are causal (left = K - 1) and take logits, so that every
side includes the softmax.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv.mixers.attention import attend, attend_band
from lightconv.ops import band


def unfold_dynamicconv(x: Tensor, logits: Tensor) -> Tensor:
    """K copies of every input row, then one product: x [B, T, D], logits [B, T, H, K]."""
    H, K = logits.shape[2:]
    windows = F.pad(x, (0, 0, K - 1, 0)).unfold(1, K, 1)  # [B, T, D, K]
    windows = windows.unflatten(2, (H, x.shape[2] // H))
    return (windows * logits.softmax(-1).unsqueeze(3)).sum(-1).flatten(2)


def band_dynamicconv(x: Tensor, logits: Tensor) -> Tensor:
    """The paper's band matrix: x [B, T, D], logits [B, T, H, K]."""
    return band.convolve(x, logits, logits.shape[-1] - 1, softmax=True)


def unfold_lightconv(x: Tensor, logits: Tensor) -> Tensor:
    """K copies of every input row, then one product: x [B, T, D], logits [H, K]."""
    return unfold_dynamicconv(x, logits.expand(*x.shape[:2], -1, -1))


def band_lightconv(x: Tensor, logits: Tensor) -> Tensor:
    """The paper's band matrix: x [B, T, D], logits [H, K]."""
    return band.convolve(x, logits.softmax(-1), logits.shape[-1] - 1)


def conv1d_lightconv(x: Tensor, logits: Tensor) -> Tensor:
    """Grouped F.conv1d with one group per channel: x [B, T, D], logits [H, K]."""
    H, K = logits.shape
    D = x.shape[2]
    weight = logits.softmax(-1).repeat_interleave(D // H, 0).unsqueeze(1)
    return F.conv1d(F.pad(x.transpose(1, 2), (K - 1, 0)), weight, groups=D).transpose(1, 2)


def conv2d_lightconv(x: Tensor, logits: Tensor) -> Tensor:
    """Grouped F.conv2d over a channels-last image of height 1: x [B, T, D], logits [H, K]."""
    H, K = logits.shape
    D = x.shape[2]
    weight = logits.softmax(-1).repeat_interleave(D // H, 0)[:, None, None]
    image = F.pad(x, (0, 0, K - 1, 0)).transpose(1, 2).unsqueeze(2)
    image = image.contiguous(memory_format=torch.channels_last)
    return F.conv2d(image, weight, groups=D).squeeze(2).transpose(1, 2)


def causal_attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """scaled_dot_product_attention alone, no projections: q, k, v [B, T, D]."""
    return attend(q, k, v, heads, causal=True)


def windowed_attention(q: Tensor, k: Tensor, v: Tensor, heads: int, window: int) -> Tensor:
    """Causal attention to the last `window` positions, block by block: q, k, v [B, T, D]."""
    k, v = (F.pad(t, (0, 0, window - 1, 0)) for t in (k, v))
    real = (torch.arange(k.shape[1]) >= window - 1).unsqueeze(0)
    return attend_band(q, k, v, real, heads, left=window - 1)
