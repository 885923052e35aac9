"""Self-attention (Vaswani et al., 2017) over all positions or in a window, and its functions."""

from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from lightconv.mixers.base import Device, Dtype, Mixer, Past, linear
from lightconv.ops.attention import attention
from lightconv.ops.check import is_transformed

# Windowed attention runs in blocks of queries as long as the window, but not shorter than this.
SHORTEST_BLOCK = 16


class Attention(Mixer):
    """softmax(Q K^T / sqrt(R)) V per head, with projections: [B, T, D] -> [B, T, D].

    dim, heads D and H, which divides it; R = D / H
    causal     sees no later position, and can be streamed with `start` and `step`
    window     sees that many positions: the last ones including itself if causal, otherwise
               window // 2 back and the rest ahead, like a kernel of that width; None sees all
    dropout    of the attention weights, in training
    bias, device, dtype  of the projections, as of torch.nn.Linear

    >>> layer = Attention(512, 8, causal=True)
    >>> y = layer(torch.randn(2, 100, 512))    # [2, 100, 512]
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        causal: bool = False,
        window: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(dim, causal)
        self.check_heads(heads, dim)
        if window is not None:
            self.check_counts(window=window)
        self.check_probability("dropout", dropout)
        self.heads = heads
        self.window = window
        self.dropout = dropout
        self.bias = bias
        self.in_proj = linear(dim, 3 * dim, bias=bias, device=device, dtype=dtype)
        self.out_proj = linear(dim, dim, bias=bias, device=device, dtype=dtype)

    def mix(self, x: Tensor, padding: Tensor | None) -> Tensor:
        if padding is not None:
            # 0 * NaN is NaN: a weight of zero would not keep out what stands at padding.
            x = x.masked_fill(padding.unsqueeze(-1), 0.0)
        q, k, v = self.in_proj(x).chunk(3, dim=-1)
        dropout = self.dropout if self.training else 0.0
        if self.window is not None:
            left = self.window - 1 if self.causal else self.window // 2
            sides = (left, self.window - 1 - left)
            if padding is None:
                padding = x.new_zeros(1, x.shape[1], dtype=torch.bool)
            real = F.pad(~padding, sides)
            k, v = (F.pad(each, (0, 0, *sides)) for each in (k, v))
            out = attend_band(q, k, v, real, self.heads, left=left, dropout=dropout)
        elif padding is None:
            out = attend(q, k, v, self.heads, causal=self.causal, dropout=dropout)
        else:
            mask = causal_mask(padding) if self.causal else key_mask(padding)
            out = attend(q, k, v, self.heads, mask=mask, dropout=dropout)
        result: Tensor = self.out_proj(out)
        return result

    def allocate(self, batch: int, max_len: int, like: Tensor) -> Past:
        """Keys and values of the past: [B, max_len, D] each; with a window, rings [B, window, D].

        Time t lives in slot t, or t % window.
        """
        slots = max_len if self.window is None else self.window
        keys = like.new_zeros(batch, slots, self.dim)
        return keys, torch.zeros_like(keys)

    def advance(self, x: Tensor, tensors: Past, position: int) -> tuple[Tensor, Past]:
        past_k, past_v = tensors
        q, k, v = (each.to(past_k.dtype) for each in self.in_proj(x).chunk(3, dim=-1))
        if torch.is_grad_enabled() and (k.requires_grad or past_k.requires_grad):
            past_k, past_v = past_k.clone(), past_v.clone()
        advance = self._advance_all if self.window is None else self._advance_window
        return self.out_proj(advance(q, k, v, past_k, past_v, position=position)), (past_k, past_v)

    def _advance_all(
        self, q: Tensor, k: Tensor, v: Tensor, past_k: Tensor, past_v: Tensor, *, position: int
    ) -> Tensor:
        n, slots = q.shape[1], past_k.shape[1]
        end = position + n
        if end > slots:
            raise ValueError(
                f"position {end - 1} is beyond max_len={slots}; start with a larger max_len"
            )
        if torch.compiler.is_compiling():
            # One graph for every position, the first included: no shape may depend on it.
            times = torch.arange(n, device=q.device) + position
            past_k.index_copy_(1, times, k)
            past_v.index_copy_(1, times, v)
            seen = torch.arange(slots, device=q.device) <= times[:, None]
            return attend(q, past_k, past_v, self.heads, mask=seen)
        past_k[:, position:end] = k
        past_v[:, position:end] = v
        mask = None
        if n != 1:
            mask = torch.ones(n, end, dtype=torch.bool, device=q.device).tril(position)
        return attend(q, past_k[:, :end], past_v[:, :end], self.heads, mask=mask)

    def _advance_window(
        self, q: Tensor, k: Tensor, v: Tensor, past_k: Tensor, past_v: Tensor, *, position: int
    ) -> Tensor:
        n, slots = q.shape[1], past_k.shape[1]
        if n == 1:
            # Attention does not depend on the order of the keys: the ring is read as it is.
            slot = position % slots
            past_k[:, slot : slot + 1] = k
            past_v[:, slot : slot + 1] = v
            mask = torch.arange(slots, device=q.device) <= position
            return attend(q, past_k, past_v, self.heads, mask=mask.view(1, slots))
        oldest = position % slots
        recent_k = torch.cat([past_k.roll(-oldest, dims=1), k], dim=1)
        recent_v = torch.cat([past_v.roll(-oldest, dims=1), v], dim=1)
        newest = (position + n) % slots
        past_k.copy_(recent_k[:, n:].roll(newest, dims=1))
        past_v.copy_(recent_v[:, n:].roll(newest, dims=1))
        # `recent` begins at time position - slots, one before the first query's window.
        times = torch.arange(n + slots - 1, device=q.device) + (position - slots + 1)
        real = (times >= 0).unsqueeze(0)
        return attend_band(q, recent_k[:, 1:], recent_v[:, 1:], real, self.heads, left=slots - 1)


# --- functions -----------------------------------------------------------------------------------


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
    """Scaled dot-product attention without projections.

    q       [B, T, D]
    k, v    [B, S, D]
    mask    bool, broadcast to [B, H, T, S]: True if the query sees the key
    returns [B, T, D]
    """
    q, k, v = (each.unflatten(-1, (heads, -1)) for each in (q, k, v))
    if q.device.type in ("cpu", "meta") and dropout > 0.0:  # torch's CPU kernel has no dropout
        if mask is not None:
            mask = mask[(None,) * (4 - mask.dim())]
        options: Any = {"mask": mask, "causal": causal, "dropout": dropout}
        return attention(q, k, v, **options).flatten(-2)
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    # The fused kernels have no rules for forward mode and vmap.
    kernels = sdpa_kernel(SDPBackend.MATH) if is_transformed() else nullcontext()
    with kernels:
        out = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=causal)
    return out.transpose(1, 2).flatten(-2)


def attention_weights(q: Tensor, k: Tensor, heads: int, *, mask: Tensor | None = None) -> Tensor:
    """Weights [B, H, T, S] of `attend`, with the same arguments."""
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
    """Attention in a band: query t sees keys t .. t + W - 1, of which t + left is its own position.

    q       [B, T, D]
    k, v    [B, T+W-1, D]
    real    [B or 1, T+W-1] bool: False if there is no key
    returns [B, T, D]

    Blocks of C queries share C + W - 1 keys: memory grows with T * (C + W), never with T * T.
    """
    B, T = q.shape[:2]
    if T == 0:
        return q
    W = k.shape[1] - T + 1
    C = max(W, SHORTEST_BLOCK)
    if torch.compiler.is_compiling():
        # One graph for every length: no choice by T, at least two blocks.
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
    # A position always sees itself, so that no row of the softmax is empty.
    mask = band & (real.unsqueeze(2) | (reach == left))
    mask = mask.expand(B, -1, -1, -1).flatten(0, 1).unsqueeze(1)
    out = attend(q, k, v, heads, mask=mask, dropout=dropout)
    # By index: a compiler that traces T cannot prove that a slice of T lies inside the blocks.
    kept = torch.arange(T, device=q.device)
    return out.reshape(B, blocks * C, q.shape[2]).index_select(1, kept)


def key_mask(padding: Tensor) -> Tensor:
    """Mask of `attend` from padding [B, S] -> [B, 1, 1, S].

    A row of padding alone sees everything: an empty softmax would be NaN.
    """
    return (~padding | padding.all(1, keepdim=True))[:, None, None]


def causal_mask(padding: Tensor) -> Tensor:
    """Causal mask of `attend` from padding [B, T] -> [B, 1, T, T]; each position sees itself."""
    T = padding.shape[1]
    past = torch.ones(T, T, dtype=torch.bool, device=padding.device).tril()
    itself = torch.eye(T, dtype=torch.bool, device=padding.device)
    return (past & (~padding[:, None] | itself)).unsqueeze(1)
