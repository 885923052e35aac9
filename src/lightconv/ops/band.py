"""The paper's own formulation (section 3): the kernels as a band matrix, then one matrix product.

Fast for short sequences in plain PyTorch, T x T memory for long ones. Kept as a named backend, as
a second definition to test against and as a peer to measure against.
"""

import torch
from torch import Tensor

from lightconv.ops.check import accumulate_dtype, check_dynamicconv, check_lightconv


def band_matrix(weight: Tensor, left: int) -> Tensor:
    """Entry [.., t, t + j - left] is tap j of position t.

    weight [..., T, K] -> [..., T, T].
    """
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


def dynamicconv(x: Tensor, weight: Tensor, left: int, softmax: bool = False) -> Tensor:
    """x [B, T, D], weight [B, T, H, K] -> [B, T, D]."""
    check_dynamicconv(x, weight, left)
    if softmax:
        weight = weight.softmax(-1, dtype=accumulate_dtype(x.dtype))
    return _multiply(x, weight.to(x.dtype).transpose(1, 2), left)


def lightconv(x: Tensor, weight: Tensor, left: int) -> Tensor:
    """x [B, T, D], weight [H, K] -> [B, T, D]."""
    check_lightconv(x, weight, left)
    return _multiply(x, weight.to(x.dtype)[None, :, None].expand(1, -1, x.shape[1], -1), left)


def _multiply(x: Tensor, weight: Tensor, left: int) -> Tensor:
    """weight [B or 1, H, T, K]."""
    H = weight.shape[1]
    heads = x.unflatten(-1, (H, x.shape[-1] // H)).transpose(1, 2)
    out: Tensor = band_matrix(weight, left) @ heads
    return out.transpose(1, 2).flatten(-2)
