"""Scaled dot-product attention as functions: everything, or a band, and the masks for it."""

import torch
import torch.nn.functional as F
from torch import Tensor

# Windowed attention runs in blocks of queries as long as the window, but not shorter than this.
SHORTEST_BLOCK = 16


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: int,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """Attention without projections, for self-attention and source-target attention alike.

    q       [B, T, D]
    k, v    [B, S, D]
    mask    bool, broadcast to [B, H, T, S]: True where the query may look
    returns [B, T, D]
    """
    R = q.shape[-1] // heads
    q, k, v = (each.view(*each.shape[:2], heads, R).transpose(1, 2) for each in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=causal)
    return out.transpose(1, 2).flatten(-2)


def attention_weights(q: Tensor, k: Tensor, heads: int, *, mask: Tensor | None = None) -> Tensor:
    """How much each query of `attend` takes from each key: [B, H, T, S]; arguments as there."""
    R = q.shape[-1] // heads
    q, k = (each.view(*each.shape[:2], heads, R).transpose(1, 2) for each in (q, k))
    scores = q @ k.transpose(-2, -1) / R**0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights: Tensor = scores.softmax(-1)
    return weights


def attend_band(
    q: Tensor, k: Tensor, v: Tensor, real: Tensor, heads: int, *, left: int, dropout: float = 0.0
) -> Tensor:
    """Query t sees keys t .. t + W - 1, of which key t + left is its own position.

    q       [B, T, D]
    k, v    [B, T+W-1, D]
    real    [B or 1, T+W-1] bool: False where there is no key
    returns [B, T, D]

    Blocks of C queries share C + W - 1 keys: memory grows with T * (C + W), never with T * T.
    """
    B, T = q.shape[:2]
    if T == 0:
        return q
    W = k.shape[1] - T + 1
    C = max(W, SHORTEST_BLOCK)
    if torch.compiler.is_compiling():
        # One graph for every length: no choice by T, and never the special case of one block.
        blocks = T // C + 2
    else:
        C = min(C, T)
        blocks = (T + C - 1) // C
    extra = blocks * C - T
    q = F.pad(q, (0, 0, 0, extra)).reshape(B * blocks, C, q.shape[2])
    k, v = (
        F.pad(each, (0, 0, 0, extra)).unfold(1, C + W - 1, C).transpose(2, 3).flatten(0, 1)
        for each in (k, v)
    )
    real = F.pad(real, (0, extra)).unfold(1, C + W - 1, C)
    reach = torch.arange(C + W - 1, device=q.device) - torch.arange(C, device=q.device)[:, None]
    band = (reach >= 0) & (reach < W)
    # Looking at itself is always allowed, so that no row of the softmax is empty.
    mask = band & (real.unsqueeze(2) | (reach == left))
    mask = mask.expand(B, -1, -1, -1).flatten(0, 1).unsqueeze(1)
    out = attend(q, k, v, heads, mask=mask, dropout=dropout)
    # By index: a compiler that traces T cannot prove that a slice of T lies inside the blocks.
    kept = torch.arange(T, device=q.device)
    return out.reshape(B, blocks * C, q.shape[2]).index_select(1, kept)


def key_mask(padding: Tensor) -> Tensor:
    """Where any query may look: padding [B, S] -> [B, 1, 1, S].

    A row that is nothing but padding looks everywhere: an empty softmax would be NaN.
    """
    return (~padding | padding.all(1, keepdim=True))[:, None, None]


def causal_mask(padding: Tensor) -> Tensor:
    """Where each query may look: padding [B, T] -> [B, 1, T, T]; itself is always allowed."""
    T = padding.shape[1]
    past = torch.ones(T, T, dtype=torch.bool, device=padding.device).tril()
    itself = torch.eye(T, dtype=torch.bool, device=padding.device)
    return (past & (~padding[:, None] | itself)).unsqueeze(1)
