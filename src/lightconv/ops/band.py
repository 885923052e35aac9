"""The paper's own formulation (section 3): the kernels as a band matrix, then one matrix product.

Fast for short sequences in plain PyTorch, T x T memory for long ones. A named backend, a second
definition to test against and a baseline to measure against.
"""

import torch
from torch import Tensor

from lightconv.ops.check import accumulate_dtype


def band_matrix(weight: Tensor, left: int) -> Tensor:
    """weight [..., T, K] -> [..., T, T]: entry [.., t, t + j - left] is tap j of position t."""
    T, K = weight.shape[-2:]
    wide = weight.new_zeros(*weight.shape[:-1], T + K - 1)
    # A diagonal band is a plain block when the rows are read one element longer than they are.
    rows = wide.as_strided(weight.shape, (*wide.stride()[:-2], wide.stride(-2) + 1, 1))
    rows.copy_(weight)
    inside = wide[..., left : left + T]
    if inside.shape[-1] < T:
        # left > K - 1: the band ends in the past, and the columns to its right are zero.
        missing = wide.new_zeros(*weight.shape[:-1], T - inside.shape[-1])
        inside = torch.cat([inside, missing], dim=-1)
    return inside


def convolve(x: Tensor, weight: Tensor, left: int, softmax: bool = False) -> Tensor:
    """x [B, T, D], weight [B, T, H, K] or [H, K], logits with `softmax` -> [B, T, D]."""
    if softmax:
        weight = weight.softmax(-1, dtype=accumulate_dtype(x.dtype))
    weight = weight.to(x.dtype)
    if weight.dim() == 2:
        weight = weight[None, None].expand(1, x.shape[1], -1, -1)
    H = weight.shape[2]
    heads = x.unflatten(-1, (H, x.shape[2] // H)).transpose(1, 2)
    out: Tensor = band_matrix(weight.transpose(1, 2), left) @ heads
    return out.transpose(1, 2).flatten(-2)
